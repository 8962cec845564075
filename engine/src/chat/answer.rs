//! The output machine of one request: tokens in, events or a body out.
//! In: [`Sampled`] tokens in order, then how it ended. Out: server-sent events while they come, or one JSON body.
//! Never: another answer for streams than for bodies; both are written by the same parts in the same order.
//! It owns all that it needs and does no I/O, so that a scheduler can drive it between two steps.

use std::sync::Arc;

use bytes::Bytes;
use deepseek_recipe::stream::OutputChunk;

use super::emitter::{Emitter, EmitterOptions};
use super::splitter::{Splitter, SplitterOptions};
use super::vocabulary::Vocabulary;
use crate::sample::Sampled;

/// Why no token follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model ended the answer, or a stop string did.
    Stop,
    /// The longest answer asked for, or the context, is full.
    Length,
}

/// What a token gave.
#[derive(Debug, Default)]
pub struct Pushed {
    /// Whole server-sent events; none when text is held back, and in answers that are not streamed.
    pub events: Vec<Bytes>,
    /// A stop string or the end-of-answer token was read: call [`Answer::finish`] with [`End::Stop`].
    pub stopped: bool,
}

/// What all answers of a request have in common.
#[derive(Debug, Clone)]
pub(super) struct AnswerOptions {
    pub(super) vocabulary: Arc<Vocabulary>,
    pub(super) splitter: SplitterOptions,
    pub(super) emitter: EmitterOptions,
}

/// One answer in the making.
#[derive(Debug)]
pub struct Answer {
    vocabulary: Arc<Vocabulary>,
    splitter: Splitter,
    emitter: Emitter,
    /// Empty between calls; kept for its memory.
    parts: Vec<OutputChunk>,
    finished: bool,
}

impl Answer {
    pub(super) fn new(id: String, options: AnswerOptions) -> Self {
        let AnswerOptions { vocabulary, splitter, emitter } = options;
        Self {
            splitter: Splitter::new(Arc::clone(&vocabulary), splitter),
            emitter: Emitter::new(id, emitter),
            vocabulary,
            parts: Vec::new(),
            finished: false,
        }
    }

    /// Reads the next token. Tokens after the end are ignored.
    pub fn push(&mut self, token: &Sampled) -> Pushed {
        if self.finished || self.splitter.ended() {
            return Pushed { events: Vec::new(), stopped: true };
        }
        self.emitter.note(token, self.splitter.in_reasoning(), &self.vocabulary);
        self.splitter.push(token.id, &mut self.parts);
        Pushed { events: self.write(), stopped: self.splitter.ended() }
    }

    /// Ends the answer: the text that was held back, the finish reason, usage if asked for, the terminator. What the
    /// tokens said wins over `end`. A second call gives nothing.
    pub fn finish(&mut self, end: End) -> Vec<Bytes> {
        if std::mem::replace(&mut self.finished, true) {
            return Vec::new();
        }
        self.splitter.finish(end, &mut self.parts);
        self.write()
    }

    /// The answer as one JSON body, for requests that do not stream; call [`finish`](Self::finish) first.
    pub fn body(self) -> Bytes {
        self.emitter.body()
    }

    /// Tokens read, the end-of-answer token and those of markup included.
    pub fn completion_tokens(&self) -> usize {
        self.splitter.usage().completion_tokens
    }

    fn write(&mut self) -> Vec<Bytes> {
        let so_far = self.splitter.usage();
        let mut events = Vec::new();
        for part in self.parts.drain(..) {
            self.emitter.write(part, so_far, &mut events);
        }
        events
    }
}
