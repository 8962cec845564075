//! Decode: owns requests and the API, has prompts computed by a prefill, decodes.
//! It is ready when it has loaded and a first prefill has agreed to pair; until then `/readyz` says what differs.

use std::sync::Arc;

use engine_spec::EngineConfig;

use super::node::{Loader, Node, RoleError, load, start_engine, watch};
use crate::binding::Report;
use crate::grpc::contract::contract;
use crate::grpc::lookup::{self, Lookup};
use crate::grpc::peers::Peers;
use crate::http::Api;
use crate::http::chat::{Serving, Source};
use crate::process::Process;

/// Listens, and loads in the background.
///
/// # Errors
/// The address cannot be bound.
pub async fn start(config: EngineConfig, binding: Report, loader: Loader) -> Result<Node, RoleError> {
    let lookup = config.peers.discovery.as_ref().map(lookup::by_dns);
    start_with(config, binding, loader, lookup).await
}

/// As [`start`], with peers found by `lookup`.
pub(crate) async fn start_with(
    config: EngineConfig,
    binding: Report,
    loader: Loader,
    lookup: Option<Lookup>,
) -> Result<Node, RoleError> {
    let process = Process::new(config, binding);
    let api = Api::new(Arc::clone(&process));
    let mut node = Node::listen(&process, crate::http::api(Arc::clone(&api))).await?;
    node.tasks.spawn(async move {
        let loaded = load(&process, loader).await?;
        let contract = contract(&process.config, &loaded.identity(), &*loaded.step);
        let config = &process.config;
        let peers = Peers::new(&config.name, &config.peers, contract).map_err(RoleError::Config)?;
        // Set once: a process loads once.
        let _ = process.peers.set(Arc::clone(&peers));
        let engine = start_engine(&process, loaded.step, false)?;
        api.serve(Serving { chat: Arc::new(loaded.chat), source: Source::Peers(Arc::clone(&peers)) });
        process.lifecycle.starting("no prefill is paired yet");
        tokio::select! {
            () = peers.keep_known(&process, lookup) => Ok(()),
            () = peers.keep_paired(&process) => Ok(()),
            ended = watch(&process, &engine) => ended,
        }
    });
    Ok(node)
}
