//! The end: what runs may finish, what comes is sent away, and there is always an end.

use super::client::{Connection, get};
use super::mock::End;
use super::*;

async fn streaming(bench: &Bench) -> Connection {
    bench.decode().streams(&["data: 1\n\n"], End::WhenReleased);
    let mut connection = Connection::open(bench.address).await;
    connection.send_chat("{}").await;
    connection.read_head().await;
    connection.read_chunks(|body| body.ends_with(b"\n\n")).await;
    connection
}

/// S63, S68
#[tokio::test]
async fn a_drain_lets_streams_finish_and_sends_new_requests_away() {
    let mut bench = Bench::start(1, |_| {}).await;
    let mut running = streaming(&bench).await;
    let mut idle = Connection::open(bench.address).await;
    bench.stop.cancel();
    eventually(|| async { get(bench.address, "/readyz").await.status == 503 }).await;

    idle.send_chat("{}").await;
    for exchange in [bench.chat("{}").await, idle.read_exchange().await] {
        assert_eq!((exchange.status, exchange.header("connection")), (503, Some("close")));
    }
    bench.decode().release(1);
    assert!(running.read_chunks(|_| false).await.1);
    bench.ended().await;
}

#[tokio::test]
async fn what_still_runs_when_the_drain_is_over_gets_an_error_event() {
    let mut bench = Bench::start(1, |config| config.drain_timeout_ms = 400).await;
    let mut running = streaming(&bench).await;
    bench.stop.cancel();
    let (body, complete) = running.read_chunks(|_| false).await;
    let text = String::from_utf8(body).unwrap();
    assert!(text.starts_with("data: {\"error\":") && text.ends_with("}\n\n") && !complete, "{text:?}");
    eventually(|| async { bench.decode().left() == 1 }).await;
    bench.ended().await;
}

#[tokio::test]
async fn a_second_signal_ends_the_drain() {
    let mut bench = Bench::start(1, |_| {}).await;
    let _running = streaming(&bench).await;
    bench.stop.cancel();
    bench.hurry.cancel();
    bench.ended().await;
}

#[tokio::test]
async fn an_idle_router_stops_at_once() {
    let mut bench = Bench::start(1, |_| {}).await;
    let _idle = Connection::open(bench.address).await;
    bench.chat("{}").await;
    bench.stop.cancel();
    bench.ended().await;
}
