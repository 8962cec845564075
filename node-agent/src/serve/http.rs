//! Health and metrics in plain HTTP, for kubelets and scrapers: nothing here is secret, nothing changes anything.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use node_facts::Reading;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::grpc::States;
use super::tls::Certificate;
use crate::metrics::Metrics;
use crate::state::State;

/// The loop reads every second; files of a machine in trouble may take longer.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// What the answers are made from.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) states: States,
    /// Absent: plaintext.
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) metrics: Arc<Metrics>,
    /// When the program started.
    pub(crate) started: std::time::Instant,
}

pub(crate) async fn serve(
    listener: TcpListener,
    health: Health,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(health);
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Alive: the loop makes progress.
async fn healthz(Shared(health): Shared<Health>) -> Response {
    let last = health.states.borrow().as_ref().map_or(health.started, |state| state.observed);
    let age = last.elapsed();
    if age < STUCK_AFTER {
        return "ok\n".into_response();
    }
    let text = format!("no facts were read for {} s\n", age.as_secs());
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Ready: there are facts, and callers can be answered. GPUs that are missing are said, and end nothing: a node whose driver
/// is being installed must not look like one whose agent is broken.
async fn readyz(Shared(health): Shared<Health>) -> Response {
    let state = health.states.borrow().clone();
    let missing = match (&state, &health.certificate) {
        (None, _) => Some("the first facts are being read"),
        (_, Some(certificate)) if !certificate.is_loaded() => {
            Some("no server certificate yet: the operator writes it into the Secret that --tls-dir shows")
        }
        _ => None,
    };
    if let Some(missing) = missing {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")).into_response();
    }
    let remark = state.as_deref().and_then(missing_gpus);
    format!("ok\n{}", remark.unwrap_or_default()).into_response()
}

fn missing_gpus(state: &State) -> Option<String> {
    let expected = *state.gpus_on_bus.value()?;
    let (seen, why) = match &state.facts.gpus {
        Reading::Value(gpus) => (gpus.len(), String::new()),
        Reading::Absent(reason) | Reading::Failed(reason) => (0, format!(": {reason}")),
    };
    (seen < expected).then(|| format!("GPUs expected: {expected} (PCI bus), usable: {seen}{why}\n"))
}

async fn metrics(Shared(health): Shared<Health>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], health.metrics.text()).into_response()
}
