//! The workers as this router sees them, and the choice among them.
//! In: the configuration, polls, what happens to requests. Out: a [`Placement`] for each admitted request.
//! Never: I/O; a lock held across a wait.
//! Choice and admission happen under one lock: two requests never see the same free place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine_router::admission::{Worker, WorkerLoad};
use engine_router::policy::LeastBacklog;
use engine_router::{
    Choice, Demand, Health, Ledger, Limits, NoWorker, Permit, Policy, PollResult, Refusal, RequestResult,
    WorkerState, WorkerView,
};
use engine_spec::admission::{FIXED_PART_S, queue_limit_tokens};
use engine_spec::config::{AdmissionConfig, EngineConfig};
use http::header::HeaderValue;
use http::uri::Authority;
use tokio::sync::Notify;

use super::RouterError;

/// A worker's fixed facts, and the traces that answers leave without a lock.
#[derive(Debug)]
pub(super) struct Peer {
    address: String,
    /// Where to ask; a prefill may have none.
    http: Option<Authority>,
    /// A prefill's address for `fathom-prefill`.
    name_header: HeaderValue,
    /// Pieces of answers that came from it.
    pub(super) answer_pieces: AtomicU64,
    /// Somebody met a failure: poll now.
    pub(super) suspicion: Notify,
}

impl Peer {
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn http(&self) -> Option<&Authority> {
        self.http.as_ref()
    }

    pub(super) fn name_header(&self) -> &HeaderValue {
        &self.name_header
    }

    pub(super) fn answered_a_piece(&self) {
        self.answer_pieces.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a worker says of its own admission.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Report {
    pub(super) limit_tokens: Option<u64>,
    pub(super) backlog_tokens: Option<u64>,
    pub(super) tokens_per_second: Option<f64>,
}

#[derive(Debug)]
struct Seat {
    health: Health,
    report: Report,
}

#[derive(Debug)]
struct Seats {
    decodes: Vec<Seat>,
    prefills: Vec<Seat>,
    policy: Box<dyn Policy>,
}

#[derive(Debug)]
pub(super) struct Fleet {
    decodes: Vec<Peer>,
    prefills: Vec<Peer>,
    seats: Mutex<Seats>,
    ledger: Ledger,
    admission: AdmissionConfig,
}

/// Where an admitted request goes.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) choice: Choice,
    pub(super) permit: Permit,
}

/// Why a request was not placed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(super) enum NotPlaced {
    #[error(transparent)]
    NoWorker(#[from] NoWorker),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// One worker, for `/server_info` and `/metrics`.
#[derive(Debug, Clone)]
pub(super) struct WorkerStatus<'a> {
    pub(super) role: &'static str,
    pub(super) address: &'a str,
    pub(super) state: WorkerState,
    pub(super) load: WorkerLoad,
}

impl Fleet {
    /// # Errors
    /// [`RouterError::Address`] when a peer's address is not `host:port`.
    pub(super) fn new(config: &EngineConfig) -> Result<Self, RouterError> {
        let decodes = config.peers.decode.iter().map(|address| peer(address, Some(address), "peers.decode"));
        let prefills =
            config.peers.prefill.iter().map(|peers| peer(&peers.grpc, peers.http.as_ref(), "peers.prefill"));
        let decodes: Vec<Peer> = decodes.collect::<Result<_, _>>()?;
        let prefills: Vec<Peer> = prefills.collect::<Result<_, _>>()?;
        let seats = |peers: &[Peer]| peers.iter().map(Seat::new).collect();
        let state = Seats {
            decodes: seats(&decodes),
            prefills: seats(&prefills),
            policy: Box::new(LeastBacklog::default()),
        };
        Ok(Self {
            ledger: Ledger::new(decodes.len(), prefills.len()),
            seats: Mutex::new(state),
            decodes,
            prefills,
            admission: config.admission,
        })
    }

    pub(super) fn decodes(&self) -> &[Peer] {
        &self.decodes
    }

    pub(super) fn peer(&self, worker: Worker) -> &Peer {
        match worker {
            Worker::Decode(index) => &self.decodes[index],
            Worker::Prefill(index) => &self.prefills[index],
        }
    }

    pub(super) fn prefill(&self, index: usize) -> &Peer {
        &self.prefills[index]
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = Worker> + use<> {
        let decodes = (0..self.decodes.len()).map(Worker::Decode);
        decodes.chain((0..self.prefills.len()).map(Worker::Prefill))
    }

    /// Chooses a pair for a request with a body of this size and admits it.
    ///
    /// # Errors
    /// [`NotPlaced`] when a role has no usable worker, or the backlog is full.
    pub(super) fn place(&self, body_bytes: u64) -> Result<Placement, NotPlaced> {
        let mut seats = self.lock();
        let decodes = self.views(&seats.decodes, Worker::Decode);
        let prefills = self.views(&seats.prefills, Worker::Prefill);
        let choice = seats.policy.choose(&decodes, &prefills)?;
        let limits = self.limits(&seats);
        let demand = Demand { decode: choice.decode, prefill: choice.prefill, body_bytes };
        let permit = self.ledger.admit(demand, &limits, |index| decodes[index].state.takes_requests())?;
        Ok(Placement { choice, permit })
    }

    /// A decode for a question that computes nothing.
    ///
    /// # Errors
    /// [`NoWorker`] when no decode is usable.
    pub(super) fn any_decode(&self) -> Result<usize, NoWorker> {
        let mut seats = self.lock();
        let decodes = self.views(&seats.decodes, Worker::Decode);
        seats.policy.choose(&decodes, &[]).map(|choice| choice.decode)
    }

    /// # Errors
    /// [`NoWorker`]: the role that has no usable worker.
    pub(super) fn ready(&self) -> Result<(), NoWorker> {
        let seats = self.lock();
        let usable = |seats: &[Seat]| seats.iter().any(|seat| seat.health.state().takes_requests());
        if !usable(&seats.decodes) {
            return Err(NoWorker::Decode);
        }
        if !seats.prefills.is_empty() && !usable(&seats.prefills) {
            return Err(NoWorker::Prefill);
        }
        Ok(())
    }

    /// Backlog and limit of the usable decodes.
    pub(super) fn backlog(&self) -> (u64, Limits) {
        let seats = self.lock();
        let counts = |index: usize| seats.decodes[index].health.state().takes_requests();
        (self.ledger.totals(counts).0, self.limits(&seats))
    }

    pub(super) fn status(&self) -> Vec<WorkerStatus<'_>> {
        let seats = self.lock();
        let of = |worker| {
            let (role, seat) = match worker {
                Worker::Decode(index) => ("decode", &seats.decodes[index]),
                Worker::Prefill(index) => ("prefill", &seats.prefills[index]),
            };
            let address = self.peer(worker).address();
            WorkerStatus { role, address, state: seat.health.state(), load: self.ledger.load(worker) }
        };
        self.workers().map(of).collect()
    }

    pub(super) fn polled(&self, worker: Worker, result: PollResult) {
        self.change(worker, |health| health.polled(result));
    }

    /// What happened to a request at `worker`; a failure is followed by a poll at once.
    pub(super) fn requested(&self, worker: Worker, result: RequestResult) {
        self.change(worker, |health| health.requested(result));
        if !matches!(result, RequestResult::Status(..500)) {
            self.peer(worker).suspicion.notify_one();
        }
    }

    pub(super) fn reported(&self, worker: Worker, poll: u64, report: Report) {
        self.lock().seat(worker).report = report;
        match report.backlog_tokens {
            Some(tokens) => self.ledger.reported(worker, poll, tokens),
            None => self.ledger.forget_report(worker),
        }
    }

    fn change(&self, worker: Worker, change: impl FnOnce(&mut Health)) {
        let (before, after) = {
            let mut seats = self.lock();
            let seat = seats.seat(worker);
            let before = seat.health.state();
            change(&mut seat.health);
            (before, seat.health.state())
        };
        if before != after {
            tracing::info!(
                worker = self.peer(worker).address(),
                before = before.label(),
                after = after.label(),
                "worker state changed"
            );
        }
        if !after.takes_requests() {
            self.ledger.forget_report(worker);
        }
    }

    /// The limits of all usable decodes together: the object's figure, or that of its speed, or what each one reports.
    fn limits(&self, seats: &Seats) -> Limits {
        let usable = || seats.decodes.iter().filter(|seat| seat.health.state().takes_requests());
        let tokens = usable()
            .map(|seat| self.limit_of(seat))
            .try_fold(0_u64, |sum, limit| Some(sum.saturating_add(limit?)));
        let given = self.admission.prefill_tokens_per_second;
        let speed = usable().filter_map(|seat| given.or(seat.report.tokens_per_second)).sum::<f64>();
        Limits {
            tokens,
            requests: self.admission.max_queued_requests,
            tokens_per_second: (speed > 0.0).then_some(speed),
        }
    }

    fn limit_of(&self, seat: &Seat) -> Option<u64> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of an objective are far below 2^52")]
        let objective_s = self.admission.time_to_first_token_ms as f64 / 1000.0;
        let from_speed = |mu| queue_limit_tokens(mu, objective_s, FIXED_PART_S);
        self.admission
            .queue_limit_tokens
            .or_else(|| self.admission.prefill_tokens_per_second.map(from_speed))
            .or(seat.report.limit_tokens)
    }

    fn views(&self, seats: &[Seat], worker: impl Fn(usize) -> Worker) -> Vec<WorkerView> {
        let view = |(index, seat): (usize, &Seat)| WorkerView {
            state: seat.health.state(),
            load: self.ledger.load(worker(index)),
        };
        seats.iter().enumerate().map(view).collect()
    }

    /// Every change is complete before the lock is given back, so a poisoned lock guards whole seats.
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    fn new(peer: &Peer) -> Self {
        let health = if peer.http.is_some() { Health::unknown() } else { Health::assumed_ready() };
        Self { health, report: Report::default() }
    }
}

impl Seats {
    fn seat(&mut self, worker: Worker) -> &mut Seat {
        match worker {
            Worker::Decode(index) => &mut self.decodes[index],
            Worker::Prefill(index) => &mut self.prefills[index],
        }
    }
}

fn peer(name: &str, http: Option<&String>, field: &'static str) -> Result<Peer, RouterError> {
    Ok(Peer {
        address: name.to_owned(),
        http: http.map(|address| authority(address, field)).transpose()?,
        name_header: HeaderValue::from_str(authority(name, field)?.as_str())
            .map_err(|_| RouterError::Address { field, address: name.to_owned() })?,
        answer_pieces: AtomicU64::new(0),
        suspicion: Notify::new(),
    })
}

fn authority(address: &str, field: &'static str) -> Result<Authority, RouterError> {
    let parsed = address.parse::<Authority>().ok();
    parsed
        .filter(|authority| authority.port_u16().is_some() && !authority.as_str().contains('@'))
        .ok_or_else(|| RouterError::Address { field, address: address.to_owned() })
}
