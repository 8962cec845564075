//! What of a request reaches the decode, and which requests do not.

use super::client::{Connection, get, post, request};
use super::*;

fn none(_: &mut EngineConfig) {}

#[tokio::test]
async fn the_decode_gets_the_body_unchanged_and_the_prefill_named() {
    let bench = Bench::start(1, none).await;
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let headers = [
        ("authorization", "Bearer key"),
        ("x-odd", "kept"),
        ("fathom-prefill", "evil:1"),
        ("x-request-id", "mine-1"),
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=9"),
        ("te", "trailers"),
    ];
    let exchange = post(bench.address, "/v1/chat/completions?a=b%20c", &headers, &body).await;
    assert_eq!((exchange.status, exchange.header("x-request-id")), (200, Some("mine-1")));
    let seen = bench.decode().seen().pop().unwrap();
    assert!(seen.head.starts_with("POST /v1/chat/completions?a=b%20c HTTP/1.1"), "{}", seen.head);
    assert_eq!(seen.body, body);
    assert_eq!(seen.header("fathom-prefill"), Some("10.9.8.7:9000"));
    assert_eq!(seen.header("authorization"), Some("Bearer key"));
    assert_eq!(seen.header("x-odd"), Some("kept"));
    assert_eq!(seen.header("x-request-id"), Some("mine-1"));
    assert_eq!(seen.header("host"), Some(bench.decode().address()));
    for stripped in ["connection", "x-hop", "keep-alive", "te"] {
        assert_eq!(seen.header(stripped), None, "{stripped}");
    }
}

/// S05: what guidellm sends.
#[tokio::test]
async fn unknown_fields_pass_as_they_are() {
    let bench = Bench::start(1, none).await;
    let body =
        r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"stop":null,"x":1e999}"#;
    bench.chat(body).await;
    assert_eq!(bench.decode().seen().pop().unwrap().body, body.as_bytes());
}

#[tokio::test]
async fn requests_without_an_id_get_one_that_the_decode_sees_too() {
    let bench = Bench::start(1, none).await;
    let (first, second) = (bench.chat("{}").await, bench.chat("{}").await);
    let ids = [first.header("x-request-id").unwrap(), second.header("x-request-id").unwrap()];
    assert_ne!(ids[0], ids[1]);
    let seen = bench.decode().seen();
    assert_eq!(ids, [seen[0].header("x-request-id").unwrap(), seen[1].header("x-request-id").unwrap()]);
}

#[tokio::test]
async fn a_chunked_body_reaches_the_decode_whole() {
    let bench = Bench::start(1, none).await;
    let mut connection = Connection::open(bench.address).await;
    connection.send(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for chunk in [&b"3\r\n{\"a\r\n"[..], b"4\r\n\":1}\r\n", b"0\r\n\r\n"] {
        connection.send(chunk).await;
    }
    assert_eq!(connection.read_exchange().await.status, 200);
    let seen = bench.decode().seen().pop().unwrap();
    assert_eq!(seen.body, b"{\"a\":1}");
    assert_eq!(seen.header("content-length"), Some("7"));
    assert_eq!(seen.header("fathom-prefill"), None);
}

#[tokio::test]
async fn models_and_version_are_the_decodes() {
    let bench = Bench::start(1, none).await;
    bench.decode().answers(mock::json_answer(r#"{"object":"list"}"#));
    for path in ["/v1/models", "/v1/models/needle", "/version"] {
        assert_eq!(get(bench.address, path).await.text(), r#"{"object":"list"}"#);
    }
    assert_eq!(bench.decode().count(), 3);
}

/// S64
#[tokio::test]
async fn unknown_paths_are_404_and_make_one_series() {
    let bench = Bench::start(1, none).await;
    let mut connection = Connection::open(bench.address).await;
    for number in 0..1000 {
        connection.send(&request("GET", &format!("/random/{number}"), &[], b"")).await;
        let exchange = connection.read_exchange().await;
        assert_eq!((exchange.status, &exchange.json()["error"]["code"]), (404, &"not_found".into()));
    }
    assert!(bench.metric("fathom_requests_total{outcome=\"unmatched\"} 1000").await);
    assert!(get(bench.address, "/metrics").await.body.len() < 10_000);
    assert_eq!(bench.decode().count(), 0);
}

#[tokio::test]
async fn a_wrong_method_is_405_and_says_which_is_right() {
    let bench = Bench::start(1, none).await;
    let exchange = get(bench.address, "/v1/chat/completions").await;
    assert_eq!((exchange.status, exchange.header("allow")), (405, Some("POST")));
}

#[tokio::test]
async fn bodies_over_16_mib_are_413_with_and_without_a_length() {
    let bench = Bench::start(1, none).await;
    let mut connection = Connection::open(bench.address).await;
    connection.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 16777217\r\n\r\n").await;
    let exchange = connection.read_exchange().await;
    assert_eq!((exchange.status, &exchange.json()["error"]["code"]), (413, &"request_too_large".into()));

    let mut connection = Connection::open(bench.address).await;
    connection.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let chunk = [&b"100000\r\n"[..], &vec![b'x'; 1 << 20], b"\r\n"].concat();
    for _ in 0..16 {
        connection.send(&chunk).await;
    }
    connection.send(b"1\r\nx\r\n").await;
    assert_eq!(connection.read_exchange().await.status, 413);
    assert_eq!(bench.decode().count(), 0);
}

#[tokio::test]
async fn the_largest_body_passes() {
    let bench = Bench::start(1, none).await;
    let body = vec![b'x'; 16 << 20];
    assert_eq!(post(bench.address, "/v1/completions", &[], &body).await.status, 200);
    assert_eq!(bench.decode().seen().pop().unwrap().body.len(), body.len());
}
