//! One agent with everything around it.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use clap::Parser as _;
use fathom_node_agent::config::Config;
use fathom_node_agent::run::{Agent, AgentError};
use node_agent_proto::v1::node_facts_client::NodeFactsClient;
use node_agent_proto::v1::{WatchRequest, WatchResponse};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

/// For everything that must happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

pub(crate) struct Rig {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) folder: tempfile::TempDir,
    /// Questions that the API server was asked.
    pub(crate) reviews: Arc<AtomicUsize>,
    pub(crate) stop: CancellationToken,
    running: JoinSet<Result<(), AgentError>>,
    _api_server: JoinSet<()>,
}

/// A CA, and what it issued last.
pub(crate) struct Authority {
    key: KeyPair,
    params: CertificateParams,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { key, params, pem }
    }

    /// Certificate and key of a server with this name.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    }
}

impl Rig {
    /// An agent that shows a scene of its own, with the certificate in place.
    pub(crate) async fn start(authority: &Authority) -> Self {
        let rig = Rig::without_certificate().await;
        rig.install(authority.issue("fathom-node-agent"));
        rig.until_ready().await;
        rig
    }

    pub(crate) async fn without_certificate() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let story = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/story");
        copy(&story, &folder.path().join("scene")).unwrap();
        let (api_server, client, reviews) = api_server().await;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let config = Config::parse_from([
            "fathom-node-agent",
            "--node=n1",
            "--grpc=127.0.0.1:0",
            "--http=127.0.0.1:0",
            "--allow-account=fathom-system:fathom-operator",
            &format!("--facts={}", path("scene")),
            &format!("--tls-dir={}", path("tls")),
            &format!("--root={}", path("root")),
            &format!("--kubelet-dir={}", path("kubelet")),
        ]);
        let agent = Agent::bind(&config, Some(client)).await.unwrap();
        let (grpc, http) = (agent.grpc_address().unwrap(), agent.http_address().unwrap());
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(agent.run(stop.clone()));
        Rig { grpc, http, folder, reviews, stop, running, _api_server: api_server }
    }

    /// As a Secret volume does it: files in a folder of their own, behind a link that is swapped.
    pub(crate) fn install(&self, (certificate, key): (String, String)) {
        let tls = self.folder.path().join("tls");
        let version = format!("..{}", fs::read_dir(&tls).map_or(0, Iterator::count));
        fs::create_dir_all(tls.join(&version)).unwrap();
        fs::write(tls.join(&version).join("tls.crt"), certificate).unwrap();
        fs::write(tls.join(&version).join("tls.key"), key).unwrap();
        symlink(&version, tls.join("..new")).unwrap();
        fs::rename(tls.join("..new"), tls.join("..data")).unwrap();
        for name in ["tls.crt", "tls.key"] {
            let _ = symlink(Path::new("..data").join(name), tls.join(name));
        }
    }

    /// Replaces a text in the scene's `nvml.yaml`.
    pub(crate) fn edit_nvml(&self, edit: impl FnOnce(String) -> String) {
        let file = self.folder.path().join("scene/nvml.yaml");
        let new = self.folder.path().join("nvml.new");
        fs::write(&new, edit(fs::read_to_string(&file).unwrap())).unwrap();
        fs::rename(new, file).unwrap();
    }

    pub(crate) async fn channel(&self, ca: &str) -> Result<Channel, tonic::transport::Error> {
        let tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("fathom-node-agent");
        let endpoint = Endpoint::from_shared(format!("https://{}", self.grpc))?.tls_config(tls)?;
        endpoint.connect().await
    }

    pub(crate) async fn client(&self, authority: &Authority) -> NodeFactsClient<Channel> {
        NodeFactsClient::new(self.channel(&authority.pem).await.unwrap())
    }

    pub(crate) async fn watch(&self, authority: &Authority) -> Streaming<WatchResponse> {
        let mut client = self.client(authority).await;
        client.watch(with_token(WatchRequest::default(), "good")).await.unwrap().into_inner()
    }

    pub(crate) async fn until_ready(&self) {
        until("the agent is ready", || async { self.get("/readyz").await.starts_with("HTTP/1.1 200") }).await;
    }

    /// The whole answer to a GET.
    pub(crate) async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    pub(crate) fn reviews(&self) -> usize {
        self.reviews.load(Ordering::Relaxed)
    }

    /// Tells the agent to stop and waits for it.
    pub(crate) async fn ended(mut self) -> Result<(), AgentError> {
        self.stop.cancel();
        timeout(DEADLINE, self.running.join_next()).await.unwrap().unwrap().unwrap()
    }
}

pub(crate) fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// The next message that is no heartbeat.
pub(crate) async fn next(stream: &mut Streaming<WatchResponse>) -> Result<WatchResponse, Status> {
    loop {
        let message = timeout(DEADLINE, stream.message()).await.expect("a message in time")?;
        let message = message.expect("a stream that goes on");
        if !matches!(message.event, Some(node_agent_proto::v1::watch_response::Event::Heartbeat(_))) {
            return Ok(message);
        }
    }
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Reviews tokens: `good` is the operator's, `other-account` another's, `other-audience` made for somebody else.
async fn api_server() -> (JoinSet<()>, kube::Client, Arc<AtomicUsize>) {
    let reviews = Arc::new(AtomicUsize::new(0));
    let routes = Router::new()
        .route("/apis/authentication.k8s.io/v1/tokenreviews", post(review))
        .with_state(reviews.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let client = kube::Client::try_from(kube::Config::new(address.parse().unwrap())).unwrap();
    (tasks, client, reviews)
}

async fn review(State(reviews): State<Arc<AtomicUsize>>, Json(mut review): Json<Value>) -> Json<Value> {
    reviews.fetch_add(1, Ordering::Relaxed);
    assert_eq!(review["spec"]["audiences"], json!(["fathom-node-agent"]));
    let accepted = |username: &str| json!({"authenticated": true, "audiences": ["fathom-node-agent"], "user": {"username": username}});
    review["status"] = match review["spec"]["token"].as_str().unwrap() {
        "good" => accepted("system:serviceaccount:fathom-system:fathom-operator"),
        "other-account" => accepted("system:serviceaccount:default:default"),
        "other-audience" => json!({"authenticated": false, "error": "token audiences [\"api\"] is invalid"}),
        other => panic!("no test has token {other}"),
    };
    Json(review)
}

fn copy(from: &Path, to: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (entry, kind) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(source)?, target)?;
        } else {
            fs::copy(source, target)?;
        }
    }
    Ok(())
}
