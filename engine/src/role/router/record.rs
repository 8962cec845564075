//! One request's end, counted and logged exactly once, however it comes.
//! In: what is learned on the way. Out: a counter, a log line, the request's place among those in flight.
//! A request whose record is dropped before anyone said how it ended was left by its client: its future is dropped then.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::header::HeaderValue;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Router;
use super::fleet::Peer;
use super::metrics::Outcome;

/// Makes request ids that are unique among all routers without asking anybody.
#[derive(Debug)]
pub(super) struct RequestIds {
    key: RandomState,
    next: AtomicU64,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        Self { key: RandomState::new(), next: AtomicU64::new(0) }
    }

    pub(super) fn make(&self) -> HeaderValue {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!("req-{:016x}", self.key.hash_one(number));
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("req-unknown"))
    }
}

#[derive(Debug)]
pub(super) struct Record {
    router: Arc<Router>,
    pub(super) request_id: HeaderValue,
    started: Instant,
    outcome: Outcome,
    decode: Option<Arc<Peer>>,
    _in_flight: TaskTrackerToken,
}

impl Record {
    pub(super) fn begin(router: &Arc<Router>, request_id: HeaderValue) -> Self {
        Self {
            router: Arc::clone(router),
            request_id,
            started: Instant::now(),
            outcome: Outcome::ClientGone,
            decode: None,
            _in_flight: router.in_flight.token(),
        }
    }

    pub(super) fn sent_to(&mut self, decode: &Arc<Peer>) {
        self.decode = Some(Arc::clone(decode));
    }

    pub(super) fn ends(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.router.metrics.ended(self.outcome);
        tracing::info!(
            request_id = self.request_id.to_str().unwrap_or_default(),
            outcome = self.outcome.label(),
            decode = self.decode.as_ref().map(|peer| peer.address()),
            ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request ended"
        );
    }
}
