//! Accepts connections and serves a router on them until told to stop.
//! In: a bound listener. Out: nothing but the end.
//! Never: more than [`MAX_CONNECTIONS`], a task that outlives the server, Nagle's delay.
//! A client that closes its connection drops the handler or the body that it was waiting for: this is how every
//! disconnect becomes a cancel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Connections served at once; more wait in the kernel's queue.
pub const MAX_CONNECTIONS: usize = 4096;

/// Idle connections are closed after this; longer than the 90 s after which pooled clients give theirs up.
const IDLE: Duration = Duration::from_secs(120);

/// Bytes that one connection buffers for its reader before the answer waits.
const BUFFER: usize = 64 << 10;

/// Connections that have not ended so long after the stop are cut.
pub const GRACE: Duration = Duration::from_secs(2);

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[error("listening on {address} ({what})")]
pub struct BindError {
    pub what: &'static str,
    pub address: SocketAddr,
    pub source: std::io::Error,
}

/// # Errors
/// The address is in use, or not of this machine.
pub async fn bind(what: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { what, address, source })
}

/// Serves until `stop`, then lets responses end for a moment.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Some(place) = {
        let places = Arc::clone(&places);
        stop.run_until_cancelled(places.acquire_owned()).await
    } {
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { break };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let connection = serve_connection(stream, router.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, or the peer was quicker: both pass.
                tracing::warn!(%error, "accept failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if timeout(GRACE, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "cutting connections");
    }
}

async fn serve_connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
