//! The HTTP interface of the computing roles: probes and metrics everywhere, the OpenAI API where requests are owned.
//! In: a [`Process`], and an [`Api`] for decode and unified. Out: axum routers.
//! Never: HTML, redirects, an error without a JSON body.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn;
use axum::routing::{get, post};

use crate::ApiError;
use crate::process::Process;

pub mod body;
pub mod chat;
pub mod probes;
pub mod record;
pub mod reply;
pub mod server;

pub use chat::Api;

/// What prefill serves over HTTP.
pub fn probes(process: Arc<Process>) -> Router {
    finish(probes::routes(process))
}

/// What decode and unified serve.
pub fn api(api: Arc<Api>) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/models", get(chat::models))
        .route("/tokenize", post(chat::tokenize))
        .route("/detokenize", post(chat::detokenize))
        .with_state(Arc::clone(&api));
    finish(probes::routes(Arc::clone(&api.process)).merge(routes))
}

fn finish(router: Router) -> Router {
    router
        .fallback(|uri: http::Uri| async move {
            let message = format!("There is no `{}` here.", uri.path());
            ApiError::new(404, "invalid_request_error", "not_found", message)
        })
        .method_not_allowed_fallback(|method: http::Method, uri: http::Uri| async move {
            let message = format!("`{}` does not take {method}.", uri.path());
            ApiError::new(405, "invalid_request_error", "method_not_allowed", message)
        })
        // `body::read` has the limit and the right answer for it.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(reply::name_request))
}

#[cfg(test)]
mod tests;
