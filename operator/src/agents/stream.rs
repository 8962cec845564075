//! The stream of one agent: dial, watch, and again after a failure.
//! Never: a retry without waiting; a token or a CA older than the connection.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use node_agent_proto::v1::node_facts_client::NodeFactsClient;
use node_agent_proto::v1::{Position, WatchRequest, WatchResponse, watch_response::Event};
use node_agent_proto::{HEARTBEAT_MS, KEEPALIVE_MS, MAX_MESSAGE_BYTES, SERVER_NAME};
use node_facts::NodeFacts;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

use super::{AgentPod, AgentSettings, Agents};
use crate::chain::chain;

/// A handshake with an agent that is there takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Three heartbeats.
const SILENCE: Duration = Duration::from_millis(3 * HEARTBEAT_MS);

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("cannot read the token {path}: {kind}; it comes from a projected volume of this pod")]
    Token { path: String, kind: std::io::ErrorKind },
    #[error("the token in {path} holds characters that no token has")]
    NotAToken { path: String },
    #[error("cannot reach the node agent at {address}: {reason}")]
    Connect { address: std::net::SocketAddr, reason: String },
    #[error("the node agent refused ({code:?}): {message}")]
    Refused { code: tonic::Code, message: String },
    #[error("the node agent said nothing for {} s", SILENCE.as_secs())]
    Silent,
    #[error("the node agent ended the stream")]
    Ended,
    #[error("the node agent sent changes of facts that it never sent")]
    NoSnapshot,
}

/// What an agent has said so far; outlives connections, so that a stream resumes.
#[derive(Debug, Default)]
struct Heard {
    position: Option<Position>,
    facts: Option<NodeFacts>,
}

/// Keeps the stream of one agent for ever; whoever spawned this aborts it.
pub(super) async fn keep(
    pod: AgentPod,
    agents: Agents,
    settings: Arc<AgentSettings>,
    dials: Arc<Semaphore>,
) -> AgentPod {
    let mut heard = Heard::default();
    let mut failures = 0;
    loop {
        let begun = Instant::now();
        let error = match watch(&pod, &agents, &settings, &dials, &mut heard).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        // One that failed at once may do so for ever, one that lasted was interrupted.
        failures = if begun.elapsed() >= settings.longest_retry { 0 } else { failures + 1 };
        let wait = retry_after(&settings, failures, &pod.name);
        if failures <= 1 {
            tracing::info!(agent = pod.name, node = pod.node, %error, "lost a node agent");
        } else {
            tracing::debug!(agent = pod.name, node = pod.node, %error, failures, "no node agent");
        }
        agents.update(|store| store.disconnected(&pod, error.to_string()));
        sleep(wait).await;
    }
}

/// Doubles from the first wait to the longest, up to a quarter less by the pod's name: agents that were lost together do not
/// come back together.
fn retry_after(settings: &AgentSettings, failures: u32, name: &str) -> Duration {
    let doubled = settings.first_retry.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let whole = doubled.min(settings.longest_retry);
    let mut hasher = DefaultHasher::new();
    (name, failures).hash(&mut hasher);
    whole - whole / 4 * u32::try_from(hasher.finish() % 256).unwrap_or(0) / 256
}

enum Never {}

async fn watch(
    pod: &AgentPod,
    agents: &Agents,
    settings: &AgentSettings,
    dials: &Semaphore,
    heard: &mut Heard,
) -> Result<Never, StreamError> {
    let (_connection, mut stream) = open(pod, agents, settings, dials, heard).await?;
    loop {
        let message = timeout(SILENCE, stream.message()).await.map_err(|_| StreamError::Silent)?;
        let message = message.map_err(|status| refused(&status))?.ok_or(StreamError::Ended)?;
        hear(pod, agents, heard, message)?;
    }
}

async fn open(
    pod: &AgentPod,
    agents: &Agents,
    settings: &AgentSettings,
    dials: &Semaphore,
    heard: &Heard,
) -> Result<(Channel, Streaming<WatchResponse>), StreamError> {
    let ca = {
        let mut ca = agents.ca.subscribe();
        // Ends only with the sender, which lives in `agents`.
        let known = ca.wait_for(Option::is_some).await;
        known.ok().and_then(|ca| ca.clone()).unwrap_or_default()
    };
    // The semaphore is never closed.
    let _turn = dials.acquire().await;
    let token = token(settings)?;
    let failed = |reason: String| StreamError::Connect { address: pod.address, reason };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ca)).domain_name(SERVER_NAME);
    let endpoint = Endpoint::from_shared(format!("https://{}", pod.address))
        .and_then(|endpoint| endpoint.tls_config(tls))
        .map_err(|error| failed(chain(&error)))?
        .connect_timeout(PATIENCE)
        .http2_keep_alive_interval(Duration::from_millis(KEEPALIVE_MS))
        .keep_alive_timeout(PATIENCE);
    let channel = timeout(PATIENCE, endpoint.connect())
        .await
        .map_err(|_| failed(format!("no handshake within {} s", PATIENCE.as_secs())))?
        .map_err(|error| failed(chain(&error)))?;
    let mut client = NodeFactsClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut request = Request::new(WatchRequest { last_seen: heard.position.clone() });
    request.metadata_mut().insert("authorization", token);
    let answer = timeout(PATIENCE, client.watch(request)).await.map_err(|_| StreamError::Silent)?;
    Ok((channel, answer.map_err(|status| refused(&status))?.into_inner()))
}

/// Read where it is needed: a projected volume lies in memory.
fn token(settings: &AgentSettings) -> Result<MetadataValue<Ascii>, StreamError> {
    let path = || settings.token_file.display().to_string();
    let token = std::fs::read_to_string(&settings.token_file)
        .map_err(|error| StreamError::Token { path: path(), kind: error.kind() })?;
    let mut value: MetadataValue<Ascii> =
        format!("Bearer {}", token.trim()).parse().map_err(|_| StreamError::NotAToken { path: path() })?;
    value.set_sensitive(true);
    Ok(value)
}

fn hear(
    pod: &AgentPod,
    agents: &Agents,
    heard: &mut Heard,
    message: WatchResponse,
) -> Result<(), StreamError> {
    let age = Duration::from_millis(message.observed.map_or(0, |observed| observed.age_ms));
    match message.event {
        Some(Event::Snapshot(facts)) => heard.facts = Some(node_agent_proto::facts(facts)),
        Some(Event::Changes(changes)) => {
            let facts = heard.facts.as_mut().ok_or(StreamError::NoSnapshot)?;
            node_agent_proto::merge(facts, changes);
        }
        // An event that a newer agent knows tells at least that it is alive.
        Some(Event::Heartbeat(_)) | None => {
            agents.update(|store| store.seen(pod, age, Instant::now()));
            return Ok(());
        }
    }
    heard.position = message.position;
    if let Some(facts) = &heard.facts {
        agents.update(|store| store.put(pod, facts, age, Instant::now()));
    }
    Ok(())
}

fn refused(status: &Status) -> StreamError {
    StreamError::Refused { code: status.code(), message: status.message().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_longest_and_differ_between_agents() {
        let settings = AgentSettings::new("token".into());
        let wait = |failures, name: &str| retry_after(&settings, failures, name);
        assert!(wait(1, "a") <= settings.first_retry && wait(1, "a") >= settings.first_retry * 3 / 4);
        assert!(wait(4, "a") > wait(1, "a"));
        for failures in [7, 8, 40, u32::MAX] {
            let wait = wait(failures, "a");
            assert!(wait <= settings.longest_retry && wait >= settings.longest_retry * 3 / 4);
        }
        let waits: std::collections::BTreeSet<_> = (0..50).map(|n| wait(9, &format!("agent-{n}"))).collect();
        assert!(waits.len() > 25, "{waits:?}");
    }
}
