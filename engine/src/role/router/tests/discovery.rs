//! Workers that come and go, as a cluster's EndpointSlices say.

use std::net::SocketAddr;

use super::api::Api;
use super::client::{Connection, find};
use super::mock::End;
use super::*;

/// A router that finds its workers through an API, and workers that nobody has named yet. All listen on one port, on
/// addresses of their own: pods do.
struct Cluster {
    bench: Bench,
    api: Api,
    prefills: Vec<Mock>,
}

impl Cluster {
    async fn start(decodes: usize, prefills: usize) -> Self {
        let first = Mock::start().await;
        let port = first.bound().port();
        let mut pods = vec![first];
        for host in 2..=u8::try_from(decodes + prefills).unwrap() {
            pods.push(Mock::start_at(SocketAddr::from(([127, 0, 0, host], port))).await);
        }
        let prefills = pods.split_off(decodes);
        let api = Api::start().await;
        let config = serde_json::json!({
            "name": "test-router", "role": "router", "model": {"name": "needle", "contextTokens": 32768},
            "peers": {"discovery": {"namespace": "ns", "prefillService": "x-prefill", "decodeService": "x-decode",
                "httpPort": port, "grpcPort": 9000}},
        });
        let config = EngineConfig::from_json(&config.to_string()).unwrap();
        let access = Access::At(Box::new(api.config()));
        let bench = Bench::serve(config, access, pods, Mock::start().await).await;
        Self { bench, api, prefills }
    }

    fn decodes_are(&self, ready: &[bool]) {
        self.api.has("x-decode", &endpoints(&self.bench.decodes, ready));
    }

    fn prefills_are(&self, ready: &[bool]) {
        self.api.has("x-prefill", &endpoints(&self.prefills, ready));
    }

    async fn workers(&self) -> usize {
        let info = self.bench.info().await;
        let workers = info["workers"].as_array().unwrap();
        workers.iter().filter(|worker| worker["state"] == "ready").count()
    }

    async fn has_workers(&self, count: usize) {
        eventually(|| async { self.workers().await == count }).await;
    }
}

fn endpoints(mocks: &[Mock], ready: &[bool]) -> Vec<(SocketAddr, bool)> {
    mocks.iter().map(Mock::bound).zip(ready.iter().copied()).collect()
}

#[tokio::test]
async fn workers_are_used_when_they_appear_and_until_then_it_says_what_is_missing() {
    let cluster = Cluster::start(1, 1).await;
    let bench = &cluster.bench;
    eventually(|| async { bench.info().await["discovery"]["synced"] == true }).await;
    let unready = get(bench.address, "/readyz").await;
    assert_eq!(unready.status, 503);
    assert!(unready.text().contains("no decode is ready"), "{}", unready.text());
    assert_eq!(bench.chat("{}").await.status, 503);

    cluster.decodes_are(&[true]);
    eventually(|| async { get(bench.address, "/readyz").await.text().contains("no prefill is ready") }).await;
    cluster.prefills_are(&[true]);
    eventually(|| async { get(bench.address, "/readyz").await.status == 200 }).await;
    assert_eq!(bench.chat("{}").await.status, 200);
    let expected = format!("{}:9000", cluster.prefills[0].bound().ip());
    assert_eq!(bench.decode().seen()[0].header("fathom-prefill"), Some(expected.as_str()));
    let asked = cluster.api.asked();
    let path = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices?";
    assert!(asked.iter().all(|asked| asked.starts_with(path)), "{asked:?}");
    assert!(bench.metric("fathom_discovery_synced 1").await);
}

#[tokio::test]
async fn an_endpoint_that_is_not_ready_is_no_worker() {
    let cluster = Cluster::start(2, 1).await;
    cluster.decodes_are(&[true, false]);
    cluster.prefills_are(&[true]);
    cluster.has_workers(2).await;
    for _ in 0..6 {
        assert_eq!(cluster.bench.chat("{}").await.status, 200);
    }
    assert_eq!(cluster.bench.decodes[1].count(), 0);
}

#[tokio::test]
async fn a_worker_that_leaves_ends_its_answer_and_gets_nothing_new() {
    let cluster = Cluster::start(2, 1).await;
    let bench = &cluster.bench;
    cluster.decodes_are(&[true, false]);
    cluster.prefills_are(&[true]);
    cluster.has_workers(2).await;
    bench.decodes[0].streams(&["data: 1\n\n"], End::WhenReleased);
    let mut running = Connection::open(bench.address).await;
    running.send_chat("{}").await;
    running.read_head().await;
    running.read_chunks(|body| find(body, b"1").is_some()).await;

    cluster.decodes_are(&[false, true]);
    eventually(|| async {
        let info = bench.info().await;
        let mut workers = info["workers"].as_array().unwrap().iter();
        workers.any(|w| w["state"] == "ready" && w["address"] == bench.decodes[1].address())
    })
    .await;
    for _ in 0..6 {
        assert_eq!(bench.chat("{}").await.status, 200);
    }
    assert_eq!((bench.decodes[0].count(), bench.decodes[1].count()), (1, 6));
    assert_eq!(bench.info().await["running"], 1);
    bench.decodes[0].release(1);
    assert!(running.read_chunks(|_| false).await.1, "the answer ends as it should");
    bench.settles().await;
}

#[tokio::test]
async fn an_api_that_is_away_takes_no_worker_and_what_changed_meanwhile_is_seen_afterwards() {
    let mut cluster = Cluster::start(2, 1).await;
    cluster.decodes_are(&[true, false]);
    cluster.prefills_are(&[true]);
    cluster.has_workers(2).await;
    cluster.api.die().await;
    let bench = &cluster.bench;
    eventually(|| async { bench.info().await["discovery"]["synced"] == false }).await;
    let info = bench.info().await;
    assert!(info["discovery"]["error"].as_str().unwrap().contains("EndpointSlices"), "{info}");
    assert!(bench.metric("fathom_discovery_synced 0").await);
    for _ in 0..4 {
        assert_eq!(bench.chat("{}").await.status, 200);
    }
    cluster.decodes_are(&[false, true]);
    cluster.api.come_back().await;
    let bench = &cluster.bench;
    eventually(|| async { bench.info().await["discovery"]["synced"] == true }).await;
    eventually(|| async {
        bench.chat("{}").await;
        bench.decodes[1].count() > 0
    })
    .await;
}

#[tokio::test]
async fn outside_of_a_cluster_it_says_why_it_finds_nobody() {
    let json = serde_json::json!({
        "name": "test-router", "role": "router", "model": {"name": "needle", "contextTokens": 32768},
        "peers": {"discovery": {"namespace": "ns", "decodeService": "x-decode"}},
    });
    let config = EngineConfig::from_json(&json.to_string()).unwrap();
    let bench = Bench::serve(config, Access::InCluster, Vec::new(), Mock::start().await).await;
    eventually(|| async { get(bench.address, "/readyz").await.text().contains("service account") }).await;
    assert_eq!(get(bench.address, "/healthz").await.status, 200);
}

/// Old and new prefills and decodes at once, as in the middle of a rollout, and prefills that nobody fits.
#[tokio::test]
async fn revisions_never_pair_across() {
    let cluster = Cluster::start(4, 3).await;
    let bench = &cluster.bench;
    let revisions = ["old", "new", "old", "new"];
    bench.decodes.iter().zip(revisions).for_each(|(mock, revision)| mock.is_of_revision(revision));
    let of_prefill = ["new", "old", "foreign"];
    cluster.prefills.iter().zip(of_prefill).for_each(|(mock, revision)| mock.is_of_revision(revision));
    cluster.decodes_are(&[true; 4]);
    cluster.prefills_are(&[true; 3]);
    cluster.has_workers(7).await;
    let pairs_are_right = || {
        for (decode, revision) in bench.decodes.iter().zip(revisions) {
            let at = of_prefill.iter().position(|of| *of == revision).unwrap();
            let expected = format!("{}:9000", cluster.prefills[at].bound().ip());
            assert!(
                decode.seen().iter().all(|seen| seen.header("fathom-prefill") == Some(&expected)),
                "{revision}"
            );
        }
    };
    for _ in 0..40 {
        assert_eq!(bench.chat("{}").await.status, 200);
    }
    pairs_are_right();
    assert!(bench.decodes.iter().all(|decode| decode.count() == 10), "both revisions serve");

    // The old prefill goes: its decodes have nobody and get nothing.
    cluster.prefills_are(&[true, false, true]);
    cluster.has_workers(6).await;
    for _ in 0..10 {
        assert_eq!(bench.chat("{}").await.status, 200);
    }
    pairs_are_right();
    assert_eq!(bench.decodes[0].count() + bench.decodes[2].count(), 20);
    // And the new one: there is no pair any more, though all roles are ready.
    cluster.prefills_are(&[false, false, true]);
    cluster.has_workers(5).await;
    assert_eq!(bench.chat("{}").await.status, 503);
    let unready = get(bench.address, "/readyz").await;
    assert!(unready.text().contains("same revision"), "{}", unready.text());
}
