//! Health, readiness, metrics, version: what orchestrators, scrapers and the router ask. They allocate nothing in the
//! engine and never wait for it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::ApiError;
use crate::metrics;
use crate::process::Process;

pub(super) fn routes(process: Arc<Process>) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/health", get(ready))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .route("/version", get(version))
        .route("/server_info", get(info))
        .with_state(process)
}

async fn alive(State(process): State<Arc<Process>>) -> Result<&'static str, ApiError> {
    process.check_alive().map(|()| "ok\n")
}

async fn ready(State(process): State<Arc<Process>>) -> Result<&'static str, ApiError> {
    process.check_ready().map(|_| "ready\n")
}

async fn scrape(State(process): State<Arc<Process>>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], process.scrape()).into_response()
}

async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

async fn info(State(process): State<Arc<Process>>) -> Json<Value> {
    Json(process.info())
}
