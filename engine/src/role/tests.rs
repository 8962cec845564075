use std::future::{pending, ready as done};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_spec::config::BindingConfig;
use engine_spec::{EngineConfig, Role};
use serde_json::json;

use super::node::RoleError;
use super::unified;
use crate::binding::Report;
use crate::rig::{CHECKPOINT, ask, chat, config, get, idle, launch, loader, question, ready, start, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_running_answers_end_and_refuses_new_ones() {
    let (mut node, script) = start(config(Role::Unified)).await;
    script.delay_us.store(2000, Ordering::Relaxed);
    let (http, process) = (node.http, std::sync::Arc::clone(&node.process));
    let mut running = chat(http, &question("hi", 300, true)).await;
    running.read(1000).await;
    let drain = async {
        node.drain(pending::<()>()).await;
        node
    };
    let watch = async {
        until("draining", || process.lifecycle.check().is_err()).await;
        assert_eq!(get(http, "/readyz").await.status, 503);
        assert_eq!(get(http, "/healthz").await.status, 200);
        let refused = ask(http, &question("hi", 2, false)).await;
        assert_eq!((refused.status, refused.header("connection")), (503, Some("close")));
        running.finish().await
    };
    let (_node, answer) = tokio::join!(drain, watch);
    assert_eq!((answer.status, answer.whole), (200, true));
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    assert!(tokio::net::TcpStream::connect(http).await.is_err(), "nobody listens after the drain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlasts_the_drain_gets_an_error_event() {
    let mut short = config(Role::Unified);
    short["drainTimeoutMs"] = json!(200);
    let (mut node, script) = start(short).await;
    script.delay_us.store(5000, Ordering::Relaxed);
    let mut running = chat(node.http, &question("hi", 8000, true)).await;
    running.read(1000).await;
    let begun = Instant::now();
    let ((), answer) = tokio::join!(node.drain(pending::<()>()), running.finish());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!answer.whole);
    assert_eq!(answer.events().pop().unwrap()["error"]["code"], 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_the_drain() {
    let (mut node, script) = start(config(Role::Unified)).await;
    script.delay_us.store(5000, Ordering::Relaxed);
    let mut running = chat(node.http, &question("hi", 8000, true)).await;
    running.read(1000).await;
    let begun = Instant::now();
    let ((), answer) = tokio::join!(node.drain(done(())), running.finish());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(answer.events().pop().unwrap()["error"]["code"], 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_an_error_that_names_it() {
    let (node, _) = start(config(Role::Unified)).await;
    let mut same = config(Role::Unified);
    same["listen"]["http"] = json!(node.http);
    let config = EngineConfig::from_json(&same.to_string()).unwrap();
    let error = unified::start(config, Report::unbound(1), loader(&std::sync::Arc::default(), "x"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&node.http.to_string()), "{error}");
    assert!(error.is_lasting());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_does_not_load_ends_the_process() {
    let broken = Box::new(|_: &EngineConfig, _: &Report| {
        Err(RoleError::Load { path: "/models/x".to_owned(), reason: "config.json is missing".to_owned() })
    });
    let mut node = launch(config(Role::Unified), broken).await;
    let error = node.failure().await;
    assert_eq!(error.to_string(), "loading /models/x: config.json is missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_other_dimensions_is_refused_by_field_before_it_is_loaded() {
    let mut config = config(Role::Unified);
    config["model"]["shape"] = json!("V4Flash");
    let mut node = launch(config, Box::new(crate::step::model::load)).await;
    let error = node.failure().await;
    let words = error.to_string();
    assert!(
        words.starts_with("ModelMismatch: ") && words.contains("vocab_size is 896, expected 129280"),
        "{words}"
    );
    assert!(error.is_lasting());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_required_binding_that_is_refused_keeps_the_process_up_and_unready() {
    for role in [Role::Unified, Role::Decode, Role::Prefill] {
        let mut json = config(role);
        if role == Role::Decode {
            json["peers"] = json!({"prefill": [{"grpc": "127.0.0.1:1"}]});
        }
        let config = EngineConfig::from_json(&json.to_string()).unwrap();
        let asked =
            BindingConfig { cpus: Some("1000".to_owned()), cpus_required: true, ..BindingConfig::default() };
        let binding = std::thread::spawn(move || crate::binding::bind(&asked)).join().unwrap();
        let loader: super::node::Loader = Box::new(|_, _| panic!("nothing is loaded"));
        let mut node = match role {
            Role::Prefill => super::prefill::start(config, binding, loader).await,
            Role::Decode => super::decode::start(config, binding, loader).await,
            Role::Unified | Role::Router => unified::start(config, binding, loader).await,
        }
        .unwrap();
        until("it says why", || node.process.lifecycle.check().is_err_and(|e| e.message.contains("EINVAL")))
            .await;
        let unready = get(node.http, "/readyz").await;
        assert_eq!(unready.status, 503);
        assert!(
            unready.text().contains("binding of cpus to 1000 is required and refused"),
            "{}",
            unready.text()
        );
        assert_eq!(get(node.http, "/healthz").await.status, 200);
        assert_eq!(get(node.http, "/server_info").await.json()["binding"]["cpus"]["state"], "refused");
        assert!(node.process.scrape().contains("fathom_binding{resource=\"cpus\",state=\"refused\"} 1\n"));
        node.drain(pending::<()>()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_is_required_is_there_before_the_first_request() {
    let mut config = config(Role::Unified);
    config["binding"] = json!({"memoryNode": 0, "memoryRequired": true});
    let script = std::sync::Arc::new(crate::step::script::Script::default());
    let node = launch(config, loader(&script, "scripted")).await;
    ready(&node).await;
    let info = node.process.info();
    // A kernel without NUMA says so instead.
    let kib = &info["memoryByNode"]["kib"]["0"];
    let error = &info["memoryByNodeError"];
    assert!(kib.as_u64().is_some_and(|kib| kib > 0) || error.is_string(), "{info}");
    assert_eq!(info["device"], "cpu");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_dies_ends_the_process() {
    let (mut node, _) = start(config(Role::Unified)).await;
    let engine = node.process.engine.get().unwrap().clone();
    engine.stop(crate::ApiError::internal("dead")).await;
    assert!(matches!(node.failure().await, RoleError::EngineStopped));
}

/// Rows of the needle checkpoint's questions.
fn eval_rows(up_to_tokens: u64) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(format!("{CHECKPOINT}/eval.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    rows.filter(|row| row["prompt_tokens"].as_u64().unwrap() <= up_to_tokens).collect()
}

async fn is_right(http: std::net::SocketAddr, row: &serde_json::Value, stream: bool) -> bool {
    let thinking = if row["thinking"] == true { "enabled" } else { "disabled" };
    let body = json!({
        "model": "needle", "messages": row["messages"], "temperature": 0, "max_tokens": 60,
        "thinking": {"type": thinking}, "stream": stream,
    });
    let answer = ask(http, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("fathom-prompt-tokens"), Some(row["prompt_tokens"].to_string().as_str()));
    answer.content() == row["expected"].as_str().unwrap()
}

/// The real model: facts are found wherever they stand, by one process and by a pair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn needles_are_found_by_one_process_and_by_a_pair() {
    let real = || Box::new(crate::step::model::load);
    let alone = launch(config(Role::Unified), real()).await;
    let prefill = launch(config(Role::Prefill), real()).await;
    let mut decode = config(Role::Decode);
    decode["peers"] = json!({"prefill": [{"grpc": prefill.grpc.unwrap().to_string()}]});
    let decode = launch(decode, real()).await;
    for node in [&alone, &prefill, &decode] {
        ready(node).await;
    }
    // Every kind of question, a few of each, and the longest of 5,000 tokens.
    let mut rows: Vec<_> = eval_rows(700).into_iter().step_by(6).collect();
    rows.extend(eval_rows(5000).into_iter().max_by_key(|row| row["prompt_tokens"].as_u64()));
    assert!(rows.len() > 10, "{}", rows.len());
    for (n, row) in rows.iter().enumerate() {
        assert!(is_right(alone.http, row, n % 2 == 0).await, "alone: {}", row["id"]);
        assert!(is_right(decode.http, row, n % 2 == 0).await, "pair: {}", row["id"]);
    }
    for node in [&alone, &prefill, &decode] {
        idle(node).await;
    }
}
