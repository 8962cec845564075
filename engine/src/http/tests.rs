use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine_spec::Role;
use serde_json::json;
use tokio::task::JoinSet;

use crate::metrics::Outcome;
use crate::rig::{
    Answer, ask, call, chat, config, get, idle, launch, loader, question, ready, start, until, words,
};
use crate::role::Node;
use crate::step::script::Script;

/// A unified node; `change` is merged into its configuration.
async fn unified(change: serde_json::Value) -> (Node, Arc<Script>) {
    let mut config = config(Role::Unified);
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
    start(config).await
}

fn ended(node: &Node, outcome: Outcome) -> u64 {
    node.process.metrics.ended_so_far(outcome)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_and_whole_answers_are_the_same() {
    let (node, _) = unified(json!({})).await;
    let whole = ask(node.http, &question("hello there", 12, false)).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("application/json")));
    assert_eq!(whole.json()["usage"]["completion_tokens"], 12);
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "length");
    let prompt_tokens = whole.json()["usage"]["prompt_tokens"].to_string();
    assert_eq!(whole.header("fathom-prompt-tokens"), Some(prompt_tokens.as_str()));

    let streamed = ask(node.http, &question("hello there", 12, true)).await;
    assert_eq!((streamed.status, streamed.whole), (200, true));
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    assert!(streamed.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(streamed.content(), whole.content());
    assert!(!whole.content().is_empty());
    assert_eq!(ended(&node, Outcome::Ok), 2);
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_as_many_tokens_come_as_were_asked_for() {
    let (node, _) = unified(json!({})).await;
    for n in [1, 2] {
        for stream in [false, true] {
            let answer = ask(node.http, &question("hi", n, stream)).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            if !stream {
                assert_eq!(answer.json()["usage"]["completion_tokens"], n);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_error_is_json_with_its_true_status() {
    let (node, _) = unified(json!({})).await;
    let long = question(&words(9000), 5, true);
    let cases: [(&str, &str, &[u8], u16, &str); 7] = [
        ("GET", "/nowhere", b"", 404, "not_found"),
        ("GET", "/v1/chat/completions", b"", 405, "method_not_allowed"),
        ("POST", "/healthz", b"", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", b"", 400, ""),
        ("POST", "/v1/chat/completions", b"{\"model\":", 400, ""),
        ("POST", "/v1/chat/completions", b"\xff\xfe", 400, ""),
        ("POST", "/v1/chat/completions", &long, 400, "context_length_exceeded"),
    ];
    for (method, path, body, status, code) in cases {
        let answer = call(node.http, method, path, "", body).await.finish().await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let error = &answer.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(code.is_empty() || error["code"] == code, "{error}");
    }
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_16_mib_is_413_told_or_not() {
    let (node, _) = unified(json!({})).await;
    let told = call(node.http, "POST", "/v1/chat/completions", "expect: nothing\r\n", &[]).await;
    drop(told);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 16777217\r\n\r\n";
    let answer = raw(node.http, head.as_bytes(), 0).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let answer = raw(node.http, head.as_bytes(), 17).await;
    assert_eq!(answer.status, 413);
}

/// Sends a head, then so many chunks of a MiB, as far as they are taken.
async fn raw(address: std::net::SocketAddr, head: &[u8], chunks: usize) -> Answer {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(head).await.unwrap();
    let mut chunk = b"100000\r\n".to_vec();
    chunk.resize(chunk.len() + (1 << 20), b' ');
    chunk.extend_from_slice(b"\r\n");
    for _ in 0..chunks {
        if stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
    let mut received = Vec::new();
    while matches!(stream.read_buf(&mut received).await, Ok(1..)) {
        if received.ends_with(b"}}") {
            break;
        }
    }
    let text = String::from_utf8(received).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body: body.into(), whole: true }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_answer_while_the_model_loads() {
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let script = Arc::new(Script::default());
    let load = loader(&script, "scripted");
    let slow = Box::new(move |config: &engine_spec::EngineConfig, report: &crate::binding::Report| {
        let _ = held.recv();
        load(config, report)
    });
    let node = launch(config(Role::Unified), slow).await;
    assert_eq!(get(node.http, "/healthz").await.status, 200);
    let unready = get(node.http, "/readyz").await;
    assert_eq!(unready.status, 503);
    assert!(unready.text().contains("the model is loading"), "{unready:?}");
    assert_eq!(get(node.http, "/metrics").await.status, 200);
    let refused = ask(node.http, &question("hi", 1, false)).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    release.send(()).unwrap();
    ready(&node).await;
    assert_eq!(get(node.http, "/readyz").await.status, 200);
    assert_eq!(get(node.http, "/health").await.status, 200);
    assert_eq!(get(node.http, "/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let info = get(node.http, "/server_info").await.json();
    assert_eq!(info["admission"]["limitTokens"], 1_000_000);
    assert_eq!(info["pools"]["freeKvPages"], 64);
    assert_eq!(get(node.http, "/v1/models").await.json()["data"][0]["id"], "needle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_keeps_its_id_and_gets_one_if_it_has_none() {
    let (node, _) = unified(json!({})).await;
    let named = call(node.http, "GET", "/version", "x-request-id: my-id.1\r\n", b"").await.finish().await;
    assert_eq!(named.header("x-request-id"), Some("my-id.1"));
    let long = format!("x-request-id: {}\r\n", "x".repeat(500));
    for headers in ["", "x-request-id: \r\n", "x-request-id: two words\r\n", &long] {
        let made = call(node.http, "GET", "/nowhere", headers, b"").await.finish().await;
        assert_eq!(made.header("x-request-id").map(str::len), Some(32), "{headers}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_everything_at_once() {
    let (node, script) = unified(json!({})).await;
    script.delay_us.store(500, Ordering::Relaxed);
    for stream in [true, false] {
        let mut call = chat(node.http, &question(&words(300), 8000, stream)).await;
        if stream {
            call.read(2000).await;
        } else {
            until("it runs", || node.process.metrics.engine.running.get() == 1).await;
        }
        drop(call);
        idle(&node).await;
        let steps = script.steps.load(Ordering::Relaxed);
        ask(node.http, &question("next", 1, false)).await;
        assert!(script.steps.load(Ordering::Relaxed) <= steps + 2, "the cancelled one computed on");
    }
    assert_eq!(ended(&node, Outcome::Cancelled), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_costs_a_bounded_buffer() {
    let (node, script) = unified(json!({"model": {
        "name": "needle", "path": crate::rig::CHECKPOINT, "contextTokens": 16384,
    }}))
    .await;
    let stuck = chat(node.http, &question("hi", 16000, true)).await;
    // Kernel buffers and ours fill up, then the steps stop.
    let mut before = u64::MAX;
    let engine_rests = || script.steps.load(Ordering::Relaxed);
    while before != engine_rests() {
        before = engine_rests();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let other = ask(node.http, &question("hello", 5, false)).await;
    assert_eq!(other.status, 200);
    drop(stuck);
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_cancels_harms_nobody_else() {
    let (node, script) = unified(json!({"admission": {
        "queueLimitTokens": 10_000_000, "maxQueuedRequests": 1000, "prefillTokensPerSecond": 1000.0,
    }}))
    .await;
    script.delay_us.store(200, Ordering::Relaxed);
    let mut alone = Vec::new();
    for n in 0..32 {
        alone.push(ask(node.http, &question(&words(n * 9), 20, false)).await.content());
    }
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        let address = node.http;
        let question = question(&words(n / 2 * 9), 20, n % 4 < 2);
        tasks.spawn(async move {
            if n % 2 == 1 {
                let mut call = chat(address, &question).await;
                call.read(n * 31 % 1500).await;
                return None;
            }
            Some((n / 2, ask(address, &question).await))
        });
    }
    while let Some(done) = tasks.join_next().await {
        if let Some((n, answer)) = done.unwrap() {
            assert_eq!((answer.status, answer.content()), (200, alone[n].clone()));
        }
    }
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_in_a_stream_is_an_event_and_no_proper_end() {
    let (node, script) = unified(json!({})).await;
    script.delay_us.store(1000, Ordering::Relaxed);
    let mut call = chat(node.http, &question("hi", 5000, true)).await;
    call.read(1500).await;
    script.failures.store(1, Ordering::Relaxed);
    let answer = call.finish().await;
    assert_eq!((answer.status, answer.whole), (200, false));
    let error = answer.events().pop().unwrap();
    assert_eq!(error["error"]["code"], 500, "{error}");
    assert!(!answer.text().contains("[DONE]"));
    assert!(answer.text().ends_with("\n\n"));

    script.failures.store(1, Ordering::Relaxed);
    for stream in [false, true] {
        script.failures.store(1, Ordering::Relaxed);
        let answer = ask(node.http, &question("hi", 5, stream)).await;
        assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (500, Some("server_error")));
    }
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_clients_are_told_when_to_come_back() {
    let (node, script) = unified(json!({"admission": {
        "queueLimitTokens": 1000, "prefillTokensPerSecond": 100.0, "maxQueuedRequests": 8,
    }}))
    .await;
    script.delay_us.store(100_000, Ordering::Relaxed);
    let big = chat(node.http, &question(&words(1500), 2, false)).await;
    until("the first one is admitted", || node.process.admission.state().queued == 1).await;
    let refused = ask(node.http, &question("hi", 1, true)).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("queue_full")));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let ms: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds) && ms <= seconds * 1000, "{seconds} {ms}");
    assert!(refused.header("fathom-prompt-tokens").is_some());
    assert_eq!(big.finish().await.status, 200);
    assert_eq!(ended(&node, Outcome::Refused), 1);
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_past_its_deadline_is_504() {
    let (node, script) = unified(json!({"requestTimeoutMs": 300})).await;
    script.delay_us.store(20_000, Ordering::Relaxed);
    let answer = ask(node.http, &question("hi", 5000, false)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (504, Some("timeout")));
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokenize_and_detokenize_are_inverse() {
    let (node, _) = unified(json!({})).await;
    let body = json!({"model": "needle", "prompt": "The code for harbor is 4821."}).to_string();
    let tokens = call(node.http, "POST", "/tokenize", "", body.as_bytes()).await.finish().await;
    assert_eq!(tokens.status, 200, "{tokens:?}");
    let body = json!({"model": "needle", "tokens": tokens.json()["tokens"]}).to_string();
    let text = call(node.http, "POST", "/detokenize", "", body.as_bytes()).await.finish().await;
    assert!(text.text().contains("The code for harbor is 4821."), "{text:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_body_makes_a_500() {
    let (node, _) = unified(json!({})).await;
    let good = question("The code for harbor is 4821. What is the code for harbor?", 3, false);
    // Any damage, the same in every run.
    let mut seed = 1_u64;
    let mut draw = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let pieces: [&[u8]; 8] = [b"null", b"-1", b"1e999", b"[[[[", b"{}", b"\xff", b"\"", b"\\u0000"];
    for _ in 0..150 {
        let mut body = good.clone();
        for _ in 0..=draw(3) {
            let at = draw(body.len());
            let end = (at + draw(12)).min(body.len());
            body.splice(at..end, pieces[draw(pieces.len())].iter().copied());
        }
        let answer = ask(node.http, &body).await;
        assert!(answer.status < 500, "{answer:?} to {}", String::from_utf8_lossy(&body));
    }
    idle(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_takes_long_shows_as_a_stall() {
    let (node, script) = unified(json!({})).await;
    let engine = node.process.engine.get().unwrap();
    script.delay_us.store(600_000, Ordering::Relaxed);
    let call = chat(node.http, &question("hi", 1, false)).await;
    until("it stalls", || engine.stalled_for() > Duration::from_millis(400)).await;
    assert_eq!(call.finish().await.status, 200);
    until("it moves again", || engine.stalled_for() < Duration::from_millis(300)).await;
}
