//! What to do about the Lease next: pure, so that outages can be played through without waiting.
//! In: what was seen and what a write came to, with monotonic times. Out: a [`Step`]. Never: I/O, wall-clock time.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// How often a candidate looks, and how soon a failed call is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The Lease as the API server last showed it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) ours: bool,
    /// Nobody holds it.
    pub(super) free: bool,
    /// How long its holder has.
    pub(super) duration: Duration,
    pub(super) lease: Arc<Lease>,
}

impl Seen {
    /// Changes with every write of anybody.
    fn version(&self) -> Option<&str> {
        self.lease.metadata.resource_version.as_deref()
    }
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Read the Lease.
    Look,
    /// Create it (nothing there), take it or renew it.
    Write(Option<Seen>),
    Wait(Instant),
}

#[derive(Debug)]
pub(super) struct Machine {
    duration: Duration,
    /// `None` inside: looked, and there is none.
    seen: Option<Option<Seen>>,
    /// Since when it lies as seen, by this clock.
    still_since: Instant,
    /// Start of the last write that succeeded, while leading.
    renewed: Option<Instant>,
    not_before: Instant,
    look_again: bool,
}

impl Machine {
    pub(super) fn new(duration: Duration) -> Self {
        let now = Instant::now();
        Self { duration, seen: None, still_since: now, renewed: None, not_before: now, look_again: false }
    }

    /// Whether writing is allowed. Ends a margin before the Lease can be anybody else's: theirs starts to count when they
    /// see a renewal, which is after its call began.
    pub(super) fn leads(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|renewed| now < renewed + self.duration - self.margin())
    }

    /// How long a call may take that starts now: a leader's ends with its right to write.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        match self.renewed {
            Some(renewed) if self.leads(now) => {
                (renewed + self.duration - self.margin() - now).max(Duration::from_millis(100))
            }
            _ => self.duration,
        }
    }

    pub(super) fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()?.as_ref()
    }

    pub(super) fn next(&mut self, now: Instant) -> Step {
        if self.renewed.is_some() && !self.leads(now) {
            self.renewed = None;
            self.look_again = true;
        }
        if now < self.not_before {
            // A leader whose time runs out before that must say so in time.
            let end = self.renewed.map(|renewed| renewed + self.duration - self.margin());
            return Step::Wait(end.map_or(self.not_before, |end| end.min(self.not_before)));
        }
        match &self.seen {
            _ if self.look_again => Step::Look,
            None => Step::Look,
            Some(None) => Step::Write(None),
            Some(Some(seen)) if seen.ours || seen.free || self.expired(seen, now) => {
                Step::Write(Some(seen.clone()))
            }
            Some(Some(_)) => Step::Look,
        }
    }

    /// A read that was answered at `now`.
    pub(super) fn looked(&mut self, now: Instant, seen: Option<Seen>) {
        self.look_again = false;
        let as_before = match (&self.seen, &seen) {
            (Some(Some(before)), Some(seen)) => before.version() == seen.version(),
            (Some(None), None) => true,
            _ => false,
        };
        if !as_before {
            self.still_since = now;
        }
        let take = seen.as_ref().is_none_or(|seen| seen.ours || seen.free || self.expired(seen, now));
        self.seen = Some(seen);
        self.not_before = if take { now } else { now + LOOK_EVERY };
    }

    /// A write that succeeded and began at `started`.
    pub(super) fn written(&mut self, started: Instant, seen: Option<Seen>) {
        self.seen = Some(seen);
        self.renewed = Some(started);
        self.still_since = started;
        self.not_before = started + self.duration / 3;
        self.look_again = false;
    }

    /// Somebody else wrote in between.
    pub(super) fn outrun(&mut self, now: Instant) {
        self.look_again = true;
        self.not_before = now;
    }

    pub(super) fn failed(&mut self, now: Instant) {
        // Whether an unanswered write arrived is unknown: look before the next one.
        self.look_again = true;
        self.not_before = now + RETRY_AFTER;
    }

    fn expired(&self, seen: &Seen, now: Instant) -> bool {
        now >= self.still_since + seen.duration.max(self.duration)
    }

    /// Between the end of writing and the earliest takeover: calls under way need time to end.
    fn margin(&self) -> Duration {
        (self.duration / 6).max(Duration::from_secs(1))
    }
}
