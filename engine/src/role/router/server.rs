//! Accepts clients, serves their connections, and drains.
//! In: a listener, the signals to stop. Out: nothing left running.
//! Never: a connection that nobody owns; a drain without an end.
//! While it drains it still accepts, and answers 503 with `Connection: close`: a load balancer that has not heard yet
//! gets an answer, not a refused connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::socket::{ClientSocket, FlushSignal};
use super::upstream::BUFFER_BYTES;
use super::{Router, proxy};

/// Open client connections; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 16_384;

/// An idle connection is kept this long: longer than the idle time of the usual clients (at most 90 s), so that they,
/// who know when they send, close first.
const IDLE_TIMEOUT: Duration = Duration::from_mins(2);

/// Pause after a failed accept: the usual cause, no free file descriptor, needs time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the end of a drain leaves for error events to reach their clients.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// When to stop, and how long running requests get.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) stop: CancellationToken,
    pub(super) hurry: CancellationToken,
    pub(super) timeout: Duration,
}

impl Drain {
    /// Ends when the router may stop.
    async fn run(self, router: &Router) {
        self.stop.cancelled().await;
        router.draining.store(true, Ordering::Relaxed);
        router.in_flight.close();
        tracing::info!(running = router.in_flight.len(), "draining");
        let last_words = LAST_WORDS.min(self.timeout / 4);
        tokio::select! {
            () = router.in_flight.wait() => return,
            () = self.hurry.cancelled() => {}
            () = tokio::time::sleep(self.timeout - last_words) => {}
        }
        tracing::warn!(running = router.in_flight.len(), "the drain's time is over: ending what still runs");
        router.cut.cancel();
        let _all_ended = tokio::time::timeout(last_words, router.in_flight.wait()).await;
    }
}

pub(super) async fn serve(router: &Arc<Router>, listener: TcpListener, drain: Drain) {
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut drained = std::pin::pin!(drain.run(router));
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(Arc::clone(router), stream, closing.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => report_panic(ended),
            () = &mut drained => break,
        }
    }
    drop(listener);
    closing.cancel();
    let all_closed = async {
        while let Some(ended) = connections.join_next().await {
            report_panic(ended);
        }
    };
    let _in_time = tokio::time::timeout(LAST_WORDS, all_closed).await;
    connections.shutdown().await;
}

async fn connection(router: Arc<Router>, stream: TcpStream, closing: CancellationToken) {
    // Without it the first event of a stream waits for the client's delayed acknowledgement of the head: 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "the client left at once");
        return;
    }
    let flush = Arc::new(FlushSignal::default());
    let service = {
        let flush = Arc::clone(&flush);
        service_fn(move |request| {
            let (router, flush) = (Arc::clone(&router), Arc::clone(&flush));
            async move { Ok::<_, Infallible>(proxy::handle(router, flush, request).await) }
        })
    };
    let socket = TokioIo::new(ClientSocket::new(stream, flush));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(socket, service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        // A client that left, or an answer that was cut: both are counted where they happened.
        tracing::debug!(%error, "connection ended");
    }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}
