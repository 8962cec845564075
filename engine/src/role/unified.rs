//! Prefill and decode in one process: the API over an engine that computes prompts itself.

use std::sync::Arc;

use engine_spec::EngineConfig;

use super::node::{Loader, Node, RoleError, load, start_engine, watch};
use crate::binding::Report;
use crate::http::Api;
use crate::http::chat::{Serving, Source};
use crate::process::Process;

/// Listens, and loads in the background.
///
/// # Errors
/// The address cannot be bound.
pub async fn start(config: EngineConfig, binding: Report, loader: Loader) -> Result<Node, RoleError> {
    let process = Process::new(config, binding);
    let api = Api::new(Arc::clone(&process));
    let mut node = Node::listen(&process, crate::http::api(Arc::clone(&api))).await?;
    node.tasks.spawn(async move {
        let loaded = load(&process, loader).await?;
        let engine = start_engine(&process, loaded.step, true)?;
        api.serve(Serving { chat: Arc::new(loaded.chat), source: Source::Here });
        process.lifecycle.ready();
        watch(&process, &engine).await
    });
    Ok(node)
}
