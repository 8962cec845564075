//! What of an answer reaches the client.

use super::client::{Connection, get};
use super::mock::{End, Script, answer};
use super::*;

fn none(_: &mut EngineConfig) {}

/// S09
#[tokio::test]
async fn a_stream_passes_unchanged_wherever_it_is_cut() {
    let bench = Bench::start(1, none).await;
    let text = "data: {\"content\":\"data: [DONE]\"}\n\ndata: {\"content\":\"more é\"}\n\n\
                data: [DONE]x\n\ndata: [DONE]\n\n";
    for size in [1, 2, 3, 7, 1000] {
        let pieces = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        bench.decode().does(Script::Pieces { content_type: "text/event-stream", pieces, end: End::Clean });
        let exchange = bench.chat("{}").await;
        assert_eq!((exchange.text().as_str(), exchange.complete), (text, true));
        assert_eq!(exchange.header("content-type"), Some("text/event-stream"));
    }
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"ok\"} 5").await);
}

#[tokio::test]
async fn a_piece_reaches_the_client_before_the_next_one_exists() {
    let bench = Bench::start(1, none).await;
    bench.decode().streams(&["data: 1\n\n"], End::WhenReleased);
    let mut connection = Connection::open(bench.address).await;
    connection.send_chat("{}").await;
    connection.read_head().await;
    let (body, _) = connection.read_chunks(|body| body.ends_with(b"\n\n")).await;
    assert_eq!(body, b"data: 1\n\n");
    bench.decode().release(1);
    assert!(connection.read_chunks(|_| false).await.1);
}

#[tokio::test]
async fn a_429_passes_unchanged_and_is_asked_for_once() {
    let bench = Bench::start(2, none).await;
    let body = r#"{"error":{"message":"full","type":"rate_limit_error","param":null,"code":"queue_full"}}"#;
    let headers = [("retry-after", "7"), ("retry-after-ms", "6543"), ("x-more", "1")];
    for decode in &bench.decodes {
        decode.answers(answer(429, "application/json", &headers, body));
    }
    let exchange = bench.chat("{}").await;
    assert_eq!((exchange.status, exchange.text().as_str()), (429, body));
    for (name, value) in headers {
        assert_eq!(exchange.header(name), Some(value));
    }
    assert_eq!(bench.decodes.iter().map(Mock::count).sum::<usize>(), 1);
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"engine_refused\"} 1").await);
}

#[tokio::test]
async fn hop_by_hop_headers_of_an_answer_stay_here() {
    let bench = Bench::start(1, none).await;
    let headers = [("connection", "x-hop"), ("x-hop", "1"), ("keep-alive", "timeout=1"), ("x-end", "kept")];
    bench.decode().answers(answer(200, "application/json", &headers, "{}"));
    let exchange = bench.chat("{}").await;
    assert_eq!(exchange.header("x-end"), Some("kept"));
    for stripped in ["connection", "x-hop", "keep-alive"] {
        assert_eq!(exchange.header(stripped), None, "{stripped}");
    }
}

/// S08
#[tokio::test]
async fn an_error_that_is_not_json_becomes_one_with_its_true_status() {
    let bench = Bench::start(1, none).await;
    let said = "it's \"bad\"\nand {worse}";
    bench.decode().answers(answer(500, "text/plain", &[], said));
    let exchange = bench.chat(r#"{"stream":true}"#).await;
    assert_eq!((exchange.status, exchange.header("content-type")), (500, Some("application/json")));
    assert_eq!(exchange.json()["error"]["message"], said);

    let json = "{\"error\": {\"message\": \"mine \\\"q\\\"\\n\"}}";
    bench.decode().answers(answer(500, "application/json", &[], json));
    assert_eq!(bench.chat("{}").await.text(), json);
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"engine_error\"} 2").await);
}

#[tokio::test]
async fn the_router_answers_for_itself_without_a_worker() {
    let mut dead = Mock::start().await;
    dead.die().await;
    let prefill = Mock::start().await;
    let bench = Bench::start_with(vec![dead], prefill, none).await;
    for path in ["/healthz", "/health"] {
        assert_eq!(get(bench.address, path).await.status, 200);
    }
    let ready = get(bench.address, "/readyz").await;
    assert_eq!((ready.status, ready.header("retry-after")), (503, Some("1")));
    let refused = bench.chat("{}").await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &"unavailable".into()));
    eventually(|| bench.metric("fathom_router_workers{role=\"decode\",state=\"down\"} 1")).await;
}

#[tokio::test]
async fn readiness_needs_a_decode_and_a_prefill() {
    let bench = Bench::start(1, none).await;
    let ready = || async { get(bench.address, "/readyz").await.status == 200 };
    assert!(ready().await);
    bench.prefill.is_ready(false);
    eventually(|| async { !ready().await }).await;
    assert_eq!(bench.chat("{}").await.status, 503);
    assert_eq!(get(bench.address, "/v1/models").await.status, 200);
    bench.prefill.is_ready(true);
    eventually(ready).await;
    assert_eq!(bench.chat("{}").await.status, 200);
}
