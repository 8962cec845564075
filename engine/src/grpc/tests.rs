mod found;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_proto::v1::prefill_client::PrefillClient;
use engine_proto::v1::prefill_event::Event as Message;
use engine_proto::v1::{Contract, HelloRequest, PrefillRequest, Sampling};
use engine_spec::Role;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::Code;

use super::contract::{Identity, contract};
use crate::chat::{Chat, ChatOptions};

use crate::metrics::Outcome;
use crate::rig::{
    CHECKPOINT, Mortal, ask, call, chat, config, get, idle, launch, loader, question, ready, start, until,
    words,
};
use crate::role::Node;
use crate::step::script::{Script, ScriptStep};

struct Pair {
    prefill: Node,
    decode: Node,
    slow: Arc<Script>,
    decode_script: Arc<Script>,
}

async fn pair() -> Pair {
    let (prefill, slow) = start(config(Role::Prefill)).await;
    let (decode, decode_script) = start(decode_config(&prefill)).await;
    Pair { prefill, decode, slow, decode_script }
}

fn address(prefill: &Node) -> String {
    prefill.grpc.expect("a prefill listens").to_string()
}

fn decode_config(prefill: &Node) -> Value {
    let mut config = config(Role::Decode);
    config["peers"] = json!({"prefill": [{"grpc": address(prefill)}]});
    config
}

async fn both_idle(pair: &Pair) {
    idle(&pair.decode).await;
    idle(&pair.prefill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_answers_as_one_process_does() {
    let pair = pair().await;
    let (alone, _) = start(config(Role::Unified)).await;
    for tokens in [0, 100, 400, 1500] {
        for stream in [false, true] {
            let question = question(&words(tokens), 12, stream);
            let answer = ask(pair.decode.http, &question).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.content(), ask(alone.http, &question).await.content());
        }
    }
    // Its warm-up chunk apart, decode computes no prompt.
    assert_eq!(pair.decode.process.metrics.engine.prefill_tokens.get(), 0);
    assert!(pair.decode_script.tokens.load(Ordering::Relaxed) < 700);
    assert_eq!(pair.prefill.process.metrics.ended_so_far(Outcome::Ok), 8);
    both_idle(&pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_token_needs_no_step_of_decode() {
    let pair = pair().await;
    let steps = pair.decode_script.steps.load(Ordering::Relaxed);
    let answer = ask(pair.decode.http, &question("hello", 1, false)).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 1);
    assert_eq!(pair.decode_script.steps.load(Ordering::Relaxed), steps);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sides_that_differ_refuse_each_other_and_say_in_what() {
    let (prefill, _) = start(config(Role::Prefill)).await;
    let mut other = decode_config(&prefill);
    other["model"]["indexKeys"] = json!("bf16");
    other["revision"] = json!("r2");
    let decode = launch(other, loader(&Arc::default(), "another model")).await;
    until("the difference is known", || {
        decode.process.lifecycle.check().is_err_and(|e| e.message.contains("index keys"))
    })
    .await;
    let unready = get(decode.http, "/readyz").await;
    assert_eq!(unready.status, 503);
    for difference in [
        "index keys: prefill has `fp4`, decode has `bf16`",
        "revision: prefill has ``, decode has `r2`",
        "model: prefill has `scripted`, decode has `another model`",
    ] {
        assert!(unready.text().contains(difference), "{difference} in {}", unready.text());
    }
    assert_eq!(ask(decode.http, &question("hi", 1, false)).await.status, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefill_that_dies_under_a_request_is_a_502_and_its_successor_serves() {
    let slow = Arc::new(Script::default());
    let mortal = Mortal::start(config(Role::Prefill), loader(&slow, "scripted")).await;
    let address = address(&mortal.node);
    let (decode, _) = start(decode_config(&mortal.node)).await;
    slow.delay_us.store(200_000, Ordering::Relaxed);
    let calls = [
        chat(decode.http, &question(&words(1500), 5, false)).await,
        chat(decode.http, &question(&words(1400), 5, true)).await,
    ];
    until("prefill computes both", || mortal.node.process.metrics.engine.running.get() == 2).await;
    let killed = Instant::now();
    mortal.kill().await;
    for call in calls {
        let answer = call.finish().await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("bad_gateway")));
    }
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    idle(&decode).await;
    // Nobody listens now.
    let answer = ask(decode.http, &question("hi", 2, true)).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(decode.process.metrics.ended_so_far(Outcome::BadGateway), 3);
    // The successor has the same address.
    let mut again = config(Role::Prefill);
    again["listen"]["grpc"] = json!(address);
    let (_successor, _) = start(again).await;
    let answer = ask(decode.http, &question("hi", 2, false)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    idle(&decode).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefill_that_changed_is_not_trusted() {
    let mortal = Mortal::start(config(Role::Prefill), loader(&Arc::default(), "scripted")).await;
    let (decode, _) = start(decode_config(&mortal.node)).await;
    let mut again = config(Role::Prefill);
    again["listen"]["grpc"] = json!(address(&mortal.node));
    mortal.kill().await;
    let other = launch(again, loader(&Arc::default(), "another model")).await;
    ready(&other).await;
    let answer = ask(decode.http, &question("hi", 2, false)).await;
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("another model"), "{answer:?}");
    idle(&decode).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_prefill_reaches_the_client_as_it_is() {
    let mut narrow = config(Role::Prefill);
    narrow["admission"] = json!({
        "queueLimitTokens": 500, "prefillTokensPerSecond": 100.0, "maxQueuedRequests": 8,
    });
    let (prefill, slow) = start(narrow).await;
    let (decode, _) = start(decode_config(&prefill)).await;
    slow.delay_us.store(100_000, Ordering::Relaxed);
    let big = chat(decode.http, &question(&words(900), 2, false)).await;
    until("prefill has the first", || prefill.process.admission.state().queued == 1).await;
    let refused = ask(decode.http, &question(&words(200), 2, true)).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("queue_full")));
    assert!(refused.header("retry-after").is_some() && refused.header("retry-after-ms").is_some());
    assert_eq!(big.finish().await.status, 200);
    idle(&decode).await;
    idle(&prefill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_router_a_dead_prefill_gets_no_more_turns_and_its_return_is_seen() {
    let mortal = Mortal::start(config(Role::Prefill), loader(&Arc::default(), "scripted")).await;
    let (second, _) = start(config(Role::Prefill)).await;
    let first = address(&mortal.node);
    let mut both = decode_config(&mortal.node);
    both["peers"] = json!({"prefill": [{"grpc": first}, {"grpc": address(&second)}]});
    let (decode, _) = start(both).await;
    mortal.kill().await;
    let mut failed = 0;
    for _ in 0..8 {
        let answer = ask(decode.http, &question("hi", 2, false)).await;
        assert!([200, 502].contains(&answer.status), "{answer:?}");
        failed += u32::from(answer.status == 502);
    }
    assert!(failed <= 1, "{failed} requests were sent to a prefill known as dead");
    let mut again = config(Role::Prefill);
    again["listen"]["grpc"] = json!(first);
    let (back, _) = start(again).await;
    let deadline = Instant::now() + crate::rig::PATIENCE;
    while back.process.metrics.ended_so_far(Outcome::Ok) == 0 {
        assert!(Instant::now() < deadline, "the prefill that came back gets no turn");
        assert_eq!(ask(decode.http, &question("hi", 2, false)).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_that_drains_is_503_with_a_time_to_come_back() {
    let mut pair = pair().await;
    pair.slow.delay_us.store(50_000, Ordering::Relaxed);
    let running = chat(pair.decode.http, &question(&words(1500), 2, false)).await;
    let process = Arc::clone(&pair.prefill.process);
    until("prefill computes", || process.metrics.engine.running.get() == 1).await;
    let http = pair.decode.http;
    let refused = async {
        until("it drains", || process.lifecycle.check().is_err()).await;
        ask(http, &question("hi", 2, true)).await
    };
    let ((), refused, answer) =
        tokio::join!(pair.prefill.drain(std::future::pending::<()>()), refused, running.finish());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.status, 200, "what ran when the drain began ends well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_travels_and_ends_both_sides() {
    let (prefill, slow) = start(config(Role::Prefill)).await;
    let mut hasty = decode_config(&prefill);
    hasty["requestTimeoutMs"] = json!(300);
    let (decode, _) = start(hasty).await;
    slow.delay_us.store(100_000, Ordering::Relaxed);
    let answer = ask(decode.http, &question(&words(1500), 2, false)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (504, Some("timeout")));
    idle(&decode).await;
    idle(&prefill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_make_no_sense_are_refused() {
    let (prefill, _) = start(config(Role::Prefill)).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", address(&prefill))).unwrap();
    let mut client = PrefillClient::connect(channel).await.unwrap();
    let no_contract = client.hello(HelloRequest::default()).await.unwrap_err();
    assert_eq!(no_contract.code(), Code::InvalidArgument);
    let wrong = HelloRequest { contract: Some(Contract::default()), ..HelloRequest::default() };
    let refused = client.hello(wrong).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let contract = contract_of(&prefill);
    let request = |tokens: Vec<u32>, top_logprobs: u32| PrefillRequest {
        contract: Some(contract.clone()),
        tokens,
        top_logprobs,
        sampling: Some(Sampling {
            temperature: f32::NAN,
            top_p: -1.0,
            min_p: f32::INFINITY,
            ..Sampling::default()
        }),
        ..PrefillRequest::default()
    };
    for tokens in [vec![], vec![896], vec![u32::MAX, 1], vec![5; 8192]] {
        let refused = client.prefill(request(tokens, 0)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    // Odd wishes harm nobody.
    let mut stream = client.prefill(request(vec![5; 300], u32::MAX)).await.unwrap().into_inner();
    let mut last = None;
    while let Some(event) = stream.message().await.unwrap() {
        last = event.event;
    }
    let Some(Message::Commit(commit)) = last else { panic!("{last:?}") };
    assert!(commit.first.unwrap().top.len() <= 20);
    idle(&prefill).await;
}

/// What a decode with the tests' model would say.
fn contract_of(prefill: &Node) -> Contract {
    let step = ScriptStep::new(Arc::default(), 896, 1, 1);
    let identity =
        Identity { fingerprint: "scripted".to_owned(), tokenizer_hash: tokenizer_hash(), index_top_k: 64 };
    contract(&prefill.process.config, &identity, &step)
}

fn tokenizer_hash() -> String {
    let options = ChatOptions {
        model_name: "needle".to_owned(),
        context_tokens: 64,
        defaults: engine_spec::config::ChatConfig::default(),
    };
    Chat::open(std::path::Path::new(CHECKPOINT), options).unwrap().tokenizer_hash().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s35_a_prompt_too_long_for_prefill_is_its_400() {
    let mut short = config(Role::Prefill);
    short["model"]["contextTokens"] = json!(128);
    let (prefill, _) = start(short).await;
    let (decode, _) = start(decode_config(&prefill)).await;
    let answer = ask(decode.http, &question(&words(300), 2, true)).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (400, Some("context_length_exceeded"))
    );
    idle(&decode).await;
    idle(&prefill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s36_a_client_that_leaves_frees_both_sides_at_every_stage() {
    let pair = pair().await;
    pair.slow.delay_us.store(20_000, Ordering::Relaxed);
    for stream in [true, false] {
        for wait in 0..3 {
            let mut call = chat(pair.decode.http, &question(&words(1500), 6000, stream)).await;
            match wait {
                0 => {}
                1 => {
                    until("prefill computes", || pair.prefill.process.metrics.engine.running.get() == 1).await
                }
                _ if stream => drop(call.read(1500).await.len()),
                _ => {
                    let decodes = || pair.decode.process.metrics.engine.generated_tokens.get();
                    let before = decodes();
                    until("decode decodes", || decodes() > before).await;
                }
            }
            drop(call);
            both_idle(&pair).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_configured_prefills_are_called() {
    let pair = pair().await;
    let send = |named: String| {
        let headers = format!("fathom-prefill: {named}\r\n");
        let body = question("hi", 2, false);
        let address = pair.decode.http;
        async move { call(address, "POST", "/v1/chat/completions", &headers, &body).await.finish().await }
    };
    assert_eq!(send(address(&pair.prefill)).await.status, 200);
    let refused = send("127.0.0.1:1".to_owned()).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("fathom-prefill")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34_cancels_during_the_hand_over_never_reach_anothers_answer() {
    let pair = pair().await;
    let (alone, _) = start(config(Role::Unified)).await;
    let mut expected = Vec::new();
    for n in 0..16 {
        expected.push(ask(alone.http, &question(&words(n * 60), 10, false)).await.content());
    }
    pair.slow.delay_us.store(500, Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    for n in 0..96_usize {
        let address = pair.decode.http;
        tasks.spawn(async move {
            let question = question(&words(n % 16 * 60), 10, n % 3 == 0);
            if n % 2 == 1 {
                let call = chat(address, &question).await;
                tokio::time::sleep(Duration::from_micros(n as u64 * 911 % 40_000)).await;
                drop(call);
                return None;
            }
            Some((n % 16, ask(address, &question).await))
        });
    }
    while let Some(done) = tasks.join_next().await {
        if let Some((n, answer)) = done.unwrap() {
            assert_eq!((answer.status, answer.content()), (200, expected[n].clone()));
        }
    }
    both_idle(&pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decode_without_pages_recomputes_what_it_retracted() {
    let (prefill, _) = start(config(Role::Prefill)).await;
    let mut small = decode_config(&prefill);
    small["pools"] = json!({"kvPages": 8, "requestSlots": 8});
    small["model"]["contextTokens"] = json!(2048);
    let (decode, _) = start(small).await;
    let (alone, _) = start(config(Role::Unified)).await;
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        // Two that start small and grow to six pages each, then six that want three: there are 8.
        let (tokens, answer) = if n < 2 { (n, 1500) } else { (150 + n, 200) };
        until("the two run", || n < 2 || decode.process.metrics.engine.running.get() >= 2).await;
        let (pair, alone) = (decode.http, alone.http);
        tasks.spawn(async move {
            let question = question(&words(tokens), answer, false);
            (ask(pair, &question).await.content(), ask(alone, &question).await.content())
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (paired, alone) = done.unwrap();
        assert_eq!(paired, alone);
    }
    assert!(decode.process.metrics.engine.retractions.get() > 0, "this test is about retraction");
    idle(&decode).await;
}
