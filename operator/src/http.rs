//! What the kubelet and Prometheus ask: /healthz, /readyz, /metrics.
//! In: signs of life, counts. Out: HTTP. Never: an answer that waits for anything; objects, secrets, writes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::gather::Sources;
use crate::gather::kept::Stored;
use crate::gather::streams::Lives;
use crate::lease::Standing;
use crate::metrics::{CONTENT_TYPE, Metrics, Scrape};
use crate::reconcile::queue::Queue;

/// What the answers are made from.
pub struct Probes {
    pub lives: Arc<Lives>,
    pub sources: Arc<Sources>,
    pub metrics: Arc<Metrics>,
    pub queue: Arc<Queue>,
    pub standing: watch::Receiver<Standing>,
    /// Whether it is known which optional kinds are served.
    pub discovered: watch::Receiver<bool>,
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").finish_non_exhaustive()
    }
}

/// Serves until the stop.
pub async fn serve(
    listener: TcpListener,
    probes: Arc<Probes>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(probes);
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Fails when a watch hangs: then a restart helps. An API server that is away is no reason: a restart does not help.
async fn healthz(State(probes): State<Arc<Probes>>) -> impl IntoResponse {
    verdict(probes.lives.hanging())
}

/// Fails until every watch has its first list, and says which has not and why.
async fn readyz(State(probes): State<Arc<Probes>>) -> impl IntoResponse {
    let mut missing = probes.lives.unlisted();
    if !*probes.discovered.borrow() {
        missing.push("discovery: the API server has not said which kinds it serves".to_owned());
    }
    verdict(missing)
}

fn verdict(troubles: Vec<String>) -> (StatusCode, String) {
    match troubles.is_empty() {
        true => (StatusCode::OK, "ok\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, troubles.join("\n") + "\n"),
    }
}

async fn metrics(State(probes): State<Arc<Probes>>) -> impl IntoResponse {
    let (queued, running) = probes.queue.depth();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let scrape = Scrape {
        watches: probes.lives.ages(),
        ready: ready_states(&probes.sources),
        queued: count(queued),
        running: count(running),
        agents: count(probes.sources.agents.connections().connected),
        leading: *probes.standing.borrow() == Standing::Leading,
    };
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], probes.metrics.render(&scrape))
}

/// Objects by their condition Ready, counted from what there is: what is gone is not counted.
fn ready_states(sources: &Sources) -> BTreeMap<String, i64> {
    let mut states = BTreeMap::new();
    for stored in sources.stores.clusters.all() {
        let state = match &*stored {
            Stored::Decoded(cluster) => {
                let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
                let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
                ready.map_or("Unknown", |condition| &condition.status).to_owned()
            }
            Stored::Undecodable { .. } => "Unknown".to_owned(),
        };
        *states.entry(state).or_insert(0) += 1;
    }
    states
}
