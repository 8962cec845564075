//! One request as the engine thread sees it: its tokens, how far they are computed, who listens.
//! In: a [`Submission`]. Out: [`Event`]s, the last of which is `Finished` or `Failed`, once.
//! Never: waiting. A listener that is slow holds its own sequence; one that is gone ends it.

use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::ApiError;
use crate::admission::Permit;
use crate::pool::Seat;
use crate::sample::{Sampled, Sampling};
use crate::schedule::{Hold, SequenceId, View};

/// What the engine is asked for.
#[derive(Debug)]
pub struct Submission {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Tokens of the answer, at least one.
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// Alternatives wanted with every token.
    pub top: u32,
    /// Ends the answer; it is the last token told.
    pub eos: u32,
    pub deadline: Instant,
    /// Given back as the prompt is computed here.
    pub permit: Option<Permit>,
    pub kind: Kind,
}

/// Where the prompt's KV comes from and goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Prompt and answer are computed here.
    Local,
    /// A peer computes the prompt: after `Seated`, the caller fills pages and slot, then commits the first token.
    Filled,
    /// Only the prompt and the first token: pages and slot are handed out, then the token.
    HandedOver,
}

/// A part of a sequence's KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The sequence's n-th page, whole.
    Page(usize),
    Slot,
}

/// What the engine tells the request's owner.
#[derive(Debug)]
pub enum Event {
    /// [`Kind::Filled`]: slot and pages for the prompt are reserved.
    Seated,
    /// [`Kind::HandedOver`]: so many of the prompt's tokens are computed.
    Computed(usize),
    /// [`Kind::HandedOver`]: pages in order, then the slot.
    Data(Part, Bytes),
    Token(Sampled),
    /// The answer is complete: its length or EOS.
    Finished,
    Failed(ApiError),
}

/// Free places an event channel needs before its sequence computes: a token and the verdict always fit.
const ROOM: usize = 2;

/// A live sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    /// Prompt, then answer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_tokens: usize,
    /// Of `tokens`, in the cache.
    pub(crate) computed: usize,
    pub(crate) seat: Option<Seat>,
    pub(crate) submission: Settings,
    pub(crate) stage: Stage,
    permit: Option<Permit>,
    events: mpsc::Sender<Event>,
}

/// What a submission says about sampling and ending.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) sampling: Sampling,
    pub(crate) top: u32,
    pub(crate) kind: Kind,
    max_tokens: usize,
    eos: u32,
    deadline: Instant,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// Computes: prompt or answer.
    Compute,
    /// A peer fills its pages.
    Fill,
    /// All computed; pages and slot go out, then the first token.
    HandOver { first: Option<Sampled> },
}

impl Sequence {
    pub(crate) fn new(id: SequenceId, submission: Submission, events: mpsc::Sender<Event>) -> Self {
        let Submission { prompt, max_tokens, sampling, top, eos, deadline, permit, kind } = submission;
        Self {
            id,
            prompt_tokens: prompt.len(),
            tokens: prompt,
            computed: 0,
            seat: None,
            submission: Settings { sampling, top, kind, max_tokens: max_tokens as usize, eos, deadline },
            stage: if kind == Kind::Filled { Stage::Fill } else { Stage::Compute },
            permit,
            events,
        }
    }

    pub(crate) fn view(&self) -> View {
        let hold = match self.stage {
            Stage::Fill | Stage::HandOver { .. } => Hold::Transfer,
            Stage::Compute if self.has_room() => Hold::No,
            Stage::Compute => Hold::Reader,
        };
        let pages = self.seat.as_ref().map(|seat| seat.pages().len());
        View { id: self.id, tokens: self.tokens.len(), computed: self.computed, pages, hold }
    }

    /// Whether events can be told without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.events.capacity() >= ROOM
    }

    /// Nobody listens any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now >= self.submission.deadline
    }

    /// It waits, and at twice the `speed` (tokens per second) its prompt would still be too late.
    pub(crate) fn is_hopeless(&self, now: Instant, speed: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "tokens of a prompt")]
        let fastest = self.tokens.len() as f64 / (2.0 * speed);
        let left = self.submission.deadline.saturating_duration_since(now).as_secs_f64();
        self.seat.is_none() && speed > 0.0 && fastest > left
    }

    /// `tokens` more are in the cache.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.computed += tokens;
        if self.computed >= self.prompt_tokens {
            self.permit = None;
        } else if let Some(permit) = &mut self.permit {
            permit.remaining((self.prompt_tokens - self.computed) as u64);
        }
    }

    /// Loses its seat; what it knows stays and is computed again.
    pub(crate) fn retract(&mut self) {
        self.seat = None;
        self.computed = 0;
    }

    /// Appends a sampled token and tells it. True when the answer is complete.
    pub(crate) fn push(&mut self, token: Sampled) -> bool {
        let answer_tokens = self.tokens.len() + 1 - self.prompt_tokens;
        let last = token.id == self.submission.eos || answer_tokens >= self.submission.max_tokens;
        self.tokens.push(token.id);
        self.tell(Event::Token(token));
        if last {
            self.tell(Event::Finished);
        }
        last
    }

    /// Tells an event; [`has_room`](Self::has_room) was asked before. A listener that left is noticed by the next sweep.
    pub(crate) fn tell(&self, event: Event) {
        match self.events.try_send(event) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(event)) => {
                tracing::error!(id = self.id.0, ?event, "event lost: channel full")
            }
        }
    }
}
