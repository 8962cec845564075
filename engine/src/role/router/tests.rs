//! The router between mock workers and a raw client, over real sockets, byte by byte.

mod answers;
mod api;
mod client;
mod discovery;
mod drain;
mod failures;
mod load;
mod mock;
mod requests;

use std::net::SocketAddr;
use std::time::Duration;

use engine_spec::config::EngineConfig;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::RouterError;
use super::discovery::Access;
use client::{Exchange, get};
use mock::Mock;

/// Long enough for a busy machine, short enough to fail a hanging test.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `holds`.
#[track_caller]
fn eventually<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let waited = tokio::time::timeout(PATIENCE, async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(waited.await.is_ok(), "{caller}: never came true");
    }
}

/// A running router and its workers.
struct Bench {
    address: SocketAddr,
    stop: CancellationToken,
    hurry: CancellationToken,
    router: JoinSet<Result<(), RouterError>>,
    decodes: Vec<Mock>,
    prefill: Mock,
}

/// What a test changes in the configuration.
type Change = fn(&mut EngineConfig);

fn config(decodes: &[Mock], prefill: &Mock) -> EngineConfig {
    let decode: Vec<&str> = decodes.iter().map(Mock::address).collect();
    let json = serde_json::json!({
        "name": "test-router", "role": "router",
        "model": {"name": "needle", "contextTokens": 32768},
        "peers": {"decode": decode, "prefill": [{"grpc": "10.9.8.7:9000", "http": prefill.address()}]},
    });
    EngineConfig::from_json(&json.to_string()).unwrap()
}

impl Bench {
    async fn start(decodes: usize, change: Change) -> Self {
        let mut mocks = Vec::new();
        for _ in 0..decodes {
            mocks.push(Mock::start().await);
        }
        let bench = Self::start_with(mocks, Mock::start().await, change).await;
        bench.workers_ready().await;
        bench
    }

    async fn start_with(decodes: Vec<Mock>, prefill: Mock, change: Change) -> Self {
        let mut config = config(&decodes, &prefill);
        change(&mut config);
        Self::serve(config, Access::InCluster, decodes, prefill).await
    }

    async fn serve(config: EngineConfig, access: Access, decodes: Vec<Mock>, prefill: Mock) -> Self {
        let (stop, hurry) = (CancellationToken::new(), CancellationToken::new());
        let (announce, announced) = tokio::sync::oneshot::channel();
        let mut router = JoinSet::new();
        let tokens = (stop.clone(), hurry.clone());
        router.spawn(async move {
            super::serve(&config, access, tokens.0, tokens.1, |address| announce.send(address).unwrap()).await
        });
        let address = announced.await.unwrap();
        Self { address, stop, hurry, router, decodes, prefill }
    }

    /// Waits until every decode and the prefill are in use.
    async fn workers_ready(&self) {
        let expected = self.decodes.len() as u64 + 1;
        eventually(|| async {
            let info = self.info().await;
            let workers = info["workers"].as_array().unwrap();
            workers.iter().filter(|worker| worker["state"] == "ready").count() as u64 == expected
        })
        .await;
    }

    fn decode(&self) -> &Mock {
        &self.decodes[0]
    }

    async fn info(&self) -> serde_json::Value {
        get(self.address, "/server_info").await.json()
    }

    async fn metric(&self, line: &str) -> bool {
        get(self.address, "/metrics").await.text().lines().any(|found| found == line)
    }

    /// Nothing is left in the ledger or in flight.
    async fn settles(&self) {
        eventually(|| async {
            let info = self.info().await;
            let idle = |worker: &serde_json::Value| {
                worker["backlogTokens"] == 0 && worker["waiting"] == 0 && worker["running"] == 0
            };
            info["running"] == 0 && info["workers"].as_array().unwrap().iter().all(idle)
        })
        .await;
    }

    async fn chat(&self, body: &str) -> Exchange {
        client::post(self.address, "/v1/chat/completions", &[], body.as_bytes()).await
    }

    /// The router has ended by itself, without an error.
    async fn ended(&mut self) {
        let ended = tokio::time::timeout(PATIENCE, self.router.join_next()).await;
        ended.expect("the router never ended").unwrap().unwrap().unwrap();
    }
}
