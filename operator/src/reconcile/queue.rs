//! Which object is reconciled next, and when.
//! In: wake-ups, ends of reconciles. Out: keys whose time has come, each at most once at a time.
//! Never: two reconciles of one object at once; an object lost (whatever happens, it has a next time or is forgotten).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::gather::shelf::ObjectKey;

/// After a failure.
pub const ERROR_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(300));

/// A settled object is looked at again after this time, less up to a quarter.
const RESYNC: Backoff = Backoff::new(Duration::from_secs(15 * 60), Duration::from_secs(15 * 60));

/// Changes that come together are taken together.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Wake-ups in short order wait longer and longer: an object that wakes itself cannot keep the operator busy.
const BUSY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// As many passes in short order cost nothing extra: a start has several.
const FREE_PASSES: u32 = 8;

/// Without a pass for so long, an object counts as calm.
const CALM: Duration = Duration::from_secs(10);

/// Why an object is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The object itself changed: at once.
    Object,
    /// A child, a node, facts, a claim: together with what follows within a moment.
    Surroundings,
}

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing to do until something changes.
    Settled,
    /// Look again after this time, if nothing changes before.
    After(Duration),
    /// Try again, later each time.
    Failed,
    /// The object is gone.
    Forget,
}

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    running: bool,
    failures: u32,
    passes: u32,
    last_end: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<ObjectKey, Entry>,
    by_time: BTreeSet<(Instant, ObjectKey)>,
    running: usize,
}

/// The queue; bounded by the number of objects that exist.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    earlier: Notify,
}

impl Queue {
    pub fn wake(&self, key: &ObjectKey, cause: Cause) {
        self.wake_at(key, cause, Instant::now());
    }

    fn wake_at(&self, key: &ObjectKey, cause: Cause, now: Instant) {
        let mut state = self.lock();
        let entry = state.entries.entry(key.clone()).or_default();
        let delay = match cause {
            Cause::Object => Duration::ZERO,
            Cause::Surroundings => entry.patience(now, key),
        };
        state.set_due(key, now + delay);
        drop(state);
        self.earlier.notify_one();
    }

    /// The next key whose time has come; it counts as running until [`Queue::done`].
    pub async fn next(&self) -> ObjectKey {
        loop {
            let now = Instant::now();
            let at = match self.take(now) {
                Ok(key) => return key,
                Err(at) => at,
            };
            match at {
                Some(at) => tokio::select! {
                    () = self.earlier.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => self.earlier.notified().await,
            }
        }
    }

    /// A key that is due, or when the next one is.
    fn take(&self, now: Instant) -> Result<ObjectKey, Option<Instant>> {
        let mut state = self.lock();
        match state.by_time.first().cloned() {
            Some((at, key)) if at <= now => {
                state.by_time.remove(&(at, key.clone()));
                state.running += 1;
                let entry = state.entries.entry(key.clone()).or_default();
                entry.due = None;
                entry.running = true;
                Ok(key)
            }
            first => Err(first.map(|(at, _)| at)),
        }
    }

    #[cfg(test)]
    pub(crate) fn take_due(&self, now: Instant) -> Option<ObjectKey> {
        self.take(now).ok()
    }

    pub fn done(&self, key: &ObjectKey, next: Next) {
        self.done_at(key, next, Instant::now());
    }

    fn done_at(&self, key: &ObjectKey, next: Next, now: Instant) {
        let mut state = self.lock();
        state.running = state.running.saturating_sub(1);
        let Some(entry) = state.entries.get_mut(key) else { return };
        entry.running = false;
        let calm = entry.last_end.is_none_or(|end| now.duration_since(end) > CALM);
        entry.passes = if calm { 1 } else { entry.passes.saturating_add(1) };
        entry.last_end = Some(now);
        let seed = key.to_string();
        let woken = entry.due;
        let (wait, failures) = match next {
            Next::Settled => (RESYNC.delay(1, &seed), 0),
            Next::After(wait) => (wait, 0),
            Next::Failed => {
                let failures = entry.failures.saturating_add(1);
                (ERROR_BACKOFF.delay(failures, &seed), failures)
            }
            Next::Forget if woken.is_none() => {
                state.entries.remove(key);
                return;
            }
            Next::Forget => (Duration::ZERO, 0),
        };
        entry.failures = failures;
        entry.due = None;
        let at = now + wait;
        state.set_due(key, woken.map_or(at, |woken| woken.min(at)));
        drop(state);
        self.earlier.notify_one();
    }

    /// Objects whose time has come and that have not begun, and those that run.
    pub fn depth(&self) -> (usize, usize) {
        let state = self.lock();
        let now = Instant::now();
        (state.by_time.iter().take_while(|(at, _)| *at <= now).count(), state.running)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// How long surroundings wait before they count.
    fn patience(&self, now: Instant, key: &ObjectKey) -> Duration {
        let calm = self.last_end.is_none_or(|end| now.duration_since(end) > CALM);
        let extra = if calm { 0 } else { self.passes.saturating_sub(FREE_PASSES) };
        let failing = self.failures.min(6);
        DEBOUNCE + BUSY.delay(extra.max(failing), &key.name)
    }
}

impl State {
    /// The earlier of two times counts; a running object is remembered for its end.
    fn set_due(&mut self, key: &ObjectKey, at: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        match entry.due {
            Some(due) if due <= at => {}
            due => {
                if let Some(due) = due {
                    self.by_time.remove(&(due, key.clone()));
                }
                entry.due = Some(at);
            }
        }
        // While it runs it is in no list: its end puts it there.
        if !entry.running
            && let Some(due) = entry.due
        {
            self.by_time.insert((due, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
