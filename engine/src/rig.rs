//! What the tests of servers stand on: nodes with a scripted model on real sockets, and a client that sees every byte.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_spec::{EngineConfig, Role};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::binding::Report;
use crate::chat::{Chat, ChatOptions};
use crate::role::node::{Loader, Node};
use crate::role::{decode, prefill, unified};
use crate::step::script::{Script, ScriptStep};

pub(crate) const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/needle");

/// Longer than anything a test waits for should take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A small engine: 64 pages, 8 slots, any limit. Tests change what they are about.
pub(crate) fn config(role: Role) -> Value {
    let grpc = (role == Role::Prefill).then_some("127.0.0.1:0");
    json!({
        "name": format!("test-{role}"), "role": role,
        "model": {"name": "needle", "path": CHECKPOINT, "contextTokens": 8192},
        "listen": {"http": "127.0.0.1:0", "grpc": grpc},
        "pools": {"kvPages": 64, "requestSlots": 8},
        "scheduler": {"chunkTokens": 256, "stepTokens": 512, "maxRunning": 8},
        "admission": {"queueLimitTokens": 1_000_000, "prefillTokensPerSecond": 1000.0},
        "chat": {"thinking": "Off", "effortProfile": "Preview"},
        "drainTimeoutMs": 10_000, "requestTimeoutMs": 60_000,
    })
}

pub(crate) fn loader(script: &Arc<Script>, fingerprint: &str) -> Loader {
    let (script, fingerprint) = (Arc::clone(script), fingerprint.to_owned());
    Box::new(move |config: &EngineConfig, _: &Report| {
        let options = ChatOptions {
            model_name: config.model.name.clone(),
            context_tokens: config.model.context_tokens,
            defaults: config.chat,
        };
        let chat = Chat::open(Path::new(CHECKPOINT), options).expect("the checkpoint of the tests is whole");
        let pools = config.pools.expect("tests configure pools");
        let step = ScriptStep::new(script, 896, pools.kv_pages, pools.request_slots);
        Ok(crate::role::node::Loaded { step: Box::new(step), chat, fingerprint, index_top_k: 64 })
    })
}

/// Starts a node with a scripted model and waits until it is ready.
pub(crate) async fn start(config: Value) -> (Node, Arc<Script>) {
    let script = Arc::new(Script::default());
    let node = launch(config, loader(&script, "scripted")).await;
    ready(&node).await;
    (node, script)
}

pub(crate) async fn launch(config: Value, loader: Loader) -> Node {
    let config = EngineConfig::from_json(&config.to_string()).expect("tests configure well");
    let binding = Report::unbound(2);
    match config.role {
        Role::Prefill => prefill::start(config, binding, loader).await,
        Role::Decode => decode::start(config, binding, loader).await,
        Role::Unified => unified::start(config, binding, loader).await,
        Role::Router => unreachable!("the router has tests of its own"),
    }
    .expect("the node listens")
}

/// A node on a runtime of its own, so that it can be killed as a process is: all its connections at once.
#[derive(Debug)]
pub(crate) struct Mortal {
    pub(crate) node: Node,
    runtime: tokio::runtime::Runtime,
}

impl Mortal {
    pub(crate) async fn start(config: Value, loader: Loader) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut starting = JoinSet::new();
        starting.spawn_on(launch(config, loader), runtime.handle());
        let node = starting.join_next().await.expect("one task").expect("the node listens");
        ready(&node).await;
        Self { node, runtime }
    }

    /// Gone when this returns.
    pub(crate) async fn kill(self) {
        let Self { node, runtime } = self;
        let gone = tokio::task::spawn_blocking(move || {
            drop(node);
            runtime.shutdown_timeout(PATIENCE);
        });
        gone.await.unwrap();
    }
}

pub(crate) async fn ready(node: &Node) {
    until("ready", || node.process.check_ready().is_ok()).await;
}

/// Waits for a condition, with a deadline.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Everything is back where it was before the first request.
pub(crate) async fn idle(node: &Node) {
    let engine = node.process.engine.get().expect("the node is loaded");
    until("all pages, slots and permits free", || {
        let (pool, admission) = (engine.pool().usage(), node.process.admission.state());
        pool.pages == pool.free_pages
            && pool.slots == pool.free_slots
            && (admission.backlog_tokens, admission.queued) == (0, 0)
            && node.process.requests.is_empty()
    })
    .await;
    until("the gauges agree", || {
        let text = node.process.scrape();
        ["fathom_requests_running 0", "fathom_requests_waiting 0", "fathom_admission_backlog_tokens 0"]
            .iter()
            .all(|line| text.lines().any(|l| l == *line))
    })
    .await;
}

/// One answer, byte by byte.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The body had its proper end.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("answers are UTF-8")
    }

    /// The answer's text, streamed or not.
    pub(crate) fn content(&self) -> String {
        if self.header("content-type") == Some("text/event-stream") {
            let events = self.events();
            let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
            events.iter().filter_map(delta).collect()
        } else {
            self.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
        }
    }

    /// The data of all events but `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// A request under way; dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Call {
    stream: TcpStream,
    received: Vec<u8>,
}

pub(crate) async fn call(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Call {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses early may close before the body is out.
    let _ = stream.write_all(body).await;
    Call { stream, received: Vec::new() }
}

impl Call {
    /// Reads until so many bytes are there, or the end.
    pub(crate) async fn read(&mut self, at_least: usize) -> &[u8] {
        while self.received.len() < at_least && self.read_some().await {}
        &self.received
    }

    async fn read_some(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.received)).await;
        matches!(read.expect("bytes come in time"), Ok(1..))
    }

    pub(crate) async fn finish(mut self) -> Answer {
        while self.read_some().await {}
        let split = self.received.windows(4).position(|w| w == b"\r\n\r\n");
        let split =
            split.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(&self.received)));
        let head = String::from_utf8(self.received[..split].to_vec()).unwrap();
        let status = head[9..12].parse().unwrap();
        let mut answer = Answer { status, head, body: self.received.split_off(split + 4), whole: true };
        if answer.header("transfer-encoding") == Some("chunked") {
            (answer.body, answer.whole) = unchunk(&answer.body);
        }
        answer
    }
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        let start = line + 2;
        let Some(chunk) = rest.get(start..start + size) else { break };
        body.extend_from_slice(chunk);
        rest = rest.get(start + size + 2..).unwrap_or_default();
    }
    (body, false)
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    call(address, "GET", path, "", b"").await.finish().await
}

/// A chat request: some words, so many tokens of answer.
pub(crate) fn question(words: &str, max_tokens: u32, stream: bool) -> Vec<u8> {
    json!({
        "model": "needle", "messages": [{"role": "user", "content": words}],
        "max_tokens": max_tokens, "stream": stream, "temperature": 0,
        "thinking": {"type": "disabled"},
    })
    .to_string()
    .into_bytes()
}

pub(crate) async fn ask(address: SocketAddr, body: &[u8]) -> Answer {
    chat(address, body).await.finish().await
}

pub(crate) async fn chat(address: SocketAddr, body: &[u8]) -> Call {
    call(address, "POST", "/v1/chat/completions", "content-type: application/json\r\n", body).await
}

/// Filler of about so many tokens.
pub(crate) fn words(n: usize) -> String {
    (0..n).map(|i| format!("{i} ")).collect::<String>()
}
