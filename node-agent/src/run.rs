//! The program: starts every part, ends when one ends or when told to.
//! Never: a part that dies in silence; a wait for connections beyond the patience at the end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::kubelet::{Heard, Kubelet};
use crate::metrics::Metrics;
use crate::observe::{self, Inputs, Machine};
use crate::scene::SceneError;
use crate::serve::grpc::{self, Service};
use crate::serve::http::{self, Health};
use crate::serve::tls::{self, Certificate};
use crate::serve::token::{Door, Tokens};
use crate::source::Tree;

/// Streams end at once when told; this is for what hangs.
const DRAIN: Duration = Duration::from_secs(5);
/// Accepted connections that the server has not taken yet.
const ACCEPTED: usize = 16;

/// Why the agent does not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot listen on {address}: {kind}; is another agent running?")]
    Listen { address: SocketAddr, kind: std::io::ErrorKind },
    #[error(
        "--insecure-loopback serves everybody who reaches {address}; expected a loopback address such as 127.0.0.1:9443"
    )]
    NotLoopback { address: SocketAddr },
    #[error("--allow-account is missing: whose tokens are accepted?")]
    NoAccount,
    #[error("cannot find the API server that reviews tokens")]
    ApiServer(#[source] Box<kube::Error>),
    #[error(transparent)]
    Scene(#[from] SceneError),
    #[error("the {part} ended: {reason}")]
    Ended { part: &'static str, reason: String },
    #[error("giving up, a new container may get the devices back: {0}")]
    NvmlLost(String),
}

/// An agent whose addresses are bound; nothing is answered yet.
#[derive(Debug)]
pub struct Agent {
    machine: Machine,
    node: Option<String>,
    kubelet_dir: PathBuf,
    root: PathBuf,
    door: Door,
    /// Absent: plaintext.
    certificate: Option<Arc<Certificate>>,
    dcgm_names: bool,
    grpc: TcpListener,
    http: TcpListener,
}

impl Agent {
    /// `client`: where tokens are reviewed; absent: as kubeconfig or the pod's own account say.
    ///
    /// # Errors
    /// An address that is taken, a scene that is none, no API server.
    pub async fn bind(config: &Config, client: Option<kube::Client>) -> Result<Self, AgentError> {
        let machine = match &config.facts {
            Some(scene) => Machine::scene(scene.clone())?,
            None => Machine::host(config.root.clone()),
        };
        let (door, certificate) = if config.insecure_loopback {
            if !config.grpc.ip().is_loopback() {
                return Err(AgentError::NotLoopback { address: config.grpc });
            }
            (Door::Open, None)
        } else {
            (tokens(config, client).await?, Some(Certificate::in_folder(config.tls_dir.clone())))
        };
        Ok(Agent {
            machine,
            node: config.node.clone(),
            kubelet_dir: config.kubelet_dir.clone(),
            root: config.root.clone(),
            door,
            certificate,
            dcgm_names: config.dcgm_names,
            grpc: listen(config.grpc).await?,
            http: listen(config.http).await?,
        })
    }

    /// Where the service is; a port of 0 became a real one.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn grpc_address(&self) -> std::io::Result<SocketAddr> {
        self.grpc.local_addr()
    }

    /// Where health and metrics are.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn http_address(&self) -> std::io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// Runs until told to stop.
    ///
    /// # Errors
    /// The part that ended by itself.
    pub async fn run(self, stop: CancellationToken) -> Result<(), AgentError> {
        let mut parts: JoinSet<AgentError> = JoinSet::new();
        let (states, newest) = watch::channel(None);
        let (gpus_in, gpus) = watch::channel(None);
        let (kubelet_in, kubelet) = watch::channel(Heard::nothing("the kubelet was not asked yet"));
        let kubelet_part = Kubelet::new(self.kubelet_dir, Tree::disk(&self.root)).keep_asking(kubelet_in);
        parts.spawn(ended("kubelet's client", kubelet_part));
        let nvml = observe::ask_gpus(self.machine.clone(), gpus_in);
        parts.spawn(async { AgentError::NvmlLost(nvml.await) });
        let inputs = Inputs { machine: self.machine, node: self.node, gpus, kubelet };
        let observer = observe::observe(inputs, instance(), states);
        parts.spawn(ended("loop that reads facts", observer));

        let metrics = Arc::new(Metrics::new(newest.clone(), self.dcgm_names));
        let health = Health {
            states: newest.clone(),
            certificate: self.certificate.clone(),
            metrics: metrics.clone(),
            started: Instant::now(),
        };
        let http = http::serve(self.http, health, stop.clone());
        parts.spawn(async { finished("HTTP server", http.await) });
        let service = Service { states: newest, door: self.door, stop: stop.clone(), metrics };
        serve_grpc(&mut parts, self.grpc, self.certificate, service);

        let first = tokio::select! {
            // Parts that end because they were told to are no failure.
            biased;
            () = stop.cancelled() => None,
            ended = parts.join_next() => ended,
        };
        match first {
            Some(Ok(error)) => Err(error),
            Some(Err(panic)) => Err(AgentError::Ended { part: "part", reason: panic.to_string() }),
            None => {
                drain(parts).await;
                Ok(())
            }
        }
    }
}

fn serve_grpc(
    parts: &mut JoinSet<AgentError>,
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    service: Service,
) {
    match certificate {
        Some(certificate) => {
            let (accepted, connections) = mpsc::channel(ACCEPTED);
            let loading = certificate.clone().keep_loading();
            parts.spawn(ended("certificate's reader", loading));
            let accepting = tls::accept(listener, certificate, accepted);
            parts.spawn(async { finished("listener", accepting.await) });
            let server = grpc::serve(ReceiverStream::new(connections), service);
            parts.spawn(async { finished("gRPC server", server.await) });
        }
        None => {
            let server = grpc::serve(TcpListenerStream::new(listener), service);
            parts.spawn(async { finished("gRPC server", server.await) });
        }
    }
}

/// Servers end when their connections do; everything else is dropped.
async fn drain(mut parts: JoinSet<AgentError>) {
    let ending = async {
        let mut servers = 2;
        while servers > 0 && parts.join_next().await.is_some() {
            servers -= 1;
        }
    };
    if timeout(DRAIN, ending).await.is_err() {
        tracing::warn!("connections were still open at the end");
    }
    parts.shutdown().await;
}

/// Parts that never end by themselves.
async fn ended(part: &'static str, work: impl Future<Output = ()>) -> AgentError {
    work.await;
    AgentError::Ended { part, reason: "it should not".to_owned() }
}

fn finished<E: std::fmt::Display>(part: &'static str, result: Result<(), E>) -> AgentError {
    let reason = result.err().map_or_else(|| "it was told to".to_owned(), |error| error.to_string());
    AgentError::Ended { part, reason }
}

async fn tokens(config: &Config, client: Option<kube::Client>) -> Result<Door, AgentError> {
    let account = config.allow_account.as_ref().ok_or(AgentError::NoAccount)?;
    let client = match client {
        Some(client) => client,
        None => kube::Client::try_default().await.map_err(|error| AgentError::ApiServer(Box::new(error)))?,
    };
    let audience = config.audience.clone();
    let tokens = Tokens::new(client, audience, (&account.namespace, &account.name));
    Ok(Door::Tokens(Arc::new(tokens)))
}

async fn listen(address: SocketAddr) -> Result<TcpListener, AgentError> {
    TcpListener::bind(address).await.map_err(|error| AgentError::Listen { address, kind: error.kind() })
}

/// Different for every run: two runs of one process id differ in the time.
fn instance() -> Arc<str> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", since.as_nanos(), std::process::id()).into()
}
