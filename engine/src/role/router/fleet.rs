//! The workers as this router sees them, and the choice among them.
//! In: the roster, polls, what happens to requests. Out: a [`Placement`] for each admitted request.
//! Never: I/O; a lock held across a wait.
//! Choice and admission happen under one lock: two requests never see the same free place. Workers come and go; what a
//! request knows of its worker it holds itself.

mod seats;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_router::admission::{Worker, WorkerLoad};
use engine_router::policy::Reason;
use engine_router::{
    Demand, Ledger, Limits, NoWorker, Permit, PollResult, Refusal, RequestResult, WorkerState, WorkerView,
    check_usable,
};
use engine_spec::admission::{FIXED_PART_S, queue_limit_tokens};
use engine_spec::config::{AdmissionConfig, EngineConfig};

use super::roster::Roster;
use seats::{Row, Seat, Seats};

pub(super) use seats::Peer;

/// What a worker says of its own admission.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Report {
    pub(super) limit_tokens: Option<u64>,
    pub(super) backlog_tokens: Option<u64>,
    pub(super) tokens_per_second: Option<f64>,
}

/// What a ready worker says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SelfReport {
    pub(super) revision: String,
    pub(super) admission: Report,
}

#[derive(Debug)]
pub(super) struct Fleet {
    seats: Mutex<Seats>,
    ledger: Ledger,
    admission: AdmissionConfig,
    /// Whether a request needs a prefill besides its decode.
    needs_prefill: bool,
}

/// Where an admitted request goes.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) decode: Arc<Peer>,
    pub(super) prefill: Option<Arc<Peer>>,
    pub(super) reason: Reason,
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
pub(super) struct WorkerStatus {
    pub(super) peer: Arc<Peer>,
    pub(super) state: WorkerState,
    pub(super) revision: Option<Arc<str>>,
    pub(super) load: WorkerLoad,
}

impl Fleet {
    /// A fleet without workers.
    pub(super) fn new(config: &EngineConfig) -> Self {
        let peers = &config.peers;
        let found = peers.discovery.as_ref().is_some_and(|discovery| discovery.prefill_service.is_some());
        Self {
            ledger: Ledger::default(),
            seats: Mutex::new(Seats::new()),
            admission: config.admission,
            needs_prefill: found || !peers.prefill.is_empty(),
        }
    }

    /// Takes the roster over; returns the workers that are new.
    pub(super) fn adopt(&self, roster: &Roster) -> Vec<Arc<Peer>> {
        self.lock().adopt(roster, &self.ledger)
    }

    /// Workers that found no seat.
    pub(super) fn unseated(&self) -> usize {
        self.lock().unseated()
    }

    /// Chooses a pair for a request with a body of this size and admits it.
    ///
    /// # Errors
    /// [`NotPlaced`] when there is no usable pair, or the backlog is full.
    pub(super) fn place(&self, body_bytes: u64) -> Result<Placement, NotPlaced> {
        let mut seats = self.lock();
        let limits = self.limits(&seats.decodes);
        let Seats { decodes, prefills, policy } = &mut *seats;
        let decode_views = self.views(decodes);
        let prefill_views = self.needs_prefill.then(|| self.views(prefills));
        let choice = policy.choose(&decode_views, prefill_views.as_deref())?;
        // Positions count those who are there; a request remembers whom it got.
        let decode = decodes.taken().nth(choice.decode).ok_or(NoWorker::Decode)?;
        let prefill = choice.prefill.and_then(|position| prefills.taken().nth(position));
        let demand = Demand {
            decode: index(&decode.peer),
            prefill: prefill.map(|seat| index(&seat.peer)),
            body_bytes,
        };
        let permit = self.ledger.admit(demand, &limits, |index| is_usable(decodes, index))?;
        let (decode, prefill) = (Arc::clone(&decode.peer), prefill.map(|seat| Arc::clone(&seat.peer)));
        Ok(Placement { decode, prefill, reason: choice.reason, permit })
    }

    /// A decode for a question that computes nothing.
    ///
    /// # Errors
    /// [`NoWorker`] when no decode is usable.
    pub(super) fn any_decode(&self) -> Result<Arc<Peer>, NoWorker> {
        let mut seats = self.lock();
        let Seats { decodes, policy, .. } = &mut *seats;
        let choice = policy.choose(&self.views(decodes), None)?;
        decodes.taken().nth(choice.decode).map(|seat| Arc::clone(&seat.peer)).ok_or(NoWorker::Decode)
    }

    /// # Errors
    /// [`NoWorker`]: what is missing for a request.
    pub(super) fn ready(&self) -> Result<(), NoWorker> {
        let seats = self.lock();
        let prefills = self.needs_prefill.then(|| self.views(&seats.prefills));
        check_usable(&self.views(&seats.decodes), prefills.as_deref())
    }

    /// Backlog and limit of the usable decodes.
    pub(super) fn backlog(&self) -> (u64, Limits) {
        let seats = self.lock();
        let backlog = self.ledger.totals(|index| is_usable(&seats.decodes, index)).0;
        (backlog, self.limits(&seats.decodes))
    }

    pub(super) fn status(&self) -> Vec<WorkerStatus> {
        let seats = self.lock();
        let of = |seat: &Seat| WorkerStatus {
            peer: Arc::clone(&seat.peer),
            state: seat.state(),
            revision: seat.revision.clone(),
            load: self.ledger.load(seat.peer.worker()),
        };
        seats.decodes.taken().chain(seats.prefills.taken()).map(of).collect()
    }

    /// A question for the worker's own backlog goes out; the number belongs to its answer. `None`: it has left.
    pub(super) fn poll_begins(&self, peer: &Arc<Peer>) -> Option<u64> {
        self.lock().seat(peer).map(|seat| self.ledger.poll_begins(seat.peer.worker()))
    }

    pub(super) fn polled(&self, peer: &Arc<Peer>, result: PollResult) {
        self.change(peer, |seat| seat.health.polled(result));
    }

    /// The worker is ready and said this of itself; `None`: it did not answer. It is given requests only when it has
    /// once said which revision it is.
    pub(super) fn polled_ready(&self, peer: &Arc<Peer>, poll: u64, said: Option<SelfReport>) {
        self.change(peer, |seat| {
            let said_now = said.is_some();
            let SelfReport { revision, admission } = said.unwrap_or_default();
            if said_now && seat.revision.as_deref() != Some(revision.as_str()) {
                seat.revision = Some(revision.into());
            }
            seat.report = admission;
            let known = seat.revision.is_some();
            seat.health.polled(if known { PollResult::Ready } else { PollResult::NotReady });
            match admission.backlog_tokens {
                Some(tokens) => self.ledger.reported(peer.worker(), poll, tokens),
                None => self.ledger.forget_report(peer.worker()),
            }
        });
    }

    /// What happened to a request at `peer`; a failure is followed by a poll at once.
    pub(super) fn requested(&self, peer: &Arc<Peer>, result: RequestResult) {
        self.change(peer, |seat| seat.health.requested(result));
        if !matches!(result, RequestResult::Status(..500)) {
            peer.suspicion.notify_one();
        }
    }

    /// What is learned of a worker that has left changes nothing: its seat may be another's.
    fn change(&self, peer: &Arc<Peer>, change: impl FnOnce(&mut Seat)) {
        let mut seats = self.lock();
        let Some(seat) = seats.seat(peer) else { return };
        let before = seat.state();
        change(seat);
        let after = seat.state();
        if !after.takes_requests() {
            self.ledger.forget_report(peer.worker());
        }
        drop(seats);
        if before != after {
            let (before, after) = (before.label(), after.label());
            tracing::info!(worker = peer.address(), before, after, "worker state changed");
        }
    }

    /// The limits of all usable decodes together: the object's figure, or that of its speed, or what each one reports.
    fn limits(&self, decodes: &Row) -> Limits {
        let usable = || decodes.taken().filter(|seat| seat.state().takes_requests());
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

    fn views<'a>(&self, row: &'a Row) -> Vec<WorkerView<'a>> {
        let view = |seat: &'a Seat| WorkerView {
            state: seat.state(),
            load: self.ledger.load(seat.peer.worker()),
            revision: seat.revision.as_deref(),
        };
        row.taken().map(view).collect()
    }

    /// Every change is complete before the lock is given back, so a poisoned lock guards whole seats.
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_usable(row: &Row, index: usize) -> bool {
    row.get(index).is_some_and(|seat| seat.state().takes_requests())
}

/// The seat of a peer, as the ledger numbers it.
fn index(peer: &Peer) -> usize {
    match peer.worker() {
        Worker::Decode(index) | Worker::Prefill(index) => index,
    }
}

#[cfg(test)]
mod tests;
