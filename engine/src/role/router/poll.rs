//! Asks every worker whether it is ready, and how long its queue is.
//! In: `/readyz` and `/server_info` of the workers. Out: health and reports in the fleet.
//! A failure that a request met is followed by a poll at once, so a worker that is back is used within the period.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine_router::PollResult;
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Router;
use super::fleet::{Peer, Report, SelfReport};
use super::roster::Roster;
use super::upstream;

const PERIOD: Duration = Duration::from_millis(500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Many failures at once make one poll, not many.
const SHORTEST_PERIOD: Duration = Duration::from_millis(50);
/// Larger answers are not ours.
const ANSWER_BYTES: usize = 256 << 10;
/// A worker that found no seat is offered one again so often: a seat gets free when a request ends.
const SEAT_AGAIN: Duration = Duration::from_secs(1);

/// Seats whoever is on the roster, and polls each one until it leaves: a newcomer at once.
pub(super) async fn keep(router: Arc<Router>, mut roster: watch::Receiver<Roster>) {
    let mut polls = JoinSet::new();
    loop {
        let now = roster.borrow_and_update().clone();
        for peer in router.fleet.adopt(&now) {
            if peer.http().is_some() {
                polls.spawn(poll_while_there(Arc::clone(&router), peer));
            }
        }
        let unseated = router.fleet.unseated() > 0;
        loop {
            tokio::select! {
                changed = roster.changed() => match changed {
                    Ok(()) => break,
                    // A list never changes: what is left is to own the polls.
                    Err(_) => std::future::pending::<()>().await,
                },
                () = tokio::time::sleep(SEAT_AGAIN), if unseated => break,
                Some(ended) = polls.join_next() => report_panic(ended),
            }
        }
    }
}

async fn poll_while_there(router: Arc<Router>, peer: Arc<Peer>) {
    let gone = peer.gone.clone();
    // `None`: it left.
    let _left = gone.run_until_cancelled(watch_worker(router, peer)).await;
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the poll of a worker panicked");
    }
}

async fn watch_worker(router: Arc<Router>, peer: Arc<Peer>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = peer.suspicion.notified() => tokio::time::sleep(SHORTEST_PERIOD).await,
        }
        match ask_ready(&router, &peer).await {
            PollResult::Ready => {
                if let Some(poll) = router.fleet.poll_begins(&peer) {
                    let said = ask_report(&router, &peer).await;
                    router.fleet.polled_ready(&peer, poll, said);
                }
            }
            result @ (PollResult::NotReady | PollResult::Unreachable | PollResult::Slow { .. }) => {
                router.fleet.polled(&peer, result);
            }
        }
    }
}

async fn ask_ready(router: &Router, peer: &Peer) -> PollResult {
    let pieces_before = peer.answer_pieces();
    match tokio::time::timeout(ANSWER_TIMEOUT, get(router, peer, "/readyz")).await {
        Ok(Some((StatusCode::OK, _))) => PollResult::Ready,
        Ok(Some(_)) => PollResult::NotReady,
        Ok(None) => PollResult::Unreachable,
        Err(_) => PollResult::Slow { answers_flow: peer.answer_pieces() != pieces_before },
    }
}

async fn ask_report(router: &Router, peer: &Peer) -> Option<SelfReport> {
    let asked = tokio::time::timeout(ANSWER_TIMEOUT, get(router, peer, "/server_info")).await;
    let (status, body) = asked.ok()??;
    (status == StatusCode::OK).then(|| parse_report(&body)).flatten()
}

async fn get(router: &Router, peer: &Peer, path: &'static str) -> Option<(StatusCode, Bytes)> {
    let authority = peer.http()?;
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
    #[serde(default)]
    revision: String,
    #[serde(default)]
    admission: Admission,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Admission {
    limit_tokens: Option<u64>,
    backlog_tokens: Option<u64>,
    prefill_tokens_per_second: Option<f64>,
}

fn parse_report(body: &[u8]) -> Option<SelfReport> {
    let info: ServerInfo = serde_json::from_slice(body).ok()?;
    let admission = info.admission;
    let speed = admission.prefill_tokens_per_second;
    let admission = Report {
        limit_tokens: admission.limit_tokens,
        backlog_tokens: admission.backlog_tokens,
        tokens_per_second: speed.filter(|speed| speed.is_finite() && *speed > 0.0),
    };
    Some(SelfReport { revision: info.revision, admission })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_whatever_stands_beside_it() {
        let text = br#"{"role":"decode","revision":"abc","admission":{"limitTokens":25000,"backlogTokens":7,
            "prefillTokensPerSecond":3300.5,"more":null},"x":[]}"#;
        let admission =
            Report { limit_tokens: Some(25_000), backlog_tokens: Some(7), tokens_per_second: Some(3300.5) };
        assert_eq!(parse_report(text), Some(SelfReport { revision: "abc".to_owned(), admission }));
        for silent in [&b"{}"[..], br#"{"admission":{"limitTokens":null,"prefillTokensPerSecond":-1}}"#] {
            assert_eq!(parse_report(silent), Some(SelfReport::default()));
        }
        for bad in [&b"null"[..], b"", b"7", br#"{"admission":{"limitTokens":-4}}"#, b"\xff"] {
            assert_eq!(parse_report(bad), None, "{bad:?}");
        }
    }
}
