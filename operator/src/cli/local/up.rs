//! `fathom local up`: file, facts and plan on the way in; then the supervisor, here or in the background.
//! Nothing is started, and nothing of an earlier run is touched, before everything that can be checked is checked.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::environment::Environment;
use super::launch;
use super::log::Log;
use super::ports;
use super::state::{self, ClusterFolder, Lock};
use super::supervise;
use super::supervise::console::Console;
use super::supervise::machine::{Ending, Phase};
use crate::cli::planning;

/// After the background supervisor closed its output without being ready, it exits within this time.
const EXIT_WAIT: Duration = Duration::from_secs(5);

/// Plans an InferenceCluster for this machine, starts it, and prints its address when it is ready.
///
/// Prefill, decode and router run as processes of their own. A process that dies is started again; one that dies more
/// than five times in ten minutes stays down, and `fathom local status` says so. Ctrl-C lets running requests finish;
/// a second Ctrl-C does not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom local up -f crds/examples/needle-local.yaml
  fathom local up -f cluster.yaml --listen 127.0.0.1:0             any free port
  fathom local up -f cluster.yaml --listen 0.0.0.0:8000 --detach   for other machines too

There are no API keys yet: who reaches the address may use it.")]
pub(crate) struct Args {
    /// The InferenceCluster: the file that `kubectl apply -f` would take.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Where clients call; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Return once it is ready, and leave it running in the background.
    #[arg(short, long)]
    detach: bool,
    /// Run it under another name than the file's `metadata.name`.
    #[arg(long)]
    name: Option<String>,
}

pub(crate) fn run(args: Args, environment: &Environment) -> anyhow::Result<ExitCode> {
    let engine = environment.engine()?;
    let loaded = planning::load(&args.file)?;
    let name = args.name.unwrap_or_else(|| loaded.name().to_owned());
    let folder = ClusterFolder::new(&environment.state_root, &name)?;
    let lock = folder.lock()?;
    ports::check_free(args.listen)?;
    let planned = loaded.plan_here();
    if !planned.is_feasible() {
        planning::print_table(&planned, &mut std::io::stdout())?;
        return Ok(ExitCode::FAILURE);
    }
    let router = loaded.routers(&planned).into_iter().next();
    let router = router.context("spec.router.replicas is 0: clients call the router, so one is needed")?;
    let specs = launch::arrange(loaded.engines(&planned)?, router, args.listen);
    planning::print_table(&planned, &mut std::io::stdout())?;
    tell_of_stale_state(&folder);
    folder.prepare(&planned, &specs)?;
    if args.detach { run_in_background(&folder, &lock) } else { run_here(&folder, &lock, &engine) }
}

/// We hold the lock, so a state that is not an end was left by a supervisor that was killed.
fn tell_of_stale_state(folder: &ClusterFolder) {
    if let Ok(Some(mut state)) = folder.read_state()
        && state.mark_dead()
    {
        eprintln!(
            "fathom: an earlier {} (process {}) was killed without having cleaned up: taking over from it",
            folder.name, state.supervisor.pid
        );
    }
}

fn console(folder: &ClusterFolder) -> Console {
    Console::new(Log::new(folder.log_path(state::SUPERVISOR)))
}

fn run_here(folder: &ClusterFolder, lock: &Lock, engine: &Path) -> anyhow::Result<ExitCode> {
    let ending = supervise::run(folder, lock, engine, console(folder), |console| {
        console.show("Ctrl-C ends it, after the running requests.");
    })?;
    Ok(exit_code(&ending))
}

fn exit_code(ending: &Ending) -> ExitCode {
    match ending {
        Ending::Asked => ExitCode::SUCCESS,
        Ending::Interrupted | Ending::StartFailed { .. } => ExitCode::FAILURE,
    }
}

/// Starts the supervisor behind the terminal, shows what it says, and returns when the cluster is ready or has failed.
fn run_in_background(folder: &ClusterFolder, lock: &Lock) -> anyhow::Result<ExitCode> {
    let lock = lock.hand_over().context("cannot hand the lock over")?;
    let mut supervisor = Command::new("/proc/self/exe")
        .args(["local", "supervise", "--name", &folder.name])
        // It must keep no folder busy that the user may want to remove.
        .current_dir("/")
        .stdin(Stdio::from(lock))
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the supervisor")?;
    if let Some(mut said) = supervisor.stdout.take() {
        // It closes this pipe when the cluster is ready; until then what it says is for our reader.
        // If our reader has gone, the cluster still starts.
        let _ = std::io::copy(&mut said, &mut std::io::stdout());
    }
    if let Some(code) = outcome(folder, &mut supervisor)? {
        return Ok(code);
    }
    let name = &folder.name;
    let _ = writeln!(
        std::io::stdout(),
        "It runs in the background (process {}): fathom local status {name} | logs {name} | down {name}",
        supervisor.id()
    );
    Ok(ExitCode::SUCCESS)
}

/// The supervisor's exit code if it has ended, None if it runs on with the cluster ready.
fn outcome(folder: &ClusterFolder, supervisor: &mut Child) -> anyhow::Result<Option<ExitCode>> {
    let deadline = Instant::now() + EXIT_WAIT;
    loop {
        if let Some(status) = supervisor.try_wait().context("cannot wait for the supervisor")? {
            anyhow::ensure!(status.code().is_some(), "the supervisor was killed: {status}");
            return Ok(Some(
                status.code().and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
            ));
        }
        let state =
            folder.read_state().ok().flatten().filter(|state| state.supervisor.pid == supervisor.id());
        let up =
            state.is_some_and(|state| matches!(state.phase, Phase::Ready | Phase::Degraded | Phase::Failed));
        // Without a readable state (a full disk) the closed pipe must do.
        if up || Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `fathom local supervise`: the other side of [`run_in_background`].
pub(crate) fn supervise_in_background(name: &str, environment: &Environment) -> anyhow::Result<ExitCode> {
    let folder = ClusterFolder::new(&environment.state_root, name)?;
    let lock = folder.lock_from_stdin()?;
    // Away from the terminal: neither its Ctrl-C nor its end is meant for us. Fails only for who leads a session already.
    let _ = rustix::process::setsid();
    let engine = environment.engine()?;
    let ending = supervise::run(&folder, &lock, &engine, console(&folder), |console| {
        if let Err(error) = close_output(console) {
            console.say(&format!("cannot close the output: {error}"));
        }
    })?;
    Ok(exit_code(&ending))
}

/// Whoever started us waits for the end of these.
fn close_output(console: &mut Console) -> std::io::Result<()> {
    let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
    console.close();
    rustix::stdio::dup2_stderr(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(())
}
