//! The one configuration file of an engine process: the planner's side writes it, `fathom-engine --config` reads it.
//! In: JSON. Out: a checked [`EngineConfig`], or every mistake at once.
//! Never: environment variables, defaults that depend on the machine.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::admission::{DEFAULT_MAX_QUEUED_REQUESTS, DEFAULT_TIME_TO_FIRST_TOKEN_S};
use crate::memory::{CacheFormat, IndexKeyFormat, PAGE_TOKENS, Precision};
use crate::shape::NamedShape;

/// What running requests get after SIGTERM, when nothing is said.
pub const DEFAULT_DRAIN_TIMEOUT_MS: u64 = 30_000;

/// How long a request may take, when nothing is said.
pub const DEFAULT_REQUEST_TIMEOUT_MS: u64 = 600_000;

/// Ports of engine and router in a cluster, where every pod has an address of its own.
pub const CLUSTER_HTTP_PORT: u16 = 8000;
pub const CLUSTER_GRPC_PORT: u16 = 9000;

/// Everything an engine process is told. Unknown keys are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineConfig {
    /// This replica, in logs and metrics: `needle-prefill-0`.
    pub name: String,
    pub role: Role,
    /// Only equal revisions of prefill and decode pair.
    #[serde(default)]
    pub revision: String,
    pub model: ModelConfig,
    #[serde(default)]
    pub listen: ListenConfig,
    #[serde(default)]
    pub peers: PeersConfig,
    /// Prefill, decode and unified need pools; the router has none.
    #[serde(default)]
    pub pools: Option<PoolConfig>,
    #[serde(default)]
    pub scheduler: SchedulerConfig,
    #[serde(default)]
    pub admission: AdmissionConfig,
    #[serde(default)]
    pub chat: ChatConfig,
    #[serde(default)]
    pub binding: BindingConfig,
    /// After SIGTERM, running requests get this long.
    #[serde(default = "default_drain_ms")]
    pub drain_timeout_ms: u64,
    /// A request that has not ended after this long is ended with an error.
    #[serde(default = "default_request_ms")]
    pub request_timeout_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes the KV of prompts and hands it to decode.
    Prefill,
    /// Owns requests: API, admission, decoding.
    Decode,
    /// Forwards to a decode and names the prefill.
    Router,
    /// Prefill and decode in one process.
    Unified,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Router => "router",
            Role::Unified => "unified",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Served model name.
    pub name: String,
    /// Folder of the published checkpoint; the router reads nothing from it and may leave it out.
    #[serde(default)]
    pub path: Option<String>,
    /// The dimensions that pools were sized for; a checkpoint that differs is refused. Absent = whatever is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<NamedShape>,
    /// Longest prompt plus answer, in tokens.
    pub context_tokens: u32,
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub index_keys: IndexKeyFormat,
    /// Compressed entries a query attends to; absent = the checkpoint's own.
    #[serde(default)]
    pub index_top_k: Option<u32>,
}

/// Where to listen. Port 0 takes a free one; the `listening` line says which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenConfig {
    pub http: SocketAddr,
    /// Prefill only: the service that decode calls.
    #[serde(default)]
    pub grpc: Option<SocketAddr>,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { http: SocketAddr::from(([127, 0, 0, 1], 0)), grpc: None }
    }
}

/// Decode needs prefills, the router both: listed, `host:port` each, or found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeersConfig {
    #[serde(default)]
    pub prefill: Vec<PrefillPeer>,
    /// HTTP addresses.
    #[serde(default)]
    pub decode: Vec<String>,
    /// Instead of the lists: in a cluster peers come and go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoveryConfig>,
}

/// Where peers are found in a cluster: the headless Services of the two roles. Decode asks the cluster's DNS, the
/// router watches EndpointSlices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiscoveryConfig {
    pub namespace: String,
    /// Absent where decodes compute prompts themselves.
    #[serde(default)]
    pub prefill_service: Option<String>,
    pub decode_service: String,
    /// Where every engine serves HTTP.
    #[serde(default = "cluster_http_port")]
    pub http_port: u16,
    /// Where every prefill serves decodes.
    #[serde(default = "cluster_grpc_port")]
    pub grpc_port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefillPeer {
    /// The prefill service.
    pub grpc: String,
    /// Readiness and metrics.
    #[serde(default)]
    pub http: Option<String>,
}

/// Device pools, allocated once at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolConfig {
    /// Pages of [`PAGE_TOKENS`] full-history tokens.
    pub kv_pages: u32,
    /// Requests that can be in the pools at once.
    pub request_slots: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Prompt tokens of one request computed in one step; a multiple of 128.
    pub chunk_tokens: u32,
    /// Prompt and decode tokens of all requests in one step.
    pub step_tokens: u32,
    /// Requests that decode together.
    pub max_running: u32,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { chunk_tokens: 512, step_tokens: 1024, max_running: 64 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdmissionConfig {
    /// The objective T, in milliseconds.
    pub time_to_first_token_ms: u64,
    /// Second guard: requests that may wait, whatever their size.
    pub max_queued_requests: u32,
    /// mu, if known beforehand; absent = measured (one warm-up chunk is timed before readiness).
    pub prefill_tokens_per_second: Option<f64>,
    /// The backlog limit itself, if the user set one; absent = derived.
    pub queue_limit_tokens: Option<u64>,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive constant"
        )]
        let time_to_first_token_ms = (DEFAULT_TIME_TO_FIRST_TOKEN_S * 1000.0) as u64;
        Self {
            time_to_first_token_ms,
            max_queued_requests: DEFAULT_MAX_QUEUED_REQUESTS,
            prefill_tokens_per_second: None,
            queue_limit_tokens: None,
        }
    }
}

/// Defaults for chat requests that say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ChatConfig {
    pub thinking: Thinking,
    pub effort_profile: EffortProfile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Thinking {
    #[default]
    On,
    Off,
}

/// Which reasoning-effort texts the checkpoint was trained with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EffortProfile {
    /// The April checkpoints: only `max` has a text.
    Preview,
    /// The 0731 checkpoints and the official API.
    #[default]
    V0731,
}

/// CPUs and memory the process binds itself to, and the threads it computes with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BindingConfig {
    /// Linux CPU list, `0-15,32`; absent = not bound.
    pub cpus: Option<String>,
    /// NUMA node of the memory; absent = not bound.
    pub memory_node: Option<u32>,
    /// A process whose CPUs are refused is never ready; otherwise it runs unbound and says so.
    pub cpus_required: bool,
    /// The same for memory; and memory then comes from `memory_node` only, where otherwise it is preferred.
    pub memory_required: bool,
    /// Compute threads; absent = the CPUs the process may use.
    pub threads: Option<u32>,
}

fn cluster_http_port() -> u16 {
    CLUSTER_HTTP_PORT
}

fn cluster_grpc_port() -> u16 {
    CLUSTER_GRPC_PORT
}

fn default_drain_ms() -> u64 {
    DEFAULT_DRAIN_TIMEOUT_MS
}

fn default_request_ms() -> u64 {
    DEFAULT_REQUEST_TIMEOUT_MS
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("configuration is not readable: {0}")]
    Parse(String),
    #[error("configuration is refused: {}", .0.join("; "))]
    Refused(Vec<String>),
}

impl EngineConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError::Parse`] with line and column; [`ConfigError::Refused`] with all mistakes.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let config: EngineConfig =
            serde_json::from_str(text).map_err(|e| ConfigError::Parse(e.to_string()))?;
        let mistakes = config.mistakes();
        if mistakes.is_empty() { Ok(config) } else { Err(ConfigError::Refused(mistakes)) }
    }

    /// The rows that this engine's pools are made of.
    pub fn cache_format(&self) -> CacheFormat {
        CacheFormat { precision: self.model.precision, index_keys: self.model.index_keys }
    }

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut require = |holds: bool, message: &str| {
            if !holds {
                mistakes.push(message.to_owned());
            }
        };
        let computes = self.role != Role::Router;
        require(!self.name.is_empty(), "name is empty");
        require(!self.model.name.is_empty(), "model.name is empty");
        require(self.model.context_tokens > 0, "model.contextTokens is 0");
        require(self.model.index_top_k != Some(0), "model.indexTopK is 0");
        require(!computes || self.model.path.is_some(), "model.path is missing");
        require(
            self.scheduler.chunk_tokens > 0 && self.scheduler.chunk_tokens.is_multiple_of(128),
            "scheduler.chunkTokens must be a positive multiple of 128",
        );
        require(
            self.scheduler.step_tokens >= self.scheduler.chunk_tokens,
            "scheduler.stepTokens must be at least chunkTokens",
        );
        require(self.scheduler.max_running > 0, "scheduler.maxRunning is 0");
        require(self.admission.time_to_first_token_ms > 0, "admission.timeToFirstTokenMs is 0");
        require(self.admission.max_queued_requests > 0, "admission.maxQueuedRequests is 0");
        require(
            self.admission.prefill_tokens_per_second.is_none_or(|mu| mu.is_finite() && mu > 0.0),
            "admission.prefillTokensPerSecond must be positive",
        );
        require(self.admission.queue_limit_tokens != Some(0), "admission.queueLimitTokens is 0");
        require(self.binding.threads != Some(0), "binding.threads is 0");
        if computes {
            match self.pools {
                None => require(false, "pools are missing"),
                Some(pools) => {
                    require(pools.request_slots > 0, "pools.requestSlots is 0");
                    // A request of the full context must fit, or it would wait for ever.
                    require(
                        u64::from(pools.kv_pages) * PAGE_TOKENS as u64
                            >= u64::from(self.model.context_tokens),
                        "pools.kvPages hold fewer tokens than model.contextTokens",
                    );
                }
            }
        }
        require(self.role != Role::Prefill || self.listen.grpc.is_some(), "a prefill needs listen.grpc");
        mistakes.extend(self.peers.mistakes(self.role));
        mistakes
    }
}

impl PeersConfig {
    /// Lists or discovery, not both, and what the role calls is there.
    fn mistakes(&self, role: Role) -> Vec<String> {
        let listed = !self.prefill.is_empty() || !self.decode.is_empty();
        let calls = matches!(role, Role::Decode | Role::Router);
        let mut mistakes = Vec::new();
        match &self.discovery {
            Some(_) if listed => {
                mistakes.push("peers are listed and discovery is set: leave one out".to_owned());
            }
            Some(discovery) => mistakes.extend(discovery.mistakes(role)),
            None if role == Role::Decode && self.prefill.is_empty() => {
                mistakes.push("a decode needs peers.prefill or peers.discovery".to_owned());
            }
            None if role == Role::Router && self.decode.is_empty() => {
                mistakes.push("a router needs peers.decode or peers.discovery".to_owned());
            }
            None => {}
        }
        if self.discovery.is_some() && !calls {
            mistakes.push(format!("a {role} calls no peers: leave peers.discovery out"));
        }
        mistakes
    }
}

impl DiscoveryConfig {
    fn mistakes(&self, role: Role) -> Vec<String> {
        let names = [
            ("namespace", Some(&self.namespace)),
            ("prefillService", self.prefill_service.as_ref()),
            ("decodeService", Some(&self.decode_service)),
        ];
        let wrong = names.into_iter().filter(|(_, name)| name.is_some_and(|name| !is_dns_label(name)));
        let mut mistakes: Vec<String> =
            wrong.map(|(field, _)| format!("peers.discovery.{field} is no DNS label")).collect();
        if role == Role::Decode && self.prefill_service.is_none() {
            mistakes.push("a decode needs peers.discovery.prefillService".to_owned());
        }
        if self.http_port == 0 || self.grpc_port == 0 {
            mistakes.push("peers.discovery: port 0 is none that can be called".to_owned());
        }
        mistakes
    }
}

/// RFC 1123, as Kubernetes names namespaces and Services.
fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: &str = r#"{
        "name": "needle-decode-0", "role": "decode",
        "model": {"name": "needle", "path": "/models/needle", "contextTokens": 32768},
        "peers": {"prefill": [{"grpc": "127.0.0.1:9000"}]},
        "pools": {"kvPages": 512, "requestSlots": 64}
    }"#;

    #[test]
    fn a_minimal_decode_is_accepted_and_survives_a_round_trip() {
        let config = EngineConfig::from_json(DECODE).unwrap();
        assert_eq!(config.model.precision, Precision::Sim);
        let again = EngineConfig::from_json(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(config, again);
    }

    /// [`DECODE`] with other peers.
    fn decode_with(peers: &str) -> Result<EngineConfig, ConfigError> {
        EngineConfig::from_json(&DECODE.replace(r#"{"prefill": [{"grpc": "127.0.0.1:9000"}]}"#, peers))
    }

    #[test]
    fn peers_are_listed_or_found_and_never_both() {
        let found =
            r#""discovery": {"namespace": "ns", "prefillService": "x-prefill", "decodeService": "x-decode"}"#;
        let config = decode_with(&format!("{{{found}}}")).unwrap();
        let discovery = config.peers.discovery.clone().unwrap();
        assert_eq!((discovery.http_port, discovery.grpc_port), (8000, 9000));
        assert_eq!(EngineConfig::from_json(&serde_json::to_string(&config).unwrap()).unwrap(), config);
        let both = format!(r#"{{"prefill": [{{"grpc": "a:1"}}], {found}}}"#);
        assert!(decode_with(&both).unwrap_err().to_string().contains("leave one out"));
        let neither = decode_with("{}").unwrap_err().to_string();
        assert!(neither.contains("peers.prefill or peers.discovery"), "{neither}");
    }

    #[test]
    fn a_decode_that_finds_its_peers_needs_the_name_of_the_prefills_and_names_are_labels() {
        let discovery =
            |more: &str| format!(r#"{{"discovery": {{"decodeService": "d", "namespace": {more}}}}}"#);
        let error = decode_with(&discovery(r#""ns""#)).unwrap_err().to_string();
        assert!(error.contains("prefillService"), "{error}");
        for bad in ["", "-a", "a-", "a.b", "A", &"x".repeat(64)] {
            let error = decode_with(&discovery(&format!(r#""{bad}""#))).unwrap_err().to_string();
            assert!(error.contains("discovery.namespace"), "{bad}: {error}");
        }
        let error = decode_with(&discovery(r#""ns", "prefillService": "p", "grpcPort": 0"#)).unwrap_err();
        assert!(error.to_string().contains("port 0"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let text = DECODE.replace("\"peers\"", "\"pears\"");
        let error = EngineConfig::from_json(&text).unwrap_err().to_string();
        assert!(error.contains("pears") && error.contains("line"), "{error}");
    }

    #[test]
    fn all_mistakes_are_reported_together() {
        let text = DECODE
            .replace("\"kvPages\": 512", "\"kvPages\": 1")
            .replace("[{\"grpc\": \"127.0.0.1:9000\"}]", "[]");
        let error = EngineConfig::from_json(&text).unwrap_err().to_string();
        assert!(error.contains("kvPages") && error.contains("peers.prefill"), "{error}");
    }
}
