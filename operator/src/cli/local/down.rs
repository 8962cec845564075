//! `fathom local down`: asks the supervisor to end in order, and waits until it has.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::environment::Environment;
use super::process::pid;
use super::select::select;
use super::state::{ClusterFolder, ClusterState, ProcessIdentity};

/// How often to look whether it has ended.
const EVERY: Duration = Duration::from_millis(50);
/// On top of the time that the supervisor itself allows.
const MARGIN: Duration = Duration::from_secs(10);

/// Ends a local cluster: router first, then decode, then prefill, each after its requests have finished.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which one; not needed where only one runs.
    name: Option<String>,
}

pub(crate) fn run(args: Args, environment: &Environment) -> anyhow::Result<ExitCode> {
    let (folder, state) = select(&environment.state_root, args.name.as_deref())?;
    let name = &folder.name;
    let message = match end(&folder, &state) {
        Ended::InOrder => format!("{name} has ended"),
        Ended::Killed => format!("{name} did not end in time and was killed"),
        Ended::WasNotRunning => format!("{name} was not running"),
    };
    clean_up(&folder, state)?;
    writeln!(std::io::stdout(), "{message}")?;
    Ok(ExitCode::SUCCESS)
}

enum Ended {
    InOrder,
    Killed,
    WasNotRunning,
}

fn end(folder: &ClusterFolder, state: &ClusterState) -> Ended {
    let deadline = Instant::now() + Duration::from_millis(state.stop_within_ms) + MARGIN;
    let mut asked: Option<ProcessIdentity> = None;
    // Whoever holds it now may differ from who held it before: an `up` hands over to its supervisor.
    while let Some(holder) = folder.holder() {
        if Instant::now() >= deadline {
            signal(holder, Signal::KILL);
            wait_for_death(holder);
            return Ended::Killed;
        }
        if asked != Some(holder) {
            signal(holder, Signal::TERM);
            asked = Some(holder);
        }
        std::thread::sleep(EVERY);
    }
    if asked.is_some() { Ended::InOrder } else { Ended::WasNotRunning }
}

fn signal(process: ProcessIdentity, signal: Signal) {
    if let Some(pid) = pid(process.pid).filter(|_| process.is_alive()) {
        // Gone in this very moment: as wanted.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn wait_for_death(process: ProcessIdentity) {
    let deadline = Instant::now() + MARGIN;
    while process.is_alive() && Instant::now() < deadline {
        std::thread::sleep(EVERY);
    }
}

/// A supervisor that was killed has not written that it ended.
fn clean_up(folder: &ClusterFolder, known: ClusterState) -> anyhow::Result<()> {
    let _lock = folder.lock()?;
    let mut state = folder.read_state()?.unwrap_or(known);
    if state.mark_dead() {
        folder.write_state(&state)?;
    }
    Ok(())
}
