//! Asks every worker whether it is ready, and how long its queue is.
//! In: `/readyz` and `/server_info` of the workers. Out: health and reports in the fleet.
//! A failure that a request met is followed by a poll at once, so a worker that is back is used within the period.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use engine_router::PollResult;
use engine_router::admission::Worker;
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Router;
use super::fleet::Report;
use super::upstream;

const PERIOD: Duration = Duration::from_millis(500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Many failures at once make one poll, not many.
const SHORTEST_PERIOD: Duration = Duration::from_millis(50);
/// Larger answers are not ours.
const ANSWER_BYTES: usize = 256 << 10;

/// One task for each worker that has an address to ask.
pub(super) fn start(router: &Arc<Router>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for worker in router.fleet.workers() {
        if router.fleet.peer(worker).http().is_some() {
            tasks.spawn(watch(Arc::clone(router), worker));
        }
    }
    tasks
}

async fn watch(router: Arc<Router>, worker: Worker) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = router.fleet.peer(worker).suspicion.notified() => {
                tokio::time::sleep(SHORTEST_PERIOD).await;
            }
        }
        let result = ask_ready(&router, worker).await;
        router.fleet.polled(worker, result);
        if result == PollResult::Ready {
            let poll = router.fleet.ledger().poll_begins(worker);
            let report = ask_report(&router, worker).await.unwrap_or_default();
            router.fleet.reported(worker, poll, report);
        }
    }
}

async fn ask_ready(router: &Router, worker: Worker) -> PollResult {
    let pieces = || router.fleet.peer(worker).answer_pieces.load(Ordering::Relaxed);
    let pieces_before = pieces();
    match tokio::time::timeout(ANSWER_TIMEOUT, get(router, worker, "/readyz")).await {
        Ok(Some((StatusCode::OK, _))) => PollResult::Ready,
        Ok(Some(_)) => PollResult::NotReady,
        Ok(None) => PollResult::Unreachable,
        Err(_) => PollResult::Slow { answers_flow: pieces() != pieces_before },
    }
}

async fn ask_report(router: &Router, worker: Worker) -> Option<Report> {
    let asked = tokio::time::timeout(ANSWER_TIMEOUT, get(router, worker, "/server_info")).await;
    let (status, body) = asked.ok()??;
    (status == StatusCode::OK).then(|| parse_report(&body)).flatten()
}

async fn get(router: &Router, worker: Worker, path: &'static str) -> Option<(StatusCode, Bytes)> {
    let authority = router.fleet.peer(worker).http()?;
    let mut request = Request::new(Full::default());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = upstream::uri(authority, PathAndQuery::from_static(path));
    let response = router.upstream.send(request).await.ok()?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await.ok()?.to_bytes();
    Some((status, body))
}

/// The part of an engine's `/server_info` that the router needs; the rest is not its business.
#[derive(Debug, Deserialize)]
struct ServerInfo {
    admission: Admission,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Admission {
    limit_tokens: Option<u64>,
    backlog_tokens: Option<u64>,
    prefill_tokens_per_second: Option<f64>,
}

fn parse_report(body: &[u8]) -> Option<Report> {
    let info: ServerInfo = serde_json::from_slice(body).ok()?;
    let admission = info.admission;
    let speed = admission.prefill_tokens_per_second;
    Some(Report {
        limit_tokens: admission.limit_tokens,
        backlog_tokens: admission.backlog_tokens,
        tokens_per_second: speed.filter(|speed| speed.is_finite() && *speed > 0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_whatever_stands_beside_it() {
        let text = br#"{"role":"decode","admission":{"limitTokens":25000,"backlogTokens":7,
            "prefillTokensPerSecond":3300.5,"more":null},"x":[]}"#;
        let expected =
            Report { limit_tokens: Some(25_000), backlog_tokens: Some(7), tokens_per_second: Some(3300.5) };
        assert_eq!(parse_report(text), Some(expected));
        let partial = parse_report(br#"{"admission":{"limitTokens":null,"prefillTokensPerSecond":-1}}"#);
        assert_eq!(partial, Some(Report::default()));
        for bad in [&b"{}"[..], b"", b"[]", br#"{"admission":{"limitTokens":-4}}"#, b"\xff"] {
            assert_eq!(parse_report(bad), None);
        }
    }
}
