//! Workers that die, hang or lie, and clients that leave.

use std::time::Instant;

use super::client::{Connection, find};
use super::mock::{End, Script, json_answer};
use super::*;

fn none(_: &mut EngineConfig) {}

fn events(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("data: {{\"n\":{number}}}\n\n")).collect()
}

/// The error of an event that stands alone behind `before`.
fn error_after(body: &str, before: &str) -> serde_json::Value {
    let event =
        body.strip_prefix(before).unwrap_or_else(|| panic!("{body:?} does not begin with {before:?}"));
    let data = event.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
    assert!(!data.contains('\n'), "{data:?}");
    serde_json::from_str::<serde_json::Value>(data).unwrap()["error"].clone()
}

/// S07
#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_event_and_a_broken_connection() {
    let bench = Bench::start(1, none).await;
    let pieces = events(5);
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    bench.decode().streams(&pieces, End::Kill);
    let exchange = bench.chat("{}").await;
    assert!(!exchange.complete);
    assert_eq!(error_after(&exchange.text(), &pieces.concat())["code"], 502);
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"broken\"} 1").await);
    let failures = "fathom_router_upstream_failures_total{role=\"decode\",kind=\"broken\"} 1";
    assert!(bench.metric(failures).await);
}

#[tokio::test]
async fn an_event_that_was_cut_is_closed_before_the_error() {
    let bench = Bench::start(1, none).await;
    bench.decode().streams(&["data: {\"a\":1}\n\n", "data: {\"b"], End::Kill);
    let exchange = bench.chat("{}").await;
    error_after(&exchange.text(), "data: {\"a\":1}\n\ndata: {\"b\n\n");
    assert!(!exchange.complete);
}

#[tokio::test]
async fn a_stream_that_breaks_after_its_end_marker_is_whole() {
    let bench = Bench::start(1, none).await;
    bench.decode().streams(&["data: 1\n\n", "data: [DONE]\n\n"], End::Kill);
    let exchange = bench.chat("{}").await;
    assert_eq!((exchange.text().as_str(), exchange.complete), ("data: 1\n\ndata: [DONE]\n\n", true));
}

#[tokio::test]
async fn the_decodes_own_error_event_is_not_followed_by_another() {
    let bench = Bench::start(1, none).await;
    let own = "data: {\"error\":{\"code\":500}}\n\n";
    bench.decode().streams(&["data: 1\n\n", own], End::Kill);
    let exchange = bench.chat("{}").await;
    assert_eq!((exchange.text(), exchange.complete), (format!("data: 1\n\n{own}"), false));
}

#[tokio::test]
async fn a_json_answer_that_breaks_is_cut_and_nothing_is_added() {
    let bench = Bench::start(1, none).await;
    let pieces = vec![b"{\"a\":".to_vec()];
    bench.decode().does(Script::Pieces { content_type: "application/json", pieces, end: End::Kill });
    let exchange = bench.chat("{}").await;
    assert!(!exchange.complete && b"{\"a\":".starts_with(&exchange.body), "{exchange:?}");
    bench.settles().await;
}

#[tokio::test]
async fn a_decode_that_dies_before_it_answers_is_502_and_not_asked_again() {
    let bench = Bench::start(2, none).await;
    bench.decodes.iter().for_each(|decode| decode.does(Script::Close));
    let exchange = bench.chat("{}").await;
    assert_eq!((exchange.status, &exchange.json()["error"]["code"]), (502, &"bad_gateway".into()));
    assert_eq!(bench.decodes.iter().map(Mock::count).sum::<usize>(), 1);
    bench.settles().await;
}

#[tokio::test]
async fn no_request_is_lost_when_a_decode_cannot_be_reached() {
    let mut bench = Bench::start(2, none).await;
    bench.decodes[0].die().await;
    for _ in 0..20 {
        assert_eq!(bench.chat("{}").await.status, 200);
    }
    assert_eq!(bench.decodes[1].count(), 20);
}

#[tokio::test]
async fn a_lone_decode_that_cannot_be_reached_is_an_error_at_once_and_used_when_back() {
    let mut bench = Bench::start(1, none).await;
    bench.decodes[0].die().await;
    let started = Instant::now();
    let exchange = bench.chat("{}").await;
    assert!(matches!(exchange.status, 502 | 503), "{exchange:?}");
    assert!(started.elapsed() < Duration::from_secs(2));

    bench.decodes[0].come_back().await;
    let back = Instant::now();
    eventually(|| async { bench.chat("{}").await.status == 200 }).await;
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_is_known_to_the_decode_at_once() {
    let bench = Bench::start(1, none).await;
    bench.decode().does(Script::Silence);
    let mut connection = Connection::open(bench.address).await;
    connection.send_chat("{}").await;
    eventually(|| async { bench.decode().count() == 1 }).await;
    drop(connection);
    eventually(|| async { bench.decode().left() == 1 }).await;
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"client_gone\"} 1").await);
}

/// S70
#[tokio::test]
async fn a_client_that_leaves_within_a_stream_is_known_to_the_decode_at_once() {
    let bench = Bench::start(1, none).await;
    bench.decode().streams(&["data: 1\n\n"], End::WhenReleased);
    let mut connection = Connection::open(bench.address).await;
    connection.send_chat("{}").await;
    connection.read_head().await;
    connection.read_chunks(|body| find(body, b"1").is_some()).await;
    let left = Instant::now();
    drop(connection);
    eventually(|| async { bench.decode().left() == 1 }).await;
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"client_gone\"} 1").await);
}

#[tokio::test]
async fn a_request_past_its_deadline_is_504_or_an_error_event() {
    let bench = Bench::start(1, |config| config.request_timeout_ms = 300).await;
    bench.decode().does(Script::Silence);
    let exchange = bench.chat("{}").await;
    assert_eq!((exchange.status, &exchange.json()["error"]["code"]), (504, &"timeout".into()));

    bench.decode().streams(&["data: 1\n\n"], End::WhenReleased);
    let exchange = bench.chat("{}").await;
    assert_eq!(error_after(&exchange.text(), "data: 1\n\n")["code"], 504);
    assert!(!exchange.complete);
    eventually(|| async { bench.decode().left() == 2 }).await;
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"timeout\"} 2").await);
}

/// S65
#[tokio::test]
async fn failing_requests_never_empty_the_fleet() {
    let bench = Bench::start(1, none).await;
    for status in [400, 429, 500] {
        bench.decode().answers(mock::answer(status, "application/json", &[], "{}"));
        for _ in 0..30 {
            assert_eq!(bench.chat("{}").await.status, status);
        }
    }
    bench.decode().answers(json_answer("{}"));
    assert_eq!(bench.chat("{}").await.status, 200);
}

#[tokio::test]
async fn an_address_that_is_none_is_named() {
    let (decodes, prefill) = (vec![Mock::start().await], Mock::start().await);
    for bad in ["", "host", "host:port", "user@host:1", "http://h:1", "a b:1"] {
        let mut config = config(&decodes, &prefill);
        config.peers.decode = vec![bad.to_owned()];
        let error = crate::role::router::Router::new(&config).unwrap_err().to_string();
        assert!(error.contains("peers.decode") && error.contains(bad), "{error}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_an_error() {
    let (decodes, prefill) = (vec![Mock::start().await], Mock::start().await);
    let mut config = config(&decodes, &prefill);
    config.listen.http = prefill.address().parse().unwrap();
    let tokens = (CancellationToken::new(), CancellationToken::new());
    let error =
        crate::role::router::serve(&config, Access::InCluster, tokens.0, tokens.1, |_| {}).await.unwrap_err();
    assert!(error.to_string().contains(prefill.address()), "{error}");
}
