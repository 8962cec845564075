//! Runs the processes of one cluster: starts them, watches them, starts them again, ends them.
//! In: a prepared state folder. Out: [`Ending`]; meanwhile `state.json` always says how things are.
//! This is the part with hands: what to do is decided by [`machine`], when to start again by [`policy`].
//! One thread (the caller's) owns all children and all state; the others only read pipes and send messages.

pub(crate) mod console;
pub(crate) mod machine;
mod policy;
mod report;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use engine_spec::config::{EngineConfig, Role};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::console::Console;
use self::machine::{Action, Ending, Event, Limits, Machine, Phase};
use super::launch::{self, Addresses, ProcessSpec};
use super::log::Log;
use super::probe::Probe;
use super::process::{Life, Message, Report, Running};
use super::state::{ClusterFolder, ClusterState, Lock, StateError};

/// Messages that may wait for the main thread; senders of more wait (or drop what is not important).
const MESSAGES: usize = 256;
/// On top of a process's own drain time, before it is killed.
const KILL_MARGIN: Duration = Duration::from_secs(5);
/// Without anything to do: look whether log lines were lost, which nobody reports.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SuperviseError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
}

/// Runs the cluster of `folder` until it ends. `up` is called once, when all of it is ready for the first time.
pub(crate) fn run(
    folder: &ClusterFolder,
    _held: &Lock,
    engine: &Path,
    console: Console,
    up: impl FnOnce(&mut Console),
) -> Result<Ending, SuperviseError> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(SuperviseError::Signals)?;
    let (sender, messages) = sync_channel(MESSAGES);
    let mut supervisor = Supervisor::new(folder, engine, console, sender.clone())?;
    let stop_signals = signals.handle();
    let listener = forward_signals(signals, sender).map_err(SuperviseError::Signals)?;
    let ending = supervisor.run(&messages, up);
    // Threads that still want to send must not wait for us.
    drop(messages);
    stop_signals.close();
    // It only forwards: nothing of it can be lost.
    let _ = listener.join();
    Ok(ending)
}

fn forward_signals(
    mut signals: Signals,
    sender: SyncSender<Message>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _signal in signals.forever() {
            if sender.send(Message::Stop).is_err() {
                return;
            }
        }
    })
}

/// A process and everything known about it.
#[derive(Debug)]
struct Slot {
    name: String,
    config: EngineConfig,
    /// What its file holds; a file that is right already need not be written on a full disk.
    written: Option<EngineConfig>,
    log: Log,
    lives: u32,
    running: Option<Running>,
    addresses: Option<Addresses>,
    loaded_percent: Option<u8>,
    last_exit: Option<String>,
    last_lines: Vec<String>,
}

impl Slot {
    fn new(folder: &ClusterFolder, spec: ProcessSpec) -> Self {
        Self {
            log: Log::new(folder.log_path(&spec.name)),
            name: spec.name,
            config: spec.config,
            written: None,
            lives: 0,
            running: None,
            addresses: None,
            loaded_percent: None,
            last_exit: None,
            last_lines: Vec::new(),
        }
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.config.drain_timeout_ms) + KILL_MARGIN
    }
}

#[derive(Debug)]
struct Supervisor<'a> {
    folder: &'a ClusterFolder,
    engine: PathBuf,
    console: Console,
    messages: SyncSender<Message>,
    machine: Machine,
    slots: Vec<Slot>,
    published: Option<ClusterState>,
    state_unwritable: bool,
}

impl<'a> Supervisor<'a> {
    fn new(
        folder: &'a ClusterFolder,
        engine: &Path,
        console: Console,
        messages: SyncSender<Message>,
    ) -> Result<Self, StateError> {
        let mut slots: Vec<Slot> =
            folder.read_configs()?.into_iter().map(|spec| Slot::new(folder, spec)).collect();
        slots.sort_by_key(|slot| launch::stage(slot.config.role));
        let stages = slots.iter().map(|slot| (launch::stage(slot.config.role), slot.grace()));
        let machine = Machine::new(Limits::default(), stages, Instant::now());
        Ok(Self {
            folder,
            engine: engine.to_owned(),
            console,
            messages,
            machine,
            slots,
            published: None,
            state_unwritable: false,
        })
    }

    fn run(&mut self, messages: &Receiver<Message>, up: impl FnOnce(&mut Console)) -> Ending {
        let names: Vec<&str> = self.slots.iter().map(|slot| slot.name.as_str()).collect();
        self.console.record(&format!("starting {}: {}", self.folder.name, names.join(", ")));
        let mut up = Some(up);
        let mut actions = self.machine.begin(Instant::now());
        loop {
            self.carry_out(actions);
            self.publish();
            self.show_progress();
            if let Some(ending) = self.machine.ended().cloned() {
                let text = self.farewell(&ending);
                match ending {
                    Ending::StartFailed { .. } => self.console.complain(&text),
                    Ending::Asked | Ending::Interrupted => self.console.say(&text),
                }
                return ending;
            }
            if self.machine.phase() == Phase::Ready
                && let Some(up) = up.take()
            {
                self.welcome();
                up(&mut self.console);
            }
            actions = self.next(messages);
        }
    }

    /// Waits for the next thing to happen and asks the machine what to do about it.
    fn next(&mut self, messages: &Receiver<Message>) -> Vec<Action> {
        let wait = self
            .machine
            .next_deadline()
            .map_or(LOOK_EVERY, |deadline| deadline.saturating_duration_since(Instant::now()))
            .min(LOOK_EVERY);
        let event = match messages.recv_timeout(wait) {
            Ok(Message::Stop) => Some(Event::Stop),
            Ok(Message::Child(life, report)) => self.understand(life, report),
            Err(RecvTimeoutError::Timeout) => None,
            // We hold a sender ourselves.
            Err(RecvTimeoutError::Disconnected) => Some(Event::Stop),
        };
        let now = Instant::now();
        let mut actions = event.map_or_else(Vec::new, |event| self.machine.handle(event, now));
        // A flood of messages must not keep deadlines from passing.
        actions.extend(self.machine.handle(Event::Tick, now));
        actions
    }

    fn understand(&mut self, life: Life, report: Report) -> Option<Event> {
        let process = life.process;
        if self.slots[process].running.as_ref().is_none_or(|running| running.life != life) {
            return None;
        }
        Some(match report {
            Report::Listening(addresses) => {
                self.keep_ports(process, addresses);
                self.watch_readiness(life, addresses);
                Event::Listening(process)
            }
            Report::Ready => Event::Ready(process),
            Report::Alive => Event::Alive(process),
            Report::Loaded(percent) => {
                self.slots[process].loaded_percent = Some(percent);
                Event::Alive(process)
            }
            Report::Exited => {
                let slot = &mut self.slots[process];
                slot.last_exit = slot.running.take().map(Running::reap);
                slot.last_lines = slot.log.last_words();
                slot.loaded_percent = None;
                Event::Exited(process)
            }
        })
    }

    /// Writes the ports it got into its configuration: a restart then listens where its peers expect it.
    fn keep_ports(&mut self, process: usize, addresses: Addresses) {
        let slot = &mut self.slots[process];
        slot.addresses = Some(addresses);
        slot.config = launch::on_ports(slot.config.clone(), addresses);
        if let Err(error) = self.write_config(process) {
            self.console.say(&format!("{error:#}"));
        }
    }

    fn watch_readiness(&mut self, life: Life, addresses: Addresses) {
        let messages = self.messages.clone();
        let ready = move || {
            let _ = messages.send(Message::Child(life, Report::Ready));
        };
        match Probe::start(addresses.http, ready) {
            Ok(probe) => {
                if let Some(running) = &mut self.slots[life.process].running {
                    running.probe = Some(probe);
                }
            }
            Err(error) => self.console.say(&format!("cannot start a thread to ask for readiness: {error}")),
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Start(process) => {
                    if let Err(error) = self.start(process) {
                        self.slots[process].last_exit = Some(format!("{error:#}"));
                        actions.extend(self.machine.handle(Event::Exited(process), Instant::now()));
                    }
                }
                Action::Terminate(process) => self.signal(process, Signal::TERM),
                Action::Kill(process, reason) => {
                    self.console.say(&self.explain_kill(process, reason));
                    self.signal(process, Signal::KILL);
                }
                Action::Tell(notice) => self.console.say(&self.explain(notice)),
            }
        }
    }

    fn signal(&self, process: usize, signal: Signal) {
        if let Some(running) = &self.slots[process].running {
            running.signal(signal);
        }
    }

    fn start(&mut self, process: usize) -> anyhow::Result<()> {
        let listening: Vec<(Role, Addresses)> =
            self.slots.iter().filter_map(|slot| Some((slot.config.role, slot.addresses?))).collect();
        let slot = &mut self.slots[process];
        slot.config = launch::with_peers(slot.config.clone(), listening.into_iter());
        self.write_config(process)?;
        let slot = &mut self.slots[process];
        slot.lives += 1;
        slot.log.forget_tail();
        let life = Life { process, number: slot.lives };
        let config = self.folder.config_path(&slot.name);
        slot.running = Some(Running::start(&self.engine, &config, &slot.log, life, &self.messages)?);
        Ok(())
    }

    fn write_config(&mut self, process: usize) -> anyhow::Result<()> {
        let slot = &mut self.slots[process];
        if slot.written.as_ref() != Some(&slot.config) {
            let spec = ProcessSpec { name: slot.name.clone(), config: slot.config.clone() };
            self.folder.write_config(&spec)?;
            slot.written = Some(spec.config);
        }
        Ok(())
    }

    /// Writes `state.json` if anything in it changed. A full disk is said once and disturbs nothing.
    fn publish(&mut self) {
        let state = self.snapshot();
        if self.published.as_ref() == Some(&state) {
            return;
        }
        match self.folder.write_state(&state) {
            Ok(()) => {
                self.state_unwritable = false;
                self.published = Some(state);
            }
            Err(error) if !self.state_unwritable => {
                self.state_unwritable = true;
                self.console.say(&format!("{:#}", anyhow::Error::from(error)));
            }
            Err(_) => {}
        }
    }
}
