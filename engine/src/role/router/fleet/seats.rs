//! Seats: where a worker's health, report and account are kept while it is there.
//! In: the roster. Out: who sits where.
//! Never: a seat given to another worker while requests of the one before hold something of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_router::admission::Worker;
use engine_router::policy::LeastBacklog;
use engine_router::{Health, Ledger, Policy, WorkerState};
use http::header::HeaderValue;
use http::uri::Authority;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::roster::{Member, Roster};
use super::Report;

/// Seats of one role: as many replicas as an object may ask for.
pub(in crate::role::router) const SEATS: usize = 512;

/// A worker's fixed facts, and the traces that answers leave without a lock. Requests hold it beyond its time.
#[derive(Debug)]
pub(in crate::role::router) struct Peer {
    worker: Worker,
    member: Member,
    /// Pieces of answers that came from it.
    answer_pieces: AtomicU64,
    /// Somebody met a failure: poll now.
    pub(in crate::role::router) suspicion: Notify,
    /// It is no longer on the roster.
    pub(in crate::role::router) gone: CancellationToken,
}

impl Peer {
    fn new(worker: Worker, member: Member) -> Self {
        let (suspicion, gone) = (Notify::new(), CancellationToken::new());
        Self { worker, member, answer_pieces: AtomicU64::new(0), suspicion, gone }
    }

    pub(in crate::role::router) fn worker(&self) -> Worker {
        self.worker
    }

    pub(in crate::role::router) fn role(&self) -> &'static str {
        match self.worker {
            Worker::Decode(_) => "decode",
            Worker::Prefill(_) => "prefill",
        }
    }

    pub(in crate::role::router) fn address(&self) -> &str {
        &self.member.address
    }

    pub(in crate::role::router) fn http(&self) -> Option<&Authority> {
        self.member.http.as_ref()
    }

    pub(in crate::role::router) fn name_header(&self) -> &HeaderValue {
        &self.member.name_header
    }

    pub(in crate::role::router) fn answered_a_piece(&self) {
        self.answer_pieces.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::role::router) fn answer_pieces(&self) -> u64 {
        self.answer_pieces.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) peer: Arc<Peer>,
    pub(super) health: Health,
    pub(super) report: Report,
    /// What it said that it computes with.
    pub(super) revision: Option<Arc<str>>,
}

impl Seat {
    fn new(peer: Peer) -> Self {
        let health = if peer.http().is_some() { Health::unknown() } else { Health::assumed_ready() };
        Self { peer: Arc::new(peer), health, report: Report::default(), revision: None }
    }

    pub(super) fn state(&self) -> WorkerState {
        self.health.state()
    }
}

/// The seats of one role; never more than [`SEATS`].
#[derive(Debug, Default)]
pub(super) struct Row {
    seats: Vec<Option<Seat>>,
    /// Members of the roster that found no seat.
    unseated: usize,
}

impl Row {
    pub(super) fn taken(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().flatten()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Seat> {
        self.seats.get(index)?.as_ref()
    }

    /// Vacates the seats of those who are not on the roster, gives seats to those who have none, and returns these.
    fn adopt(
        &mut self,
        members: &[Member],
        worker: impl Fn(usize) -> Worker,
        ledger: &Ledger,
    ) -> Vec<Arc<Peer>> {
        for seat in &mut self.seats {
            if let Some(Seat { peer, .. }) = seat
                && !members.contains(&peer.member)
            {
                tracing::info!(worker = peer.address(), role = peer.role(), "worker left");
                peer.gone.cancel();
                *seat = None;
            }
        }
        let (mut new, mut from) = (Vec::new(), 0);
        self.unseated = 0;
        for member in members {
            if self.taken().any(|seat| seat.peer.member == *member) {
                continue;
            }
            let is_free = |&index: &usize| self.get(index).is_none() && ledger.is_free(worker(index));
            let Some(index) = (from..SEATS).find(is_free) else {
                self.unseated += 1;
                continue;
            };
            from = index + 1;
            ledger.open(worker(index));
            let seat = Seat::new(Peer::new(worker(index), member.clone()));
            tracing::info!(worker = seat.peer.address(), role = seat.peer.role(), "worker joined");
            new.push(Arc::clone(&seat.peer));
            if self.seats.len() <= index {
                self.seats.resize_with(index + 1, || None);
            }
            self.seats[index] = Some(seat);
        }
        new
    }
}

#[derive(Debug)]
pub(super) struct Seats {
    pub(super) decodes: Row,
    pub(super) prefills: Row,
    pub(super) policy: Box<dyn Policy>,
}

impl Seats {
    pub(super) fn new() -> Self {
        let policy = Box::new(LeastBacklog::default());
        Self { decodes: Row::default(), prefills: Row::default(), policy }
    }

    /// Who is new.
    pub(super) fn adopt(&mut self, roster: &Roster, ledger: &Ledger) -> Vec<Arc<Peer>> {
        let mut new = self.decodes.adopt(&roster.decodes, Worker::Decode, ledger);
        new.extend(self.prefills.adopt(&roster.prefills, Worker::Prefill, ledger));
        new
    }

    /// Those of the roster that found no seat.
    pub(super) fn unseated(&self) -> usize {
        self.decodes.unseated + self.prefills.unseated
    }

    /// The seat of `peer`, unless it has left.
    pub(super) fn seat(&mut self, peer: &Arc<Peer>) -> Option<&mut Seat> {
        let (row, index) = match peer.worker {
            Worker::Decode(index) => (&mut self.decodes, index),
            Worker::Prefill(index) => (&mut self.prefills, index),
        };
        row.seats.get_mut(index)?.as_mut().filter(|seat| Arc::ptr_eq(&seat.peer, peer))
    }
}
