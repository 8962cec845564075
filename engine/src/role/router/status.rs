//! What the router says of itself: alive, ready, metrics, who its workers are.
//! In: the fleet at this moment. Out: responses.
//! Never: a question to a worker: these answers do not wait.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::Router;
use super::answer::{self, Answer};
use super::metrics::Snapshot;
use crate::ApiError;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn alive() -> Response<Answer> {
    answer::own(StatusCode::OK, "text/plain", Bytes::from_static(b"ok\n"))
}

/// Ready while a decode and a prefill of one revision are, and no drain has begun; otherwise what is missing.
pub(super) fn ready(router: &Router) -> Response<Answer> {
    if router.draining() {
        return answer::error(&ApiError::unavailable("the router is shutting down"));
    }
    match router.fleet.ready() {
        Ok(()) => answer::own(StatusCode::OK, "text/plain", Bytes::from_static(b"ready\n")),
        Err(error) => {
            let why = router.discovery.trouble().map_or_else(String::new, |why| format!("; {why}"));
            answer::error(&ApiError::unavailable(format!("{error}{why}")))
        }
    }
}

pub(super) fn metrics(router: &Router) -> Response<Answer> {
    let (backlog_tokens, limits) = router.fleet.backlog();
    let workers = count_by_state(router);
    let running = router.in_flight.len();
    let discovery = router.discovery.seen();
    let unseated = router.fleet.unseated();
    let now = Snapshot { running, backlog_tokens, limit_tokens: limits.tokens, workers, discovery, unseated };
    answer::own(StatusCode::OK, OPEN_METRICS, Bytes::from(router.metrics.text(&now)))
}

/// Every role and state, also those with no worker: a series that vanishes would keep its last value.
fn count_by_state(router: &Router) -> Vec<(&'static str, &'static str, usize)> {
    let mut counts = BTreeMap::new();
    for role in ["decode", "prefill"] {
        for state in engine_router::WorkerState::ALL {
            counts.insert((role, state.label()), 0_usize);
        }
    }
    for worker in router.fleet.status() {
        *counts.entry((worker.peer.role(), worker.state.label())).or_default() += 1;
    }
    counts.into_iter().map(|((role, state), count)| (role, state, count)).collect()
}

pub(super) fn server_info(router: &Router) -> Response<Answer> {
    let workers: Vec<serde_json::Value> = router.fleet.status().iter().map(worker_json).collect();
    let (backlog_tokens, limits) = router.fleet.backlog();
    let info = json!({
        "name": router.name,
        "role": "router",
        "version": env!("CARGO_PKG_VERSION"),
        "draining": router.draining(),
        "running": router.in_flight.len(),
        "admission": {
            "backlogTokens": backlog_tokens,
            "limitTokens": limits.tokens,
            "maxQueuedRequests": limits.requests,
            "prefillTokensPerSecond": limits.tokens_per_second,
        },
        "discovery": discovery_json(router),
        "workers": workers,
    });
    answer::json(StatusCode::OK, &info)
}

fn discovery_json(router: &Router) -> serde_json::Value {
    let seen = router.discovery.seen();
    json!({
        "source": seen.source,
        "synced": seen.stale.is_none(),
        "staleSeconds": seen.stale.map_or(0, |stale| stale.as_secs()),
        "failures": seen.failures,
        "error": router.discovery.trouble(),
        "unseated": router.fleet.unseated(),
    })
}

fn worker_json(worker: &super::fleet::WorkerStatus) -> serde_json::Value {
    json!({
        "role": worker.peer.role(),
        "address": worker.peer.address(),
        "state": worker.state.label(),
        "revision": worker.revision.as_deref(),
        "backlogTokens": worker.load.backlog_tokens,
        "waiting": worker.load.waiting,
        "running": worker.load.running,
    })
}
