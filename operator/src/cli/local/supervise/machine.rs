//! What the supervisor does next: which processes to start, end or start again, and when the whole is up or over.
//! In: events with their times. Out: [`Action`]s for the loop to carry out.
//! Never: I/O, clocks, threads.
//! Order: a stage starts once the stage below listens (loading then goes on side by side); stages end in the opposite
//! order, so that whoever still answers a request has everything it calls. A process that dies before the cluster was
//! ready for the first time ends the start; later it is started again, and its peers are left alone.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::policy::{RestartPolicy, Restarts, Verdict};

/// What one process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessState {
    /// For the stage below to listen.
    Waiting,
    /// Started, does not listen yet.
    Starting,
    /// Listens, is not ready yet.
    Loading,
    Ready,
    /// Died; starts again after a delay.
    BackOff,
    /// Died too often: stays down.
    Failed,
    /// Told to end.
    Stopping,
    Stopped,
}

/// What the whole is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Starting,
    Ready,
    /// Was ready; a process is down or loads again.
    Degraded,
    /// A process is down for good.
    Failed,
    Stopping,
    Stopped,
}

/// Why the whole ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Somebody asked, after it had been ready.
    Asked,
    /// Somebody asked before it was ready.
    Interrupted,
    /// This process died, or never came up, during the start.
    StartFailed { process: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Listening(usize),
    Ready(usize),
    /// It said something: it is alive.
    Alive(usize),
    /// It exited, or could not be started at all.
    Exited(usize),
    /// Somebody asks for the end; asking twice means at once.
    Stop,
    /// A deadline may have passed.
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Start(usize),
    Terminate(usize),
    Kill(usize, KillReason),
    /// For people to read.
    Tell(Notice),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KillReason {
    NeverListened,
    SilentWhileLoading,
    OverstayedDrain,
    AskedTwice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    Restarting { process: usize, delay: Duration },
    GivenUp { process: usize },
    BackAgain { process: usize },
    Draining { process: usize },
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// From start to the `listening` line; it comes before the loading.
    pub(super) listen: Duration,
    /// Without a word while loading. Loading itself has no limit: checkpoints and disks differ too much.
    pub(super) silence: Duration,
    /// For a process told to end while nothing was being served yet.
    pub(super) abandon: Duration,
    pub(super) restart: RestartPolicy,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            listen: Duration::from_secs(60),
            silence: Duration::from_secs(600),
            abandon: Duration::from_secs(5),
            restart: RestartPolicy::default(),
        }
    }
}

#[derive(Debug)]
struct Process {
    stage: u8,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
    state: ProcessState,
    started: Instant,
    /// What it means follows from the state: to listen, to say something, to start again, to be killed.
    deadline: Option<Instant>,
    restarts: Restarts,
    /// Starts after the first one.
    restarted: u32,
    was_ready: bool,
}

#[derive(Debug)]
pub(super) struct Machine {
    limits: Limits,
    processes: Vec<Process>,
    was_ready: bool,
    ending: Option<Ending>,
}

impl Machine {
    /// One process per (stage, grace).
    pub(super) fn new(
        limits: Limits,
        processes: impl IntoIterator<Item = (u8, Duration)>,
        now: Instant,
    ) -> Self {
        let processes = processes
            .into_iter()
            .map(|(stage, grace)| Process {
                stage,
                grace,
                state: ProcessState::Waiting,
                started: now,
                deadline: None,
                restarts: Restarts::default(),
                restarted: 0,
                was_ready: false,
            })
            .collect();
        Self { limits, processes, was_ready: false, ending: None }
    }

    pub(super) fn begin(&mut self, now: Instant) -> Vec<Action> {
        self.start_next_stage(now)
    }

    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Listening(process) => self.listening(process, now),
            Event::Ready(process) => self.ready(process, now),
            Event::Alive(process) => {
                self.alive(process, now);
                Vec::new()
            }
            Event::Exited(process) => self.exited(process, now),
            Event::Stop => self.stop(now),
            Event::Tick => self.tick(now),
        }
    }

    /// When [`Event::Tick`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.processes.iter().filter_map(|process| process.deadline).min()
    }

    pub(super) fn state(&self, process: usize) -> ProcessState {
        self.processes[process].state
    }

    pub(super) fn restarts(&self, process: usize) -> u32 {
        self.processes[process].restarted
    }

    pub(super) fn phase(&self) -> Phase {
        let any = |state| self.processes.iter().any(|process| process.state == state);
        match (&self.ending, self.was_ready) {
            (Some(_), _) if self.processes.iter().any(Process::runs) => Phase::Stopping,
            (Some(_), _) => Phase::Stopped,
            (None, false) => Phase::Starting,
            (None, true) if any(ProcessState::Failed) => Phase::Failed,
            (None, true) if self.all_ready() => Phase::Ready,
            (None, true) => Phase::Degraded,
        }
    }

    /// Why it ended, once no process runs any more.
    pub(super) fn ended(&self) -> Option<&Ending> {
        self.ending.as_ref().filter(|_| self.phase() == Phase::Stopped)
    }

    fn all_ready(&self) -> bool {
        self.processes.iter().all(|process| process.state == ProcessState::Ready)
    }

    fn listening(&mut self, process: usize, now: Instant) -> Vec<Action> {
        let subject = &mut self.processes[process];
        if subject.state != ProcessState::Starting {
            return Vec::new();
        }
        subject.state = ProcessState::Loading;
        subject.deadline = Some(now + self.limits.silence);
        self.start_next_stage(now)
    }

    /// Starts the lowest stage that waits, if everything below it listens.
    fn start_next_stage(&mut self, now: Instant) -> Vec<Action> {
        let waits = |process: &Process| process.state == ProcessState::Waiting;
        let Some(stage) = self.processes.iter().filter(|p| waits(p)).map(|p| p.stage).min() else {
            return Vec::new();
        };
        if self.processes.iter().any(|p| p.stage < stage && p.state == ProcessState::Starting) {
            return Vec::new();
        }
        let next: Vec<usize> = (0..self.processes.len())
            .filter(|index| self.processes[*index].stage == stage && waits(&self.processes[*index]))
            .collect();
        next.into_iter().map(|index| self.start(index, now)).collect()
    }

    fn start(&mut self, process: usize, now: Instant) -> Action {
        let subject = &mut self.processes[process];
        if subject.state == ProcessState::BackOff {
            subject.restarted += 1;
        }
        subject.state = ProcessState::Starting;
        subject.started = now;
        subject.deadline = Some(now + self.limits.listen);
        Action::Start(process)
    }

    fn ready(&mut self, process: usize, now: Instant) -> Vec<Action> {
        let subject = &mut self.processes[process];
        if subject.state != ProcessState::Loading {
            return Vec::new();
        }
        subject.state = ProcessState::Ready;
        subject.deadline = None;
        let again = std::mem::replace(&mut subject.was_ready, true);
        self.was_ready = self.was_ready || self.all_ready();
        self.alive(process, now);
        if again { vec![Action::Tell(Notice::BackAgain { process })] } else { Vec::new() }
    }

    /// A sign of life also excuses the stages above, which have nothing to say while they wait for this one to load.
    fn alive(&mut self, process: usize, now: Instant) {
        let stage = self.processes[process].stage;
        for other in self.processes.iter_mut().filter(|other| other.stage >= stage) {
            // Not where the deadline is used up: a killed process may still have lines in its pipe.
            if other.state == ProcessState::Loading && other.deadline.is_some() {
                other.deadline = Some(now + self.limits.silence);
            }
        }
    }

    fn exited(&mut self, process: usize, now: Instant) -> Vec<Action> {
        self.processes[process].deadline = None;
        if self.ending.is_some() {
            self.processes[process].state = ProcessState::Stopped;
            return self.drain_next_stage(now);
        }
        if !self.was_ready {
            self.processes[process].state = ProcessState::Failed;
            return self.end(Ending::StartFailed { process }, now);
        }
        let subject = &mut self.processes[process];
        match subject.restarts.after_exit(&self.limits.restart, subject.started, now) {
            Verdict::RestartAfter(delay) => {
                subject.state = ProcessState::BackOff;
                subject.deadline = Some(now + delay);
                vec![Action::Tell(Notice::Restarting { process, delay })]
            }
            Verdict::GiveUp => {
                subject.state = ProcessState::Failed;
                vec![Action::Tell(Notice::GivenUp { process })]
            }
        }
    }

    fn stop(&mut self, now: Instant) -> Vec<Action> {
        match (self.ending.is_some(), self.was_ready) {
            (false, true) => self.end(Ending::Asked, now),
            (false, false) => self.end(Ending::Interrupted, now),
            (true, _) => {
                let mut actions = Vec::new();
                for (index, process) in self.processes.iter_mut().enumerate().filter(|(_, p)| p.runs()) {
                    process.state = ProcessState::Stopping;
                    process.deadline = None;
                    actions.push(Action::Kill(index, KillReason::AskedTwice));
                }
                actions
            }
        }
    }

    fn end(&mut self, ending: Ending, now: Instant) -> Vec<Action> {
        self.ending = Some(ending);
        for process in &mut self.processes {
            if matches!(process.state, ProcessState::Waiting | ProcessState::BackOff) {
                process.state = ProcessState::Stopped;
                process.deadline = None;
            }
        }
        self.drain_next_stage(now)
    }

    /// Tells the highest stage that still runs to end.
    fn drain_next_stage(&mut self, now: Instant) -> Vec<Action> {
        let stage = self.processes.iter().filter(|process| process.runs()).map(|p| p.stage).max();
        let mut actions = Vec::new();
        for (index, process) in self.processes.iter_mut().enumerate() {
            if Some(process.stage) != stage || !process.runs() || process.state == ProcessState::Stopping {
                continue;
            }
            let grace = if self.was_ready { process.grace } else { self.limits.abandon };
            process.state = ProcessState::Stopping;
            process.deadline = Some(now + grace);
            actions.push(Action::Tell(Notice::Draining { process: index }));
            actions.push(Action::Terminate(index));
        }
        actions
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        for index in 0..self.processes.len() {
            let process = &mut self.processes[index];
            if process.deadline.is_none_or(|deadline| now < deadline) {
                continue;
            }
            process.deadline = None;
            let action = match process.state {
                ProcessState::BackOff => self.start(index, now),
                ProcessState::Starting => Action::Kill(index, KillReason::NeverListened),
                ProcessState::Loading => Action::Kill(index, KillReason::SilentWhileLoading),
                ProcessState::Stopping => Action::Kill(index, KillReason::OverstayedDrain),
                ProcessState::Waiting
                | ProcessState::Ready
                | ProcessState::Failed
                | ProcessState::Stopped => continue,
            };
            actions.push(action);
        }
        actions
    }
}

impl Process {
    fn runs(&self) -> bool {
        match self.state {
            ProcessState::Starting | ProcessState::Loading | ProcessState::Ready | ProcessState::Stopping => {
                true
            }
            ProcessState::Waiting | ProcessState::BackOff | ProcessState::Failed | ProcessState::Stopped => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
