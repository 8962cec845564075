//! The one configuration file of an engine process: the planner's side writes it, `fathom-engine --config` reads it.
//! In: JSON. Out: a checked [`EngineConfig`], or every mistake at once.
//! Never: environment variables, defaults that depend on the machine.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::admission::{DEFAULT_MAX_QUEUED_REQUESTS, DEFAULT_TIME_TO_FIRST_TOKEN_S};
use crate::memory::{CacheFormat, IndexKeyFormat, PAGE_TOKENS, Precision};

/// What running requests get after SIGTERM, when nothing is said.
pub const DEFAULT_DRAIN_TIMEOUT_MS: u64 = 30_000;

/// How long a request may take, when nothing is said.
pub const DEFAULT_REQUEST_TIMEOUT_MS: u64 = 600_000;

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

/// Decode lists prefills, the router lists both. `host:port` each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeersConfig {
    #[serde(default)]
    pub prefill: Vec<PrefillPeer>,
    /// HTTP addresses.
    #[serde(default)]
    pub decode: Vec<String>,
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
    /// Compute threads; absent = the CPUs the process may use.
    pub threads: Option<u32>,
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
        match self.role {
            Role::Prefill => require(self.listen.grpc.is_some(), "a prefill needs listen.grpc"),
            Role::Decode => require(!self.peers.prefill.is_empty(), "a decode needs peers.prefill"),
            Role::Router => require(!self.peers.decode.is_empty(), "a router needs peers.decode"),
            Role::Unified => {}
        }
        mistakes
    }
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
