//! The router: forwards a request's bytes to a decode and names the prefill that the decode shall use.
//! In: HTTP/1 requests, the list of workers or a cluster's endpoints, readiness and backlog of the workers. Out: the decode's answers, byte for byte.
//! Never: a body parsed, a 429 retried, an answer buffered.
//! A request that fails before its first byte gets an error status; one that fails later gets an error event and a
//! connection that breaks, so that neither a parser nor the transport can take a cut answer for a whole one.

mod answer;
mod body;
mod bounds;
mod discovery;
mod fleet;
mod headers;
mod metrics;
mod poll;
mod proxy;
mod record;
mod relay;
mod roster;
mod routes;
mod server;
mod socket;
mod sse;
mod status;
mod upstream;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine_spec::config::EngineConfig;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use discovery::{Access, Discovery};
use fleet::Fleet;
use metrics::Metrics;
use roster::Roster;
use upstream::Upstream;

/// Why the router cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    #[error("`{address}` in {field} is not an address: expected host:port")]
    Address { field: &'static str, address: String },
    #[error("cannot listen on {address}; choose another address, or port 0 for a free one")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot wait for signals")]
    Signals { source: std::io::Error },
}

/// Everything that requests share.
#[derive(Debug)]
struct Router {
    name: String,
    roster: watch::Sender<Roster>,
    discovery: Discovery,
    fleet: Fleet,
    metrics: Metrics,
    upstream: Upstream,
    bodies: body::Budget,
    ids: record::RequestIds,
    request_timeout: Duration,
    draining: AtomicBool,
    /// Cancelled when the drain's time is over: what still runs ends with an error.
    cut: CancellationToken,
    /// One token for every request that has not ended.
    in_flight: TaskTracker,
}

impl Router {
    fn new(config: &EngineConfig) -> Result<Self, RouterError> {
        Ok(Self {
            name: config.name.clone(),
            roster: watch::Sender::new(Roster::listed(&config.peers)?),
            discovery: Discovery::new(config.peers.discovery.is_some()),
            fleet: Fleet::new(config),
            metrics: Metrics::new(),
            upstream: Upstream::new(),
            bodies: body::Budget::new(),
            ids: record::RequestIds::new(),
            request_timeout: Duration::from_millis(config.request_timeout_ms),
            draining: AtomicBool::new(false),
            cut: CancellationToken::new(),
            in_flight: TaskTracker::new(),
        })
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends the drain. Prints the `listening` line on stdout.
///
/// # Errors
/// [`RouterError`] when an address is wrong or taken, or signals cannot be waited for.
pub async fn run(config: EngineConfig) -> Result<(), RouterError> {
    let (stop, hurry) = (CancellationToken::new(), CancellationToken::new());
    let signals = |kind| signal(kind).map_err(|source| RouterError::Signals { source });
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let watch_signals = async {
        for step in [&stop, &hurry] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            step.cancel();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = serve(&config, Access::InCluster, stop.clone(), hurry.clone(), announce) => result,
        () = watch_signals => Ok(()),
    }
}

/// Serves until `stop`, then drains until all is done, the configured time has passed, or `hurry`.
async fn serve(
    config: &EngineConfig,
    access: Access,
    stop: CancellationToken,
    hurry: CancellationToken,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), RouterError> {
    crate::binding::raise_file_limit();
    let router = Arc::new(Router::new(config)?);
    let address = config.listen.http;
    let listener =
        TcpListener::bind(address).await.map_err(|source| RouterError::Listen { address, source })?;
    let bound = listener.local_addr().map_err(|source| RouterError::Listen { address, source })?;
    let mut tasks = JoinSet::new();
    tasks.spawn(poll::keep(Arc::clone(&router), router.roster.subscribe()));
    if let Some(discovery) = config.peers.discovery.clone() {
        tasks.spawn(discovery::follow(Arc::clone(&router), discovery, access));
    }
    listening(bound);
    tracing::info!(name = router.name, %bound, "listening");
    let drain = server::Drain { stop, hurry, timeout: Duration::from_millis(config.drain_timeout_ms) };
    server::serve(&router, listener, drain).await;
    tasks.shutdown().await;
    router.upstream.close().await;
    Ok(())
}

/// The line by which a supervisor learns the address.
fn announce(address: SocketAddr) {
    let line = serde_json::json!({
        "event": "listening", "role": "router", "http": address.to_string(), "grpc": null,
    });
    let mut stdout = std::io::stdout().lock();
    // Nobody may be reading any more; that is no reason not to serve.
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "the listening line could not be written");
    }
}

#[cfg(test)]
mod tests;
