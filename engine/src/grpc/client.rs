//! Decode's side of the hand-over: the prefills it may call, and a request's way through one of them.
//! In: a reserved request. Out: its events, from the first token on.
//! Never: a second try of a request that prefill has seen; a peer that is not configured; a wait without an end.
//! A prefill that does not answer is noticed by its connection: refused or not made within a second, or silent for four.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine_proto::v1::prefill_client::PrefillClient;
use engine_proto::v1::prefill_event::Event as Message;
use engine_proto::v1::{self, Contract, HelloRequest, PrefillRequest};
use engine_spec::config::PrefillPeer;
use http::HeaderValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use super::assembly::Assembly;
use super::verdict::from_status;
use crate::ApiError;
use crate::admission::Permit;
use crate::engine::{Engine, EventStream};
use crate::process::Process;
use crate::sample::{Sampled, Sampling};
use crate::schedule::SequenceId;
use crate::sequence::{Event, Submission};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection without a sign of life for both together is dead. The answer has time for a prefill whose CPUs are all
/// at work.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(3);

/// Bytes under way before prefill waits: of one request, and of all. The defaults (64 KiB) would wait for every frame.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two rounds of greetings of those that are not paired.
const HELLO_EVERY: Duration = Duration::from_millis(250);

/// The configured prefills.
#[derive(Debug)]
pub struct Peers {
    name: String,
    contract: Contract,
    peers: Vec<Peer>,
    next: AtomicUsize,
}

/// One of them.
#[derive(Debug)]
pub struct Peer {
    address: String,
    client: PrefillClient<Channel>,
    standing: Mutex<Standing>,
}

/// What is known of a prefill.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// Not greeted yet, or the last greeting or request failed, and why.
    Unknown(String),
    /// It computes alike, so fast.
    Paired { tokens_per_second: f64 },
}

impl Peer {
    fn new(peer: &PrefillPeer) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{}", peer.grpc))
            .map_err(|e| format!("peers.prefill: `{}` is not host:port: {e}", peer.grpc))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_ANSWER)
            .keep_alive_while_idle(true);
        Ok(Self {
            address: peer.grpc.clone(),
            client: PrefillClient::new(endpoint.connect_lazy()),
            standing: Mutex::new(Standing::Unknown("not greeted yet".to_owned())),
        })
    }

    pub fn standing(&self) -> Standing {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stands(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// A prefill that breaks a hand-over is greeted again before others are sent to it in turn.
    fn failed(&self, error: &ApiError) {
        if error.status == 502 {
            self.stands(Standing::Unknown(error.message.clone()));
        }
    }

    async fn greet(&self, contract: &Contract, name: &str) -> Standing {
        let hello = HelloRequest { contract: Some(contract.clone()), name: name.to_owned() };
        let mut request = Request::new(hello);
        request.set_timeout(HELLO_TIMEOUT);
        match self.client.clone().hello(request).await {
            Ok(answer) => {
                Standing::Paired { tokens_per_second: answer.into_inner().prefill_tokens_per_second }
            }
            Err(status) => Standing::Unknown(status.message().to_owned()),
        }
    }
}

impl Peers {
    /// # Errors
    /// An address that is none.
    pub fn new(name: &str, peers: &[PrefillPeer], contract: Contract) -> Result<Arc<Self>, String> {
        let peers = peers.iter().map(Peer::new).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { name: name.to_owned(), contract, peers, next: AtomicUsize::new(0) }))
    }

    /// Greets every prefill that is not paired, again and again. The process is ready with the first that is.
    pub async fn keep_paired(&self, process: &Process) {
        let mut ticks = tokio::time::interval(HELLO_EVERY);
        loop {
            ticks.tick().await;
            let mut missing = None;
            for peer in &self.peers {
                if let Standing::Unknown(before) = peer.standing() {
                    let standing = peer.greet(&self.contract, &self.name).await;
                    self.note(peer, &before, &standing);
                    peer.stands(standing.clone());
                    if let Standing::Unknown(why) = standing {
                        missing = Some(format!("no prefill is paired: {}: {why}", peer.address));
                    }
                }
            }
            let speed = self.speed();
            process.admission.told(speed.unwrap_or(0.0));
            match missing {
                Some(missing) if speed.is_none() => process.lifecycle.starting(missing),
                _ => process.lifecycle.ready(),
            }
        }
    }

    fn note(&self, peer: &Peer, before: &str, standing: &Standing) {
        match standing {
            Standing::Paired { tokens_per_second } => {
                tracing::info!(peer = peer.address, tokens_per_second, "prefill paired");
            }
            Standing::Unknown(why) if why != before => {
                tracing::warn!(decode = self.name, peer = peer.address, why, "prefill not paired");
            }
            Standing::Unknown(_) => {}
        }
    }

    /// Of all paired prefills together; `None` when none is.
    fn speed(&self) -> Option<f64> {
        let speeds = self.peers.iter().filter_map(|peer| match peer.standing() {
            Standing::Paired { tokens_per_second } => Some(tokens_per_second),
            Standing::Unknown(_) => None,
        });
        speeds.reduce(|a, b| a + b)
    }

    /// The prefill that the router named, or the next in turn that is paired; when none is, the next all the same: it
    /// may just be back.
    ///
    /// # Errors
    /// 400: the named one is not configured here.
    pub fn choose(&self, named: Option<&HeaderValue>) -> Result<&Peer, ApiError> {
        let Some(named) = named else {
            let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.peers.len();
            let mut in_turn = self.peers[turn..].iter().chain(&self.peers[..turn]);
            let paired = in_turn.find(|peer| matches!(peer.standing(), Standing::Paired { .. }));
            return Ok(paired.unwrap_or(&self.peers[turn]));
        };
        self.peers.iter().find(|peer| peer.address.as_bytes() == named.as_bytes()).ok_or_else(|| {
            let message = format!("`{}` is no prefill of this decode.", named.to_str().unwrap_or("?"));
            ApiError::invalid(crate::http::chat::PREFILL, message)
        })
    }

    /// Reserves a seat, has the prompt computed, takes its KV over. The stream then begins with the first token.
    ///
    /// # Errors
    /// Prefill's own verdict; 502 when it fails or cannot be reached; the engine's verdict.
    pub async fn start(
        &self,
        process: &Process,
        peer: &Peer,
        request_id: &str,
        submission: Submission,
        permit: Permit,
    ) -> Result<EventStream, ApiError> {
        let engine = process.check_ready()?;
        let epoch = crate::random::number();
        let request = PrefillRequest {
            request_id: request_id.to_owned(),
            epoch,
            contract: Some(self.contract.clone()),
            tokens: submission.prompt.clone(),
            sampling: Some(sampling_message(&submission.sampling)),
            top_logprobs: submission.top,
        };
        let (deadline, tokens) = (submission.deadline, submission.prompt.len());
        let mut events = engine.submit(submission).await?;
        match events.next().await {
            Event::Seated => {}
            Event::Failed(error) => return Err(error),
            event => {
                tracing::error!(?event, "event out of place");
                return Err(ApiError::internal("The engine answered out of turn."));
            }
        }
        let mut take_over = TakeOver { peers: self, process, engine, peer, permit, tokens, epoch, deadline };
        let id = events.id();
        let first = tokio::select! {
            event = events.next() => match event {
                Event::Failed(error) => return Err(error),
                _ => return Err(ApiError::internal("The engine answered out of turn.")),
            },
            first = take_over.run(id, request) => first.inspect_err(|error| peer.failed(error))?,
        };
        engine.commit(id, first).await?;
        Ok(events)
    }
}

/// One hand-over under way.
struct TakeOver<'a> {
    peers: &'a Peers,
    process: &'a Process,
    engine: &'a Engine,
    peer: &'a Peer,
    permit: Permit,
    tokens: usize,
    epoch: u64,
    deadline: Instant,
}

impl TakeOver<'_> {
    async fn run(&mut self, id: SequenceId, request: PrefillRequest) -> Result<Sampled, ApiError> {
        let mut request = Request::new(request);
        request.set_timeout(self.deadline.saturating_duration_since(Instant::now()));
        let stream = self.peer.client.clone().prefill(request).await;
        let mut stream = stream.map_err(|status| self.ended(&status))?.into_inner();
        let contract = &self.peers.contract;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let pages = engine_spec::memory::CacheFormat::pages_for(self.tokens);
        let mut assembly = Assembly::new(pages, size(contract.page_bytes), size(contract.slot_bytes));
        loop {
            match self.message(&mut stream).await? {
                Message::Accepted(accepted) => self.learn(accepted.prefill_tokens_per_second),
                Message::Progress(progress) => {
                    let left = (self.tokens as u64).saturating_sub(u64::from(progress.computed_tokens));
                    self.permit.remaining(left);
                }
                Message::Frame(frame) => {
                    let part = assembly.push(&frame).map_err(|error| self.broken(&error))?;
                    if let Some((part, bytes)) = part {
                        self.engine.fill(id, part, bytes).await?;
                    }
                }
                Message::Commit(commit) => {
                    assembly.finish(&commit, self.epoch).map_err(|error| self.broken(&error))?;
                    self.process.metrics.transferred_bytes.inc_by(assembly.bytes());
                    let first = commit.first.ok_or_else(|| self.broken(&"commit without a token"))?;
                    return self.first(first);
                }
            }
        }
    }

    async fn message(&self, stream: &mut Streaming<v1::PrefillEvent>) -> Result<Message, ApiError> {
        let message = stream.message().await.map_err(|status| self.ended(&status))?;
        let message = message.ok_or_else(|| self.broken(&"the stream ended before its commit"))?;
        message.event.ok_or_else(|| self.broken(&"a message of an unknown kind"))
    }

    /// A call that our own timer cut looks like a broken one.
    fn ended(&self, status: &Status) -> ApiError {
        match from_status(status, &self.peer.address) {
            error if error.status == 502 && Instant::now() >= self.deadline => {
                ApiError::timed_out("The request's deadline passed while its prompt was computed.")
            }
            error => error,
        }
    }

    /// The prefill's speed moved.
    fn learn(&self, tokens_per_second: f64) {
        if tokens_per_second.is_finite() && tokens_per_second > 0.0 {
            self.peer.stands(Standing::Paired { tokens_per_second });
            self.process.admission.told(self.peers.speed().unwrap_or(0.0));
        }
    }

    fn first(&self, token: v1::Token) -> Result<Sampled, ApiError> {
        if token.id >= self.peers.contract.vocab {
            return Err(self.broken(&"a first token outside of the vocabulary"));
        }
        let top = token.top.iter().map(|a| (a.id, a.logprob)).collect();
        Ok(Sampled { id: token.id, logprob: token.logprob, top })
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> ApiError {
        tracing::error!(peer = self.peer.address, %why, "hand-over broken");
        ApiError::bad_gateway(format!("Prefill {} handed over a broken prompt.", self.peer.address))
    }
}

fn sampling_message(sampling: &Sampling) -> v1::Sampling {
    let Sampling { temperature, top_p, top_k, min_p, seed } = *sampling;
    v1::Sampling { temperature, top_p, top_k, min_p, seed }
}
