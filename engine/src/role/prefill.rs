//! Prefill: computes prompts for decodes, over gRPC. HTTP serves probes and metrics only.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine_proto::v1::prefill_server::PrefillServer;
use engine_spec::EngineConfig;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::node::{Loader, Node, RoleError, load, local_addr, start_engine, watch};
use crate::binding::Report;
use crate::chain::chain;
use crate::grpc::contract::contract;
use crate::grpc::server::{Loaded, PrefillService};
use crate::http::server::bind;
use crate::process::Process;

/// Longest request: the tokens of a prompt of a million, with room.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// Calls that one decode may have under way; more wait at decode.
const MAX_STREAMS: u32 = 1024;

/// A decode that gives no sign of life for so long is gone, and what it asked for is freed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Listens, and loads in the background.
///
/// # Errors
/// An address cannot be bound.
pub async fn start(config: EngineConfig, binding: Report, loader: Loader) -> Result<Node, RoleError> {
    let missing = || RoleError::Config("a prefill needs listen.grpc".to_owned());
    let address = config.listen.grpc.ok_or_else(missing)?;
    let process = Process::new(config, binding);
    let listener = bind("listen.grpc", address).await?;
    let mut node = Node::listen(&process, crate::http::probes(Arc::clone(&process))).await?;
    node.grpc = Some(local_addr(&listener)?);
    let loaded = Arc::new(OnceLock::new());
    let service = PrefillService::new(Arc::clone(&process), Arc::clone(&loaded));
    node.tasks.spawn(serve(listener, service, node.stop.clone()));
    node.tasks.spawn(async move {
        let model = load(&process, loader).await?;
        let contract = contract(&process.config, &model.identity(), &*model.step);
        let engine = start_engine(&process, model.step, true)?;
        // Set once: a process loads once.
        let _ = loaded.set(Loaded { contract, eos: model.chat.eos() });
        process.lifecycle.ready();
        watch(&process, &engine).await
    });
    Ok(node)
}

async fn serve(
    listener: TcpListener,
    service: PrefillService,
    stop: CancellationToken,
) -> Result<(), RoleError> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(PrefillServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES))
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
        .map_err(|error| RoleError::Part(format!("prefill service: {}", chain(&error))))
}
