//! The process: every task has a name and is watched; when one ends before it should, the process ends and says which.
//! In: [`Config`]. Out: an exit code. Never: a task that nobody waits for; a reconcile before what it would look at is
//! known (lists, kinds that are served, the agents' first reports): it would take the unknown for missing.

mod certificates;
mod parts;
mod tasks;

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::chain::chain;
use crate::config::Config;
use parts::Parts;
use tasks::Tasks;

/// How long work under way may take after the stop, and giving the Lease back.
const WORK_GRACE: Duration = Duration::from_secs(12);
const LEASE_GRACE: Duration = Duration::from_secs(5);

/// Why the process ended before it was told to.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot reach an API server: no usable kubeconfig, and not in a pod")]
    Config(#[from] kube::config::InferConfigError),
    #[error("cannot make a client for the API server")]
    Client(#[from] kube::Error),
    #[error("cannot listen on {address}")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot wait for signals")]
    Signals(#[source] std::io::Error),
    #[error("{0} ended before the process; this is a bug, or a panic that is logged above")]
    TaskEnded(String),
}

/// Runs the operator until it is told to stop.
pub fn main(config: Config) -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _faults = armed();
    start_log(&config.log);
    // The only error is that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(&error), "the operator ends");
            ExitCode::FAILURE
        }
    }
}

/// A fault point that panics ends the process, as a crash would: a panic of one pass alone is contained.
#[cfg(feature = "failpoints")]
fn armed() -> fail::FailScenario<'static> {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    fail::FailScenario::setup()
}

async fn run(config: Config) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let (stop, stop_lease) = (CancellationToken::new(), CancellationToken::new());
    let (mut lasting, mut work, mut lease) = (Tasks::default(), Tasks::default(), Tasks::default());
    let parts = Parts::new(&config, &mut lasting).await?;
    parts.start_lasting(&config, &mut lasting, &stop).await?;
    lasting.spawn("certificates of node agents", parts.certificates(&config));
    work.spawn("reconciling", parts.reconciling(stop.clone()));
    lease.spawn("the Lease", parts.lease(&config, stop_lease.clone()));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespace = config.namespace, "the operator runs");
    let early = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        name = lasting.ended() => Some(name),
        name = work.ended() => Some(name),
        name = lease.ended() => Some(name),
    };
    // First the work, then the Lease: the next operator finds nothing half done by two.
    tracing::info!("stopping: no new work");
    stop.cancel();
    if !work.is_empty() && tokio::time::timeout(WORK_GRACE, work.ended()).await.is_err() {
        tracing::warn!("work did not end in time");
    }
    work.shutdown().await;
    stop_lease.cancel();
    if !lease.is_empty() && tokio::time::timeout(LEASE_GRACE, lease.ended()).await.is_err() {
        tracing::warn!("the Lease could not be given back in time; it runs out");
    }
    lease.shutdown().await;
    lasting.shutdown().await;
    early.map_or(Ok(()), |name| Err(RunError::TaskEnded(name)))
}

fn start_log(filter: &str) {
    let (filter, mistake) = match EnvFilter::try_new(filter) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    if let Some(error) = mistake {
        tracing::warn!(%error, "--log is not understood; logging info");
    }
}
