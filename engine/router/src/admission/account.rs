//! What one worker owes: the tokens of its permits, split by whether the worker's last report can have seen them.
//! In: admissions, corrections, ends, reports. Out: a [`WorkerLoad`].
//! Never: a lock (the books have it).
//! Three sums are enough: permits older than the last report, permits since it, and, of these, permits since the poll
//! that is under way, which its answer will leave behind.

use super::WorkerLoad;

/// What one permit holds in one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    tokens: u64,
    /// Polls begun when it was admitted.
    poll: u64,
}

#[cfg(test)]
impl Entry {
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    tokens: u64,
    requests: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    running: u32,
    polls_begun: u64,
    /// The poll that the last report answered.
    report_poll: u64,
    report_tokens: Option<u64>,
    before_report: Sum,
    since_report: Sum,
    /// Part of `since_report`.
    since_poll: Sum,
}

impl Account {
    pub(super) fn load(&self) -> WorkerLoad {
        let seen = self.report_tokens.unwrap_or(u64::MAX);
        let old_waiting = if seen == 0 { 0 } else { self.before_report.requests };
        WorkerLoad {
            backlog_tokens: self.since_report.tokens + self.before_report.tokens.min(seen),
            waiting: self.since_report.requests + old_waiting,
            running: self.running,
        }
    }

    pub(super) fn admit(&mut self, tokens: u64) -> Entry {
        let entry = Entry { tokens, poll: self.polls_begun };
        self.running += 1;
        self.since_report.add(tokens);
        self.since_poll.add(tokens);
        entry
    }

    pub(super) fn correct(&mut self, entry: &mut Entry, tokens: u64) {
        for sum in self.sums_of(entry) {
            sum.remove(entry.tokens);
            sum.add(tokens);
        }
        entry.tokens = tokens;
    }

    pub(super) fn computed(&mut self, entry: &Entry) {
        for sum in self.sums_of(entry) {
            sum.remove(entry.tokens);
        }
    }

    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    pub(super) fn poll_begins(&mut self) -> u64 {
        self.polls_begun += 1;
        self.since_poll = Sum::default();
        self.polls_begun
    }

    pub(super) fn reported(&mut self, poll: u64, tokens: u64) {
        if poll != self.polls_begun {
            return;
        }
        self.before_report.tokens += self.since_report.tokens.saturating_sub(self.since_poll.tokens);
        self.before_report.requests += self.since_report.requests.saturating_sub(self.since_poll.requests);
        self.since_report = self.since_poll;
        self.report_poll = poll;
        self.report_tokens = Some(tokens);
    }

    pub(super) fn forget_report(&mut self) {
        self.report_tokens = None;
    }

    /// The sums that `entry` is part of.
    fn sums_of(&mut self, entry: &Entry) -> impl Iterator<Item = &mut Sum> {
        let since_poll = (entry.poll >= self.polls_begun).then_some(&mut self.since_poll);
        let by_report =
            if entry.poll >= self.report_poll { &mut self.since_report } else { &mut self.before_report };
        since_poll.into_iter().chain(std::iter::once(by_report))
    }
}

impl Sum {
    fn add(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_add(tokens);
        self.requests = self.requests.saturating_add(1);
    }

    fn remove(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(tokens);
        self.requests = self.requests.saturating_sub(1);
    }
}
