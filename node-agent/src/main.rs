//! The node agent's program.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use fathom_node_agent::config::Config;
use fathom_node_agent::run::{Agent, AgentError};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let config = Config::parse();
    let filter = EnvFilter::builder().parse_lossy(&config.log);
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    // The first to install one decides; nobody else does.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // One thread: there is one caller, and a node's CPUs belong to its pods.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(&config));
    // A call into a driver that hangs is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            tracing::error!("{error}{}", source.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

async fn run(config: &Config) -> Result<(), AgentError> {
    let agent = Agent::bind(config, None).await?;
    tracing::info!(grpc = %config.grpc, http = %config.http, "started");
    let stop = CancellationToken::new();
    let told = stop.clone();
    let mut signals = tokio::task::JoinSet::new();
    signals.spawn(async move {
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tracing::info!("told to stop");
            }
            (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "cannot listen to signals"),
        }
        told.cancel();
    });
    agent.run(stop).await
}
