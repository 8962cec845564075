//! The connections to the workers: a bounded pool, kept for reuse.
//! In: requests with a whole body. Out: responses, or what kind of failure it was.
//! Never: a request sent twice: only one that could not be sent at all may be tried elsewhere.

use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use tokio_util::task::TaskTracker;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Below the shortest keep-alive of the servers in the field (5 s), so that a worker never closes a connection that is
/// just being reused.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Idle connections kept to one worker.
const IDLE_CONNECTIONS: usize = 1024;

/// Buffer of one connection; bounds what a slow reader makes the router hold.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Connections get this long to close at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    connections: TaskTracker,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("no connection could be made")]
    Connect(#[source] hyper_util::client::legacy::Error),
    #[error("the connection broke before the answer began")]
    Broken(#[source] hyper_util::client::legacy::Error),
}

/// Owns the connections' tasks.
#[derive(Debug, Clone)]
struct Tracked(TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        // The handle is not needed: the tracker waits for all.
        let _handle = self.0.spawn(future);
    }
}

impl Upstream {
    pub(super) fn new() -> Self {
        let connections = TaskTracker::new();
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(Tracked(connections.clone()))
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(BUFFER_BYTES)
            .build(connector);
        Self { client, connections }
    }

    /// # Errors
    /// [`SendError`]: whether anything can have reached the worker.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        self.client.request(request).await.map_err(|error| {
            if error.is_connect() { SendError::Connect(error) } else { SendError::Broken(error) }
        })
    }

    /// Waits, within a bound, for the connections to end.
    pub(super) async fn close(&self) {
        self.connections.close();
        // Idle ones end when the pool lets go of them; those that do not are dropped with the runtime.
        let _ended = tokio::time::timeout(CLOSE_TIMEOUT, self.connections.wait()).await;
    }
}

pub(super) fn uri(authority: &Authority, path_and_query: PathAndQuery) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority.clone());
    parts.path_and_query = Some(path_and_query);
    Uri::from_parts(parts).unwrap_or_default()
}
