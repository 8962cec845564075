//! The engine: one thread that owns the model and every live sequence, and the handle that the servers hold.
//! In: [`Submission`]s, filled parts, commits. Out: an [`EventStream`] per sequence.
//! Never: a lock around the model, an unbounded queue, a wait of the thread for a listener.
//! Dropping an [`EventStream`] is the cancel: the sequence leaves before the next step and its pages are free again.
//! Only the thread writes pages, and only for sequences that are alive, so a late part can never reach another's page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::ApiError;
use crate::admission::Admission;
use crate::metrics::EngineMetrics;
use crate::pool::Pool;
use crate::sample::Sampled;
use crate::schedule::{Budget, SequenceId};
use crate::sequence::{Event, Kind, Part, Submission};
use crate::step::Step;

mod worker;

#[cfg(test)]
mod tests;

/// Commands on their way to the thread. Beyond this, callers wait: filled pages are held back at their sender.
const COMMANDS: usize = 64;

/// Tokens that wait for a slow reader before its sequence pauses.
const TOKEN_EVENTS: usize = 128;

/// Parts that wait to be sent to a peer: a page each.
const PART_EVENTS: usize = 8;

/// What the thread is told.
pub(crate) enum Command {
    Submit(SequenceId, Box<Submission>, mpsc::Sender<Event>),
    Fill(SequenceId, Part, Bytes),
    Commit(SequenceId, Sampled),
    /// Ends every sequence with this verdict.
    FailAll(ApiError),
    /// The same, then the thread ends.
    Stop(ApiError),
}

/// What the engine is started with.
#[derive(Debug)]
pub struct Settings {
    pub budget: Budget,
    pub pool: Pool,
    /// Learns the prefill speed of this engine; `None` = it does not prefill for its own queue.
    pub speed: Option<Admission>,
    pub metrics: EngineMetrics,
}

/// The handle; clones share the engine.
#[derive(Debug, Clone)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    thread: Thread,
    next_id: Arc<AtomicU64>,
    pulse: Pulse,
    pool: Pool,
    stopped: CancellationToken,
}

/// When the thread last went round, for liveness.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    epoch: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Pulse {
    fn new() -> Self {
        Self { epoch: Instant::now(), last_ms: Arc::default() }
    }

    pub(crate) fn beat(&self) {
        let ms = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    fn age(&self) -> Duration {
        self.epoch.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(step: Box<dyn Step>, settings: Settings) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (pulse, stopped, pool) = (Pulse::new(), CancellationToken::new(), settings.pool.clone());
        let worker = worker::Worker::new(step, settings, inbox, pulse.clone());
        let guard = stopped.clone().drop_guard();
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            // Dropped when the thread ends, also by a panic.
            let _guard = guard;
            worker.run();
        })?;
        let thread = thread.thread().clone();
        Ok(Self { commands, thread, next_id: Arc::default(), pulse, pool, stopped })
    }

    /// Queues a sequence. Its events come in order; the last is its verdict.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn submit(&self, submission: Submission) -> Result<EventStream, ApiError> {
        let capacity = if submission.kind == Kind::HandedOver { PART_EVENTS } else { TOKEN_EVENTS };
        let (sender, events) = mpsc::channel(capacity);
        let id = SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.send(Command::Submit(id, Box::new(submission), sender)).await?;
        Ok(EventStream { id, events, thread: self.thread.clone() })
    }

    /// Writes a part of a seated [`Kind::Filled`] sequence. Parts of sequences that are gone are dropped.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn fill(&self, id: SequenceId, part: Part, bytes: Bytes) -> Result<(), ApiError> {
        self.send(Command::Fill(id, part, bytes)).await
    }

    /// All parts are there: the sequence goes on from its first token.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn commit(&self, id: SequenceId, first: Sampled) -> Result<(), ApiError> {
        self.send(Command::Commit(id, first)).await
    }

    /// Ends every sequence with `verdict`.
    pub async fn fail_all(&self, verdict: ApiError) {
        // A stopped engine has no sequences.
        let _ = self.send(Command::FailAll(verdict)).await;
    }

    /// Ends every sequence with `verdict`, then the thread, and waits for its end.
    pub async fn stop(&self, verdict: ApiError) {
        let _ = self.send(Command::Stop(verdict)).await;
        self.stopped.cancelled().await;
    }

    /// The thread has ended: told to, or by a bug.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// How long the thread has not gone round. It does so after every step, and several times a second when idle.
    pub fn stalled_for(&self) -> Duration {
        self.pulse.age()
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    async fn send(&self, command: Command) -> Result<(), ApiError> {
        self.commands.send(command).await.map_err(|_| ApiError::internal("the engine has stopped"))?;
        self.thread.unpark();
        Ok(())
    }
}

/// The events of one sequence. Dropping it cancels the sequence.
#[derive(Debug)]
pub struct EventStream {
    id: SequenceId,
    events: mpsc::Receiver<Event>,
    thread: Thread,
}

impl EventStream {
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// The next event. After the verdict there is none; an engine that died gives one.
    pub async fn next(&mut self) -> Event {
        let paused = self.events.capacity() < 2;
        let event = self.events.recv().await;
        if paused {
            self.thread.unpark();
        }
        event.unwrap_or_else(|| Event::Failed(ApiError::internal("the engine has stopped")))
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        let paused = self.events.capacity() < 2;
        let event = self.events.try_recv().ok();
        if paused {
            self.thread.unpark();
        }
        event
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.events.close();
        self.thread.unpark();
    }
}
