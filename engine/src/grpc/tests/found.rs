//! Prefills that are looked up.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use super::*;
use crate::binding::Report;
use crate::grpc::lookup::Lookup;
use crate::role::decode;

/// What DNS says, until a test says otherwise.
#[derive(Clone)]
struct Dns(Arc<Mutex<Result<Vec<IpAddr>, &'static str>>>);

impl Dns {
    fn new(answer: Result<Vec<IpAddr>, &'static str>) -> Self {
        Self(Arc::new(Mutex::new(answer)))
    }

    fn says(&self, answer: Result<&[&Node], &'static str>) {
        *self.0.lock().unwrap() = answer.map(|nodes| nodes.iter().map(|node| at(node).ip()).collect());
    }

    fn lookup(&self) -> Lookup {
        let answer = Arc::clone(&self.0);
        Arc::new(move || {
            let answer = answer.lock().unwrap().clone();
            Box::pin(async move { answer.map_err(std::io::Error::other) })
        })
    }
}

fn at(node: &Node) -> SocketAddr {
    node.grpc.expect("a prefill listens")
}

/// A prefill of `revision` on a port that others have too, on an address of its own, as pods have.
async fn prefill_at(address: SocketAddr, revision: &str) -> Node {
    let mut config = config(Role::Prefill);
    config["listen"]["grpc"] = json!(address.to_string());
    config["revision"] = json!(revision);
    start(config).await.0
}

async fn first_prefill() -> Node {
    prefill_at(SocketAddr::from(([127, 0, 0, 1], 0)), "").await
}

async fn second_prefill(first: &Node, revision: &str) -> Node {
    prefill_at(SocketAddr::from(([127, 0, 0, 2], at(first).port())), revision).await
}

async fn decode_of(dns: &Dns, port: u16) -> Node {
    let mut config = config(Role::Decode);
    config["peers"] = json!({"discovery": {
        "namespace": "ns", "prefillService": "x-prefill", "decodeService": "x-decode", "grpcPort": port,
    }});
    let config = engine_spec::EngineConfig::from_json(&config.to_string()).unwrap();
    let loader = loader(&Arc::default(), "scripted");
    decode::start_with(config, Report::unbound(2), loader, Some(dns.lookup())).await.unwrap()
}

fn counts(decode: &Node) -> (usize, usize, usize) {
    let counts = decode.process.peers.get().unwrap().counts();
    (counts.paired, counts.other_revision, counts.unknown)
}

fn served(prefill: &Node) -> u64 {
    prefill.process.metrics.ended_so_far(Outcome::Ok)
}

async fn ask_naming(decode: &Node, prefill: &str) -> crate::rig::Answer {
    let headers = format!("content-type: application/json\r\nfathom-prefill: {prefill}\r\n");
    let question = question("hi", 2, false);
    call(decode.http, "POST", "/v1/chat/completions", &headers, &question).await.finish().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefills_are_paired_as_they_appear_and_get_nothing_when_they_are_gone() {
    let first = first_prefill().await;
    let second = second_prefill(&first, "").await;
    let dns = Dns::new(Err("no such host"));
    let decode = decode_of(&dns, at(&first).port()).await;
    until("the failure is said", || {
        decode.process.lifecycle.check().is_err_and(|error| error.message.contains("no such host"))
    })
    .await;
    dns.says(Ok(&[&first]));
    ready(&decode).await;
    assert_eq!(ask(decode.http, &question("hi", 2, false)).await.status, 200);
    dns.says(Ok(&[&first, &second]));
    until("both are paired", || counts(&decode) == (2, 0, 0)).await;

    dns.says(Ok(&[&second]));
    until("one is dropped", || counts(&decode) == (1, 0, 0)).await;
    let before = (served(&first), served(&second));
    for _ in 0..3 {
        assert_eq!(ask(decode.http, &question("hi", 2, false)).await.status, 200);
    }
    assert_eq!((served(&first), served(&second)), (before.0, before.1 + 3));

    // A failure, as good as any number of them, takes nobody away.
    let failures = decode.process.metrics.lookup_failures.get();
    dns.says(Err("no answer"));
    until("it was asked again", || decode.process.metrics.lookup_failures.get() > failures).await;
    assert_eq!(counts(&decode), (1, 0, 0));
    assert_eq!(ask(decode.http, &question("hi", 2, false)).await.status, 200);
    assert_eq!(decode.process.info()["prefills"]["lookupError"], "no answer");
    assert!(decode.process.scrape().contains("fathom_prefill_peers{standing=\"paired\"} 1\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_runs_on_a_prefill_that_is_gone_from_dns_ends_as_it_would() {
    let slow = Arc::new(Script::default());
    let prefill = launch(config(Role::Prefill), loader(&slow, "scripted")).await;
    let second = second_prefill(&prefill, "").await;
    let dns = Dns::new(Ok(vec![at(&prefill).ip()]));
    let decode = decode_of(&dns, at(&prefill).port()).await;
    ready(&decode).await;
    slow.delay_us.store(300_000, Ordering::Relaxed);
    let running = chat(decode.http, &question(&words(1500), 3, false)).await;
    until("prefill computes", || prefill.process.metrics.engine.running.get() == 1).await;
    dns.says(Ok(&[&second]));
    let peers = Arc::clone(decode.process.peers.get().unwrap());
    let named = http::HeaderValue::from_str(&at(&second).to_string()).unwrap();
    until("the other took its place", || {
        counts(&decode) == (1, 0, 0)
            && peers.choose(Some(&named)).is_ok_and(|peer| peer.address() == at(&second).to_string())
    })
    .await;
    assert_eq!(prefill.process.metrics.engine.running.get(), 1, "it must still run when the address is gone");
    assert_eq!(running.finish().await.status, 200);
    idle(&decode).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefill_of_another_revision_is_shown_and_never_called() {
    let first = first_prefill().await;
    let foreign = second_prefill(&first, "next").await;
    let dns = Dns::new(Ok(vec![at(&foreign).ip()]));
    let decode = decode_of(&dns, at(&first).port()).await;
    until("it is known", || decode.process.peers.get().is_some() && counts(&decode) == (0, 1, 0)).await;
    let unready = get(decode.http, "/readyz").await;
    assert!(unready.text().contains("revision: prefill has `next`"), "{}", unready.text());

    dns.says(Ok(&[&first, &foreign]));
    ready(&decode).await;
    // Also when it is named: a router can be ahead of DNS, and a wrong name must not cost the request.
    for _ in 0..4 {
        assert_eq!(ask_naming(&decode, &at(&foreign).to_string()).await.status, 200);
        assert_eq!(ask_naming(&decode, "10.1.2.3:9000").await.status, 200);
    }
    assert_eq!((served(&first), served(&foreign)), (8, 0));
    let info = decode.process.info();
    assert_eq!((&info["prefills"]["paired"], &info["prefills"]["otherRevision"]), (&json!(1), &json!(1)));
    assert_eq!(info["prefills"]["peers"][1]["standing"], "otherRevision");
}
