//! The prefills that a decode may call: listed or looked up, greeted, and chosen for a request.
//! In: the configuration, answers of DNS and of the prefills. Out: a [`Peer`] for each request.
//! Never: a peer that neither the configuration nor the cluster names; one of another revision.
//! A prefill that DNS no longer names is called no more; what runs on it ends as it would. When DNS fails, those that
//! are known stay.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine_proto::v1::prefill_client::PrefillClient;
use engine_proto::v1::{Contract, HelloRequest};
use engine_spec::config::PeersConfig;
use http::HeaderValue;
use serde::Serialize;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::contract::REVISION;
use super::lookup::Lookup;
use crate::ApiError;
use crate::metrics::PeerCounts;
use crate::process::Process;

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

/// Rounds after which one of another revision is greeted again: it may be another process by then.
const FOREIGN_EVERY: u32 = 20;

/// Greetings under way at once.
const GREETINGS: usize = 32;

/// Between two lookups.
const LOOKUP_EVERY: Duration = Duration::from_secs(1);

/// Prefills that one decode knows: as many replicas as an object may ask for.
pub const MAX_PEERS: usize = 512;

/// Of a peer's words, so many bytes are kept.
const MAX_REASON_BYTES: usize = 1024;

/// Peers that `/server_info` lists; the counts say how many there are.
const LISTED: usize = 32;

/// The prefills.
#[derive(Debug)]
pub struct Peers {
    pub(super) name: String,
    pub(super) contract: Contract,
    /// What DNS is asked for; otherwise the peers are listed and stay.
    looked_up: Option<u16>,
    known: Mutex<Known>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Known {
    /// At most [`MAX_PEERS`]; replaced as a whole.
    peers: Arc<[Arc<Peer>]>,
    /// Why the last lookup failed.
    lookup_error: Option<String>,
}

/// One of them. Requests that run on it hold it.
#[derive(Debug)]
pub struct Peer {
    pub(super) address: String,
    pub(super) client: PrefillClient<Channel>,
    standing: Mutex<Standing>,
}

/// What is known of a prefill.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// Not greeted yet, or the last greeting or request failed, and why.
    Unknown(String),
    /// It computes another revision: while one is rolled out, that is as it should be.
    Foreign(String),
    /// It computes alike, so fast.
    Paired { tokens_per_second: f64 },
}

impl Standing {
    fn name(&self) -> &'static str {
        match self {
            Standing::Unknown(_) => "unknown",
            Standing::Foreign(_) => "otherRevision",
            Standing::Paired { .. } => "paired",
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            Standing::Unknown(why) | Standing::Foreign(why) => Some(why),
            Standing::Paired { .. } => None,
        }
    }
}

/// The peers as `/server_info` shows them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeersInfo {
    paired: usize,
    other_revision: usize,
    unknown: usize,
    lookup_error: Option<String>,
    /// The first [`LISTED`].
    peers: Vec<PeerInfo>,
}

#[derive(Debug, Serialize)]
struct PeerInfo {
    address: String,
    standing: &'static str,
    why: Option<String>,
}

impl Peer {
    fn new(address: &str) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| format!("peers.prefill: `{address}` is not host:port: {e}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_ANSWER)
            .keep_alive_while_idle(true);
        Ok(Self {
            address: address.to_owned(),
            client: PrefillClient::new(endpoint.connect_lazy()),
            standing: Mutex::new(Standing::Unknown("not greeted yet".to_owned())),
        })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn standing(&self) -> Standing {
        self.lock().clone()
    }

    fn is_paired(&self) -> bool {
        matches!(*self.lock(), Standing::Paired { .. })
    }

    fn is_foreign(&self) -> bool {
        matches!(*self.lock(), Standing::Foreign(_))
    }

    pub(super) fn stands(&self, standing: Standing) {
        *self.lock() = standing;
    }

    /// A prefill that breaks a hand-over is greeted again before others are sent to it in turn.
    pub(super) fn failed(&self, error: &ApiError) {
        if error.status == 502 {
            self.stands(Standing::Unknown(error.message.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn greet(&self, hello: HelloRequest) -> Standing {
        let mine = hello.contract.as_ref().map(|contract| contract.revision.clone()).unwrap_or_default();
        let mut request = Request::new(hello);
        request.set_timeout(HELLO_TIMEOUT);
        match self.client.clone().hello(request).await {
            Ok(answer) => {
                Standing::Paired { tokens_per_second: answer.into_inner().prefill_tokens_per_second }
            }
            Err(status) => refused(&status, &mine),
        }
    }
}

fn refused(status: &Status, mine: &str) -> Standing {
    let mut why = status.message().to_owned();
    why.truncate(why.floor_char_boundary(MAX_REASON_BYTES));
    match status.metadata().get(REVISION).map(|revision| revision.as_bytes()) {
        Some(theirs) if theirs != mine.as_bytes() => Standing::Foreign(why),
        _ => Standing::Unknown(why),
    }
}

impl Peers {
    /// # Errors
    /// An address that is none.
    pub fn new(name: &str, config: &PeersConfig, contract: Contract) -> Result<Arc<Self>, String> {
        let listed = config.prefill.iter().take(MAX_PEERS).map(|peer| Peer::new(&peer.grpc).map(Arc::new));
        let peers = listed.collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            contract,
            looked_up: config.discovery.as_ref().map(|discovery| discovery.grpc_port),
            known: Mutex::new(Known { peers, lookup_error: None }),
            next: AtomicUsize::new(0),
        }))
    }

    /// Looks the peers up, again and again, where they are not listed.
    pub async fn keep_known(&self, process: &Process, lookup: Option<Lookup>) {
        let (Some(port), Some(lookup)) = (self.looked_up, lookup) else {
            return std::future::pending().await;
        };
        let mut ticks = tokio::time::interval(LOOKUP_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match lookup().await {
                Ok(found) => self.found(&found, port),
                Err(error) => {
                    process.metrics.lookup_failures.inc();
                    self.not_found(error.to_string());
                }
            }
        }
    }

    fn found(&self, addresses: &[IpAddr], port: u16) {
        // Of a Service with two address families every prefill has two addresses: one is enough.
        let v4 = addresses.iter().any(IpAddr::is_ipv4);
        let mut wanted: BTreeSet<SocketAddr> = BTreeSet::new();
        wanted.extend(addresses.iter().filter(|ip| ip.is_ipv4() == v4).map(|ip| SocketAddr::new(*ip, port)));
        if wanted.len() > MAX_PEERS {
            tracing::warn!(found = wanted.len(), used = MAX_PEERS, "more prefills than a decode can have");
        }
        let wanted: Vec<String> = wanted.iter().take(MAX_PEERS).map(ToString::to_string).collect();
        let mut known = self.lock();
        known.lookup_error = None;
        if known.peers.iter().map(|peer| &peer.address).eq(&wanted) {
            return;
        }
        let before = Arc::clone(&known.peers);
        let kept = |address: &str| before.iter().find(|peer| peer.address == address).map(Arc::clone);
        // An address of numbers is always an endpoint.
        let peer = |address: &String| kept(address).or_else(|| Peer::new(address).ok().map(Arc::new));
        known.peers = wanted.iter().filter_map(peer).collect();
        tracing::info!(before = before.len(), now = known.peers.len(), "prefills looked up");
    }

    fn not_found(&self, why: String) {
        let mut known = self.lock();
        if known.lookup_error.as_ref() != Some(&why) {
            tracing::warn!(
                why,
                known = known.peers.len(),
                "prefills cannot be looked up; those known are kept"
            );
        }
        known.lookup_error = Some(why);
    }

    /// Greets every prefill that is not paired, again and again. The process is ready with the first that is.
    pub async fn keep_paired(&self, process: &Process) {
        let mut ticks = tokio::time::interval(HELLO_EVERY);
        for round in 0_u32.. {
            ticks.tick().await;
            self.greet_all(round.is_multiple_of(FOREIGN_EVERY)).await;
            let speed = self.speed();
            process.admission.told(speed.unwrap_or(0.0));
            process.metrics.peers(&self.counts());
            if speed.is_some() {
                process.lifecycle.ready();
            } else {
                process.lifecycle.starting(self.missing());
            }
        }
    }

    /// Greets those that are not paired, those of another revision only if told to.
    async fn greet_all(&self, foreign: bool) {
        let peers = self.all();
        let due = peers.iter().filter(|peer| !peer.is_paired() && (foreign || !peer.is_foreign()));
        let mut due = due.map(Arc::clone);
        let mut greetings = JoinSet::new();
        loop {
            while greetings.len() < GREETINGS
                && let Some(peer) = due.next()
            {
                let hello = HelloRequest { contract: Some(self.contract.clone()), name: self.name.clone() };
                greetings.spawn(async move {
                    let standing = peer.greet(hello).await;
                    (peer, standing)
                });
            }
            match greetings.join_next().await {
                Some(Ok((peer, standing))) => {
                    self.note(&peer, &standing);
                    peer.stands(standing);
                }
                Some(Err(error)) => tracing::error!(%error, "a greeting panicked"),
                None => return,
            }
        }
    }

    fn note(&self, peer: &Peer, now: &Standing) {
        if peer.standing() == *now {
            return;
        }
        match now {
            Standing::Paired { tokens_per_second } => {
                tracing::info!(peer = peer.address, tokens_per_second, "prefill paired");
            }
            Standing::Foreign(why) => {
                tracing::info!(decode = self.name, peer = peer.address, why, "prefill of another revision");
            }
            Standing::Unknown(why) => {
                tracing::warn!(decode = self.name, peer = peer.address, why, "prefill not paired");
            }
        }
    }

    /// Of all paired prefills together; `None` when none is.
    pub(super) fn speed(&self) -> Option<f64> {
        let peers = self.all();
        let speeds = peers.iter().filter_map(|peer| match *peer.lock() {
            Standing::Paired { tokens_per_second } => Some(tokens_per_second),
            Standing::Unknown(_) | Standing::Foreign(_) => None,
        });
        speeds.reduce(|a, b| a + b)
    }

    /// Why no prefill is paired.
    fn missing(&self) -> String {
        let peers = self.all();
        let standing = peers.iter().map(|peer| (peer, peer.standing()));
        // One that should pair and does not says more than one that should not.
        let told = standing.min_by_key(|(_, standing)| matches!(standing, Standing::Foreign(_)));
        match (told, &self.lock().lookup_error) {
            (Some((peer, standing)), _) => {
                format!("no prefill is paired: {}: {}", peer.address, standing.why().unwrap_or("paired"))
            }
            (None, Some(error)) => format!("no prefill is known: DNS: {error}"),
            (None, None) => "no prefill is known yet".to_owned(),
        }
    }

    /// The prefill that the router named, or the next in turn that is paired; when none is, the next all the same: it
    /// may just be back. A router can know of a prefill before DNS does; another serves then.
    ///
    /// # Errors
    /// 400: the named one is not configured here. 503: there is none.
    pub fn choose(&self, named: Option<&HeaderValue>) -> Result<Arc<Peer>, ApiError> {
        let peers = self.all();
        if let Some(named) = named {
            let found = peers.iter().find(|peer| peer.address.as_bytes() == named.as_bytes());
            match found {
                Some(peer) if self.looked_up.is_none() || !peer.is_foreign() => return Ok(Arc::clone(peer)),
                Some(_) => {}
                None if self.looked_up.is_some() => {}
                None => {
                    let message =
                        format!("`{}` is no prefill of this decode.", named.to_str().unwrap_or("?"));
                    return Err(ApiError::invalid(crate::http::chat::PREFILL, message));
                }
            }
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(peers.len()).unwrap_or(0);
        let in_turn = || peers[turn..].iter().chain(&peers[..turn]);
        let chosen =
            in_turn().find(|peer| peer.is_paired()).or_else(|| in_turn().find(|peer| !peer.is_foreign()));
        chosen.map(Arc::clone).ok_or_else(|| ApiError::unavailable(format!("{}.", self.missing())))
    }

    /// For metrics.
    pub fn counts(&self) -> PeerCounts {
        let mut counts = PeerCounts::default();
        for peer in self.all().iter() {
            match *peer.lock() {
                Standing::Paired { .. } => counts.paired += 1,
                Standing::Foreign(_) => counts.other_revision += 1,
                Standing::Unknown(_) => counts.unknown += 1,
            }
        }
        counts
    }

    /// For people.
    pub fn info(&self) -> PeersInfo {
        let PeerCounts { paired, other_revision, unknown } = self.counts();
        let (known, lookup_error) = {
            let known = self.lock();
            (Arc::clone(&known.peers), known.lookup_error.clone())
        };
        let peer = |peer: &Arc<Peer>| {
            let standing = peer.standing();
            let (why, standing) = (standing.why().map(str::to_owned), standing.name());
            PeerInfo { address: peer.address.clone(), standing, why }
        };
        PeersInfo {
            paired,
            other_revision,
            unknown,
            lookup_error,
            peers: known.iter().take(LISTED).map(peer).collect(),
        }
    }

    pub(super) fn all(&self) -> Arc<[Arc<Peer>]> {
        Arc::clone(&self.lock().peers)
    }

    /// Every change is complete before the lock is given back.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
