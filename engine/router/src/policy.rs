//! Which decode and which prefill serve the next request; the two are chosen together, and the choice says why.
//! In: [`WorkerView`]s of both lists. Out: a [`Choice`], or which role has no worker to offer.
//! Never: a worker that does not take requests; a suspect while another is ready.

mod least_backlog;

use crate::admission::WorkerLoad;
use crate::health::WorkerState;

pub use least_backlog::LeastBacklog;

/// What a policy may know of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerView {
    pub state: WorkerState,
    pub load: WorkerLoad,
}

/// The chosen pair, as indexes into the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub decode: usize,
    /// `None` where there are no prefills at all: the decodes compute prompts themselves.
    pub prefill: Option<usize>,
    pub reason: Reason,
}

/// Why this pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The only ones that take requests.
    OnlyOnes,
    /// They carry the least.
    LeastBacklog { decode_running: u32, prefill_backlog_tokens: u64 },
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::OnlyOnes => f.write_str("the only ones that take requests"),
            Reason::LeastBacklog { decode_running, prefill_backlog_tokens } => {
                write!(f, "least load: {decode_running} running, {prefill_backlog_tokens} tokens to prefill")
            }
        }
    }
}

/// A role has no worker that takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWorker {
    #[error("no decode is ready; try again shortly")]
    Decode,
    #[error("no prefill is ready; try again shortly")]
    Prefill,
}

/// A way to choose. It may remember earlier choices; it sees no clock and no randomness.
pub trait Policy: std::fmt::Debug + Send {
    /// # Errors
    /// [`NoWorker`] when one of the lists has workers and none of them takes requests, or there is no decode at all.
    fn choose(&mut self, decodes: &[WorkerView], prefills: &[WorkerView]) -> Result<Choice, NoWorker>;
}

/// The workers of a list that a policy may choose from: the ready ones, or the suspects where none is ready.
#[derive(Debug, Clone, Copy)]
struct Candidates<'a> {
    views: &'a [WorkerView],
    state: WorkerState,
}

impl<'a> Candidates<'a> {
    fn of(views: &'a [WorkerView]) -> Self {
        let any_ready = views.iter().any(|view| view.state == WorkerState::Ready);
        Self { views, state: if any_ready { WorkerState::Ready } else { WorkerState::Suspect } }
    }

    /// Indexes of the candidates, beginning behind `last` and going round.
    fn after(self, last: usize) -> impl Iterator<Item = usize> + 'a {
        let length = self.views.len();
        let behind = (1..=length).map(move |step| (last + step) % length);
        behind.filter(move |&index| self.views[index].state == self.state)
    }

    fn count(self) -> usize {
        self.views.iter().filter(|view| view.state == self.state).count()
    }
}

/// Chooses one worker of each list with `pick`, given the list and whether it is the decodes'.
fn choose_both(
    decodes: &[WorkerView],
    prefills: &[WorkerView],
    mut pick: impl FnMut(Candidates<'_>, Role) -> Option<usize>,
    reason: impl FnOnce(usize, Option<usize>) -> Reason,
) -> Result<Choice, NoWorker> {
    let (decode_candidates, prefill_candidates) = (Candidates::of(decodes), Candidates::of(prefills));
    if decode_candidates.count() == 0 {
        return Err(NoWorker::Decode);
    }
    if !prefills.is_empty() && prefill_candidates.count() == 0 {
        return Err(NoWorker::Prefill);
    }
    let decode = pick(decode_candidates, Role::Decode).ok_or(NoWorker::Decode)?;
    let prefill = if prefills.is_empty() {
        None
    } else {
        Some(pick(prefill_candidates, Role::Prefill).ok_or(NoWorker::Prefill)?)
    };
    let alone = decode_candidates.count() == 1 && prefill_candidates.count() <= 1;
    let reason = if alone { Reason::OnlyOnes } else { reason(decode, prefill) };
    Ok(Choice { decode, prefill, reason })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Decode,
    Prefill,
}

#[cfg(test)]
mod tests;
