//! The in-flight ledger: how many prompt tokens wait behind each worker, and whether one more request may join them.
//! In: body sizes, the engines' own counts, limits. Out: [`Permit`]s, which give back what they hold when dropped.
//! Never: a clock; a body's contents.
//! A worker's backlog is what was admitted since its last report, plus the older permits up to what the worker itself
//! reported then: an answer that is not streamed keeps its permit until its last token, though its prompt was computed
//! long ago, and only the worker knows.

mod account;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_spec::admission::{admits, retry_after_s};

use account::{Account, Entry};

/// Bytes of a request body per prompt token, until answers have told better.
pub const FIRST_BYTES_PER_TOKEN: f64 = 4.0;

/// Share of a new observation in the average of bytes per token.
const NEW_SHARE: f64 = 1.0 / 16.0;

/// Observed bytes per token outside this range say more about the body (base64, a long schema) than about text.
const PLAUSIBLE_BYTES_PER_TOKEN: std::ops::RangeInclusive<f64> = 0.25..=256.0;

/// What bounds the backlog of all usable decodes together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Prompt tokens that may wait; `None` = unknown yet, the engines decide alone.
    pub tokens: Option<u64>,
    /// Requests that may wait, whatever their size.
    pub requests: u32,
    /// Prompt tokens computed per second, for `Retry-After`.
    pub tokens_per_second: Option<f64>,
}

/// A request that asks to be admitted: where it would go and how large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub decode: usize,
    pub prefill: Option<usize>,
    pub body_bytes: u64,
}

/// Why a request may not join the backlog.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the queue is full: about {backlog} prompt tokens wait and this request adds about {own}, more than the limit of \
         {limit}; try again in {retry_after_s:.0} s"
    )]
    Tokens { backlog: u64, own: u64, limit: u64, retry_after_s: f64 },
    #[error(
        "the queue is full: {waiting} requests wait, the limit is {limit}; try again in {retry_after_s:.0} s"
    )]
    Requests { waiting: u32, limit: u32, retry_after_s: f64 },
}

impl Refusal {
    /// Seconds until another try makes sense; at least one.
    pub fn retry_after_s(&self) -> f64 {
        match self {
            Refusal::Tokens { retry_after_s, .. } | Refusal::Requests { retry_after_s, .. } => *retry_after_s,
        }
    }
}

/// What one worker carries now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Prompt tokens admitted and not yet computed.
    pub backlog_tokens: u64,
    /// Requests whose prompt is not computed yet.
    pub waiting: u32,
    /// Requests that have not ended.
    pub running: u32,
}

/// One of the two lists of workers; an index is a seat of its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Worker {
    Decode(usize),
    Prefill(usize),
}

/// The ledger; clones share the same books.
#[derive(Debug, Clone)]
pub struct Ledger {
    books: Arc<Mutex<Books>>,
}

#[derive(Debug)]
struct Books {
    decodes: Vec<Account>,
    prefills: Vec<Account>,
    bytes_per_token: f64,
}

impl Default for Ledger {
    fn default() -> Self {
        let books =
            Books { decodes: Vec::new(), prefills: Vec::new(), bytes_per_token: FIRST_BYTES_PER_TOKEN };
        Self { books: Arc::new(Mutex::new(books)) }
    }
}

impl Ledger {
    /// A ledger with so many seats taken.
    pub fn new(decodes: usize, prefills: usize) -> Self {
        let ledger = Self::default();
        let workers = (0..decodes).map(Worker::Decode).chain((0..prefills).map(Worker::Prefill));
        workers.for_each(|worker| ledger.open(worker));
        ledger
    }

    /// Opens a fresh account for a new worker on this seat. Whoever gives out seats asks [`Ledger::is_free`] first: the
    /// permits of the worker before would end in the account of this one.
    pub fn open(&self, worker: Worker) {
        let mut books = self.lock();
        let (accounts, index) = match worker {
            Worker::Decode(index) => (&mut books.decodes, index),
            Worker::Prefill(index) => (&mut books.prefills, index),
        };
        if accounts.len() <= index {
            accounts.resize(index + 1, Account::default());
        }
        accounts[index] = Account::default();
    }

    /// Whether no request holds anything of this seat.
    pub fn is_free(&self, worker: Worker) -> bool {
        let books = self.lock();
        let account = match worker {
            Worker::Decode(index) => books.decodes.get(index),
            Worker::Prefill(index) => books.prefills.get(index),
        };
        account.is_none_or(|account| account.load().running == 0)
    }

    /// Prompt tokens that a body of this size probably holds; at least one.
    pub fn estimate_tokens(&self, body_bytes: u64) -> u64 {
        self.lock().estimate_tokens(body_bytes)
    }

    /// Admits a request, or says why not. `counts` tells which decodes share `limits`: those that can take requests.
    ///
    /// # Errors
    /// [`Refusal`] when the backlog or the number of waiting requests would pass its limit.
    pub fn admit(
        &self,
        demand: Demand,
        limits: &Limits,
        counts: impl Fn(usize) -> bool,
    ) -> Result<Permit, Refusal> {
        let mut books = self.lock();
        let tokens = books.estimate_tokens(demand.body_bytes);
        let (backlog, waiting) = books.totals(counts);
        check(backlog, waiting, tokens, limits)?;
        let decode_entry = books.decodes[demand.decode].admit(tokens);
        let prefill_entry = demand.prefill.map(|index| books.prefills[index].admit(tokens));
        drop(books);
        Ok(Permit { books: Arc::clone(&self.books), demand, decode_entry, prefill_entry, waits: true })
    }

    /// What `worker` carries now.
    pub fn load(&self, worker: Worker) -> WorkerLoad {
        self.lock().account(worker).load()
    }

    /// Backlog tokens and waiting requests of the decodes that `counts` selects.
    pub fn totals(&self, counts: impl Fn(usize) -> bool) -> (u64, u32) {
        self.lock().totals(counts)
    }

    /// A question for the worker's own backlog goes out; the number belongs to its answer.
    pub fn poll_begins(&self, worker: Worker) -> u64 {
        self.lock().account(worker).poll_begins()
    }

    /// The answer to poll number `poll`: the worker's own backlog. Late answers are ignored.
    pub fn reported(&self, worker: Worker, poll: u64, backlog_tokens: u64) {
        self.lock().account(worker).reported(poll, backlog_tokens);
    }

    /// The worker's reports no longer hold: it does not answer, or does not report.
    pub fn forget_report(&self, worker: Worker) {
        self.lock().account(worker).forget_report();
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }
}

/// What an admitted request holds. Dropping it gives everything back at once.
#[derive(Debug)]
pub struct Permit {
    books: Arc<Mutex<Books>>,
    demand: Demand,
    decode_entry: Entry,
    prefill_entry: Option<Entry>,
    waits: bool,
}

impl Permit {
    /// The engine's own count of the prompt's tokens: corrects this request and the estimate of later ones.
    pub fn prompt_tokens(&mut self, tokens: u64) {
        let mut books = lock(&self.books);
        books.learn(self.demand.body_bytes, tokens);
        if self.waits {
            books.decodes[self.demand.decode].correct(&mut self.decode_entry, tokens);
            if let (Some(index), Some(entry)) = (self.demand.prefill, &mut self.prefill_entry) {
                books.prefills[index].correct(entry, tokens);
            }
        }
    }

    /// The prompt has been computed: the first byte of the answer came. The request still runs.
    pub fn computed(&mut self) {
        if std::mem::replace(&mut self.waits, false) {
            let mut books = lock(&self.books);
            books.decodes[self.demand.decode].computed(&self.decode_entry);
            if let (Some(index), Some(entry)) = (self.demand.prefill, &self.prefill_entry) {
                books.prefills[index].computed(entry);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.computed();
        let mut books = lock(&self.books);
        books.decodes[self.demand.decode].ended();
        if let Some(index) = self.demand.prefill {
            books.prefills[index].ended();
        }
    }
}

impl Books {
    fn account(&mut self, worker: Worker) -> &mut Account {
        match worker {
            Worker::Decode(index) => &mut self.decodes[index],
            Worker::Prefill(index) => &mut self.prefills[index],
        }
    }

    fn totals(&self, counts: impl Fn(usize) -> bool) -> (u64, u32) {
        let counted = self.decodes.iter().enumerate().filter(|(index, _)| counts(*index));
        counted.map(|(_, account)| account.load()).fold((0_u64, 0_u32), |(tokens, requests), load| {
            (tokens.saturating_add(load.backlog_tokens), requests.saturating_add(load.waiting))
        })
    }

    fn estimate_tokens(&self, body_bytes: u64) -> u64 {
        #[expect(clippy::cast_precision_loss, reason = "bodies are far below 2^52 bytes")]
        let tokens = body_bytes as f64 / self.bytes_per_token;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive; `as` saturates"
        )]
        let tokens = tokens.ceil() as u64;
        tokens.max(1)
    }

    fn learn(&mut self, body_bytes: u64, tokens: u64) {
        #[expect(clippy::cast_precision_loss, reason = "bodies are far below 2^52 bytes")]
        let observed = body_bytes as f64 / tokens.max(1) as f64;
        if PLAUSIBLE_BYTES_PER_TOKEN.contains(&observed) {
            self.bytes_per_token += NEW_SHARE * (observed - self.bytes_per_token);
        }
    }
}

fn check(backlog: u64, waiting: u32, own: u64, limits: &Limits) -> Result<(), Refusal> {
    let mu = limits.tokens_per_second.unwrap_or(f64::INFINITY);
    if let Some(limit) = limits.tokens
        && !admits(backlog, own, limit)
    {
        let retry_after_s = retry_after_s(backlog, own, limit, mu);
        return Err(Refusal::Tokens { backlog, own, limit, retry_after_s });
    }
    if waiting >= limits.requests {
        // One place is free when an average request has been computed.
        let average = backlog / u64::from(waiting.max(1));
        let retry_after_s = retry_after_s(average, 0, 0, mu);
        return Err(Refusal::Requests { waiting, limit: limits.requests, retry_after_s });
    }
    Ok(())
}

/// Every change of the books is complete before its lock is given back, so a poisoned lock still guards whole books.
fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
