use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Instant;

use futures_util::{Stream, StreamExt as _};
use node_agent_proto::SERVER_NAME;
use node_agent_proto::v1::node_facts_server::{NodeFacts as Service, NodeFactsServer};
use node_agent_proto::v1::watch_response::Event;
use node_agent_proto::v1::{GetRequest, GetResponse, Observed, Position, WatchRequest, WatchResponse};
use node_facts::{Memory, Reading};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

/// Authorization and position of one call.
type Asked = (String, Option<Position>);

/// An agent that tells what its channel holds, and remembers how it was asked.
#[derive(Clone)]
struct Agent {
    told: watch::Sender<NodeFacts>,
    asked: Arc<Mutex<Vec<Asked>>>,
    instance: String,
}

#[tonic::async_trait]
impl Service for Agent {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        Err(Status::unimplemented("the operator watches"))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let token = request.metadata().get("authorization").unwrap().to_str().unwrap().to_owned();
        let last_seen = request.into_inner().last_seen;
        self.asked.lock().unwrap().push((token.clone(), last_seen.clone()));
        if token != "Bearer good" {
            return Err(Status::unauthenticated("the token is not good"));
        }
        let (instance, mut sequence) = (self.instance.clone(), 0);
        let resumes = last_seen.is_some_and(|position| position.instance == instance);
        let messages = WatchStream::new(self.told.subscribe()).map(move |facts| {
            let all = node_agent_proto::sections(&facts);
            let event = if sequence == 0 && !resumes { Event::Snapshot(all) } else { Event::Changes(all) };
            sequence += 1;
            let position = Some(Position { instance: instance.clone(), sequence });
            Ok(WatchResponse { position, observed: Some(Observed::default()), event: Some(event) })
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

/// A server with all its connections: they are tasks of their own, and end with their runtime as with a process.
struct Running(Option<Runtime>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

struct Authority {
    key: KeyPair,
    params: CertificateParams,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(Vec::new()).unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { key, params, pem }
    }

    fn identity(&self) -> Identity {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).unwrap();
        Identity::from_pem(params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    }
}

impl Agent {
    fn new(instance: &str, available: u64) -> Self {
        let told = watch::Sender::new(facts(available));
        Agent { told, asked: Arc::default(), instance: instance.into() }
    }

    /// Serves until dropped; port 0 is any.
    async fn serve(&self, authority: &Authority, port: u16) -> (Running, SocketAddr) {
        let identity = ServerTlsConfig::new().identity(authority.identity());
        let mut server = Server::builder().tls_config(identity).unwrap();
        let service = NodeFactsServer::new(self.clone());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (bound, address) = oneshot::channel();
        runtime.spawn(async move {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            let incoming = TcpListenerStream::new(listener);
            server.add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        (Running(Some(runtime)), address.await.unwrap())
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn facts(available: u64) -> NodeFacts {
    let unread = || "not read".to_owned();
    NodeFacts {
        node: "as the agent calls it".into(),
        numa: Reading::Absent(unread()),
        cpus: Reading::Absent(unread()),
        memory: Reading::Value(Memory { total: 1600, free: 0, available }),
        cgroup_memory_limit: Reading::Absent(unread()),
        gpus: Reading::Absent(unread()),
        links: Vec::new(),
        kubelet: Reading::Absent(unread()),
        notes: Vec::new(),
    }
}

struct Operator {
    agents: Agents,
    folder: tempfile::TempDir,
    _work: JoinSet<()>,
}

impl Operator {
    fn new(authority: &Authority, token: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), token).unwrap();
        let settings = AgentSettings {
            first_retry: Duration::from_millis(50),
            longest_retry: Duration::from_millis(400),
            ..AgentSettings::new(folder.path().join("token"))
        };
        let (agents, work) = Agents::new(settings);
        let mut tasks = JoinSet::new();
        tasks.spawn(work);
        agents.set_ca(authority.pem.clone().into_bytes());
        Operator { agents, folder, _work: tasks }
    }

    fn available(&self, node: &str) -> Option<u64> {
        let all = self.agents.snapshot();
        let (facts, _) = all.iter().find(|(facts, _)| facts.node == node)?;
        Some(facts.memory.value()?.available)
    }

    fn nodes(&self) -> BTreeSet<String> {
        self.agents.snapshot().iter().map(|(facts, _)| facts.node.clone()).collect()
    }
}

fn pod(node: &str, address: SocketAddr) -> AgentPod {
    AgentPod { name: format!("agent-{node}"), node: node.into(), address }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(DEADLINE, waiting).await.is_ok(), "waited in vain until {what}");
}

#[tokio::test]
async fn facts_of_every_agent_arrive_under_the_names_of_their_nodes() {
    let authority = Authority::new();
    let operator = Operator::new(&authority, "good\n");
    let mut changed = operator.agents.changed();
    let (a, b) = (Agent::new("a", 100), Agent::new("b", 200));
    let ((_a, at_a), (_b, at_b)) = (a.serve(&authority, 0).await, b.serve(&authority, 0).await);
    operator.agents.set_pods(vec![pod("n2", at_b), pod("n1", at_a)]);
    until("both have reported", || {
        operator.available("n1") == Some(100) && operator.available("n2") == Some(200)
    })
    .await;
    assert_eq!(operator.agents.connections(), Connections { expected: 2, connected: 2 });

    let before = *changed.borrow_and_update();
    a.told.send_replace(facts(150));
    until("noise is in the facts", || operator.available("n1") == Some(150)).await;
    assert!(!changed.has_changed().unwrap(), "noise wakes nobody");
    a.told.send_replace(facts(1_500));
    timeout(DEADLINE, changed.changed()).await.unwrap().unwrap();
    assert_eq!(operator.agents.changed_since(before), BTreeSet::from(["n1".to_owned()]));
}

#[tokio::test]
async fn an_agent_that_is_killed_is_met_again_within_the_backoff_and_resumes() {
    let authority = Authority::new();
    let operator = Operator::new(&authority, "good");
    let agents = [Agent::new("a", 100), Agent::new("b", 100), Agent::new("c", 100)];
    let mut running = Vec::new();
    let mut pods = Vec::new();
    for (node, agent) in ["n1", "n2", "n3"].into_iter().zip(&agents) {
        let (tasks, address) = agent.serve(&authority, 0).await;
        running.push(tasks);
        pods.push(pod(node, address));
    }
    operator.agents.set_pods(pods.clone());
    until("all report", || operator.agents.connections().connected == 3).await;

    drop(running.remove(1));
    until("one is missed", || operator.agents.connections().connected == 2).await;
    assert!(operator.agents.problems().contains_key("agent-n2"));
    assert_eq!(operator.available("n2"), Some(100), "its node's facts stay");

    agents[1].told.send_replace(facts(1_000));
    let (_again, _) = agents[1].serve(&authority, pods[1].address.port()).await;
    let back = Instant::now();
    until("it is back", || operator.available("n2") == Some(1_000)).await;
    // The longest wait of these settings, and a second for a busy machine.
    assert!(back.elapsed() < Duration::from_millis(1_400), "{:?}", back.elapsed());
    let resumed = agents[1].asked().last().unwrap().1.clone();
    assert_eq!(resumed.map(|position| position.instance), Some("b".to_owned()));
    assert_eq!(agents[0].asked().len(), 1, "the others' streams went on");
}

#[tokio::test]
async fn a_token_is_read_anew_and_a_refusal_is_told() {
    let authority = Authority::new();
    let operator = Operator::new(&authority, "old");
    let agent = Agent::new("a", 100);
    let (_agent, address) = agent.serve(&authority, 0).await;
    operator.agents.set_pods(vec![pod("n1", address)]);
    let told = || operator.agents.problems().get("agent-n1").cloned().unwrap_or_default();
    until("the refusal is told", || told().contains("(Unauthenticated): the token is not good")).await;
    std::fs::write(operator.folder.path().join("token"), "good").unwrap();
    until("the new token is shown", || operator.available("n1") == Some(100)).await;
    assert!(operator.agents.problems().is_empty());
}

#[tokio::test]
async fn a_new_ca_holds_for_new_connections_and_none_before_the_first() {
    let (authority, other) = (Authority::new(), Authority::new());
    let operator = Operator::new(&other, "good");
    let agent = Agent::new("a", 100);
    let (_agent, address) = agent.serve(&authority, 0).await;
    operator.agents.set_pods(vec![pod("n1", address)]);
    let told = || operator.agents.problems().get("agent-n1").cloned().unwrap_or_default();
    until("the certificate is refused", || told().contains("invalid peer certificate")).await;
    assert_eq!(agent.asked(), [], "no token goes to a server that is not trusted");
    operator.agents.set_ca(format!("{}{}", other.pem, authority.pem).into_bytes());
    until("the agent is trusted", || operator.available("n1") == Some(100)).await;
}

#[tokio::test]
async fn pods_that_are_gone_are_let_go_and_their_nodes_remembered() {
    let authority = Authority::new();
    let operator = Operator::new(&authority, "good");
    let (a, b) = (Agent::new("a", 100), Agent::new("b", 200));
    let ((_a, at_a), (_b, at_b)) = (a.serve(&authority, 0).await, b.serve(&authority, 0).await);
    operator.agents.set_pods(vec![pod("n1", at_a), pod("n2", at_b)]);
    until("both report", || operator.agents.connections().connected == 2).await;
    operator.agents.set_pods(vec![pod("n2", at_b)]);
    until("one stream is closed", || a.told.receiver_count() == 0).await;
    assert_eq!(operator.agents.connections(), Connections { expected: 1, connected: 1 });
    assert_eq!(operator.nodes(), BTreeSet::from(["n1".to_owned(), "n2".to_owned()]));
}
