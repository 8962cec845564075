//! Which decode and which prefill serve the next request; the two are chosen together, and the choice says why.
//! In: [`WorkerView`]s of both lists. Out: a [`Choice`], or what there is no worker for.
//! Never: a worker that does not take requests; a suspect while another is ready; two of different revisions.

mod candidates;
mod least_backlog;

use crate::admission::WorkerLoad;
use crate::health::WorkerState;

pub use least_backlog::LeastBacklog;

/// What a policy may know of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerView<'a> {
    pub state: WorkerState,
    pub load: WorkerLoad,
    /// What it computes with; `None` where it was never asked: the decode's own greeting of its prefills then decides.
    pub revision: Option<&'a str>,
}

impl WorkerView<'_> {
    fn pairs_with(&self, revision: Option<&str>) -> bool {
        match (self.revision, revision) {
            (Some(mine), Some(other)) => mine == other,
            (None, _) | (_, None) => true,
        }
    }
}

/// The chosen pair, as positions in the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub decode: usize,
    /// `None` where prefills are not needed: the decodes compute prompts themselves.
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
    #[error("no decode and prefill of the same revision are ready; try again shortly")]
    Pair,
}

/// A way to choose. It may remember earlier choices; it sees no clock and no randomness.
pub trait Policy: std::fmt::Debug + Send {
    /// `prefills` is `None` where the decodes compute prompts themselves.
    ///
    /// # Errors
    /// [`NoWorker`] when a list has no worker that takes requests, or no two of them have the same revision.
    fn choose(
        &mut self,
        decodes: &[WorkerView<'_>],
        prefills: Option<&[WorkerView<'_>]>,
    ) -> Result<Choice, NoWorker>;
}

/// Whether some decode can be given a request now.
///
/// # Errors
/// [`NoWorker`], as [`Policy::choose`] would say.
pub fn check_usable(decodes: &[WorkerView<'_>], prefills: Option<&[WorkerView<'_>]>) -> Result<(), NoWorker> {
    candidates::decodes(decodes, prefills).map(|_| ())
}

#[cfg(test)]
mod tests;
