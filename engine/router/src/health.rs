//! Whether a worker can be given requests, from readiness polls and from what happens to real requests.
//! In: [`PollResult`]s, [`RequestResult`]s. Out: a [`WorkerState`].
//! Never: a clock: polls are the ticks.
//! A 4xx is the client's affair and a slow poll is no proof of death while answers flow, so neither takes a worker
//! away; a worker that fails requests is kept as the last resort, so that failures never empty the fleet.

/// Failed requests in a row that make a ready worker the last resort.
pub const SUSPECT_AFTER: u32 = 5;

/// Ready polls after which a suspect is tried again (one more failure makes it suspect at once).
pub const RETRY_AFTER_POLLS: u32 = 10;

/// Polls in a row without an answer in time that take a silent worker away.
pub const SLOW_POLLS: u32 = 3;

/// What is thought of a worker; also a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerState {
    /// Not heard of yet.
    Unknown,
    Ready,
    /// Ready, but its last requests failed: used when no other is ready.
    Suspect,
    /// Says that it is not ready: loading or draining.
    NotReady,
    /// Cannot be reached.
    Down,
}

impl WorkerState {
    pub const ALL: [WorkerState; 5] = [
        WorkerState::Unknown,
        WorkerState::Ready,
        WorkerState::Suspect,
        WorkerState::NotReady,
        WorkerState::Down,
    ];

    pub fn label(self) -> &'static str {
        match self {
            WorkerState::Unknown => "unknown",
            WorkerState::Ready => "ready",
            WorkerState::Suspect => "suspect",
            WorkerState::NotReady => "not_ready",
            WorkerState::Down => "down",
        }
    }

    /// Whether it may be given requests at all.
    pub fn takes_requests(self) -> bool {
        matches!(self, WorkerState::Ready | WorkerState::Suspect)
    }
}

/// What a readiness poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollResult {
    Ready,
    NotReady,
    /// No connection, or it broke.
    Unreachable,
    /// No answer in time; `answers_flow` = bytes of some answer came from this worker meanwhile.
    Slow {
        answers_flow: bool,
    },
}

/// What happened to a request that was sent to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestResult {
    /// It answered with this status.
    Status(u16),
    /// No connection could be made: nothing was sent.
    ConnectFailed,
    /// The connection broke before or within the answer.
    Broken,
}

/// One worker's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    answered: Answered,
    failures: u32,
    ready_polls: u32,
    slow_polls: u32,
}

/// What the last poll or connection attempt said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    Nothing,
    Ready,
    NotReady,
    Unreachable,
}

impl Health {
    /// A worker that will be polled.
    pub fn unknown() -> Self {
        Self { answered: Answered::Nothing, failures: 0, ready_polls: 0, slow_polls: 0 }
    }

    /// A worker without an address to poll: taken as ready, judged by its requests alone.
    pub fn assumed_ready() -> Self {
        Self { answered: Answered::Ready, ..Self::unknown() }
    }

    pub fn state(&self) -> WorkerState {
        match self.answered {
            Answered::Nothing => WorkerState::Unknown,
            Answered::NotReady => WorkerState::NotReady,
            Answered::Unreachable => WorkerState::Down,
            Answered::Ready if self.failures >= SUSPECT_AFTER => WorkerState::Suspect,
            Answered::Ready => WorkerState::Ready,
        }
    }

    pub fn polled(&mut self, result: PollResult) {
        let slow_polls = match result {
            PollResult::Slow { answers_flow: false } => self.slow_polls.saturating_add(1),
            PollResult::Slow { answers_flow: true }
            | PollResult::Ready
            | PollResult::NotReady
            | PollResult::Unreachable => 0,
        };
        self.slow_polls = slow_polls;
        match result {
            PollResult::Ready => self.polled_ready(),
            PollResult::NotReady => self.answered = Answered::NotReady,
            PollResult::Unreachable => self.answered = Answered::Unreachable,
            PollResult::Slow { .. } if slow_polls >= SLOW_POLLS => self.answered = Answered::Unreachable,
            PollResult::Slow { .. } => {}
        }
    }

    fn polled_ready(&mut self) {
        if self.answered != Answered::Ready {
            // Another process, or the same after loading: earlier failures say nothing about it.
            *self = Self::assumed_ready();
        }
        if self.failures >= SUSPECT_AFTER {
            self.ready_polls += 1;
            if self.ready_polls >= RETRY_AFTER_POLLS {
                self.failures = SUSPECT_AFTER - 1;
                self.ready_polls = 0;
            }
        }
    }

    pub fn requested(&mut self, result: RequestResult) {
        match result {
            RequestResult::ConnectFailed => self.answered = Answered::Unreachable,
            // 503 is an honest answer of a worker that drains or loads: the next poll will say so.
            RequestResult::Status(503) => {}
            RequestResult::Status(500..) | RequestResult::Broken => {
                self.failures = self.failures.saturating_add(1);
                self.ready_polls = 0;
            }
            RequestResult::Status(_) => self.failures = 0,
        }
    }
}

#[cfg(test)]
mod tests;
