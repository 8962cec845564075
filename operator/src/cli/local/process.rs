//! One child process: started, listened to, ended.
//! In: a program and its configuration. Out: [`Report`]s on the supervisor's channel.
//! Children die with the supervisor, however it dies: each is started through `fathom local child`, which sets its
//! parent-death signal and then becomes the program. (The kernel keeps that signal across exec, and ties it to the
//! *thread* that started the child; so only the supervisor's main thread starts children.)
//! Every child's pipes are drained to their end, whatever happens to the logs.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use serde::Deserialize;

use super::launch::Addresses;
use super::log::Log;
use super::probe::Probe;

/// After a child's exit its pipes are read this much longer at most: a grandchild may hold them open.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(1);
/// A child that logs a lot is reported alive this often.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// One life of a process: reports of an earlier life must not be taken for the present one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) process: usize,
    pub(super) number: u32,
}

#[derive(Debug)]
pub(super) enum Message {
    Child(Life, Report),
    /// Somebody asks for the end.
    Stop,
}

#[derive(Debug)]
pub(super) enum Report {
    Listening(Addresses),
    Ready,
    Alive,
    /// Percent of the loading.
    Loaded(u8),
    /// It has exited and waits to be reaped.
    Exited,
}

/// A child that runs, or has exited and is not yet reaped.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) life: Life,
    pub(super) pid: u32,
    child: Child,
    /// Watches for readiness from `listening` on.
    pub(super) probe: Option<Probe>,
}

impl Running {
    /// Must be called on the supervisor's main thread.
    pub(super) fn start(
        program: &Path,
        config: &Path,
        log: &Log,
        life: Life,
        messages: &SyncSender<Message>,
    ) -> io::Result<Self> {
        // Our own program by /proc: a `fathom` that was replaced since still finds itself.
        let mut child = Command::new("/proc/self/exe")
            .args(["local", "child", "--parent", &std::process::id().to_string(), "--"])
            .arg(program)
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal's Ctrl-C is for the supervisor, which ends the children in order.
            .process_group(0)
            .spawn()?;
        if let Err(error) = listen_to(&mut child, log, life, messages) {
            // Nobody would drain its pipes or notice its end.
            let _ = child.kill().and_then(|()| child.wait());
            return Err(error);
        }
        Ok(Self { life, pid: child.id(), child, probe: None })
    }

    /// Before [`Self::reap`] the id cannot belong to anybody else.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = pid(self.pid) {
            // The only failure left: it has exited already.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// After [`Report::Exited`]; does not wait then.
    pub(super) fn reap(mut self) -> String {
        self.child.wait().map_or_else(|error| format!("unknown exit: {error}"), describe)
    }
}

/// Starts the three threads that end with the child: its pipes' readers, and one that waits for its exit.
fn listen_to(child: &mut Child, log: &Log, life: Life, messages: &SyncSender<Message>) -> io::Result<()> {
    let (done, all_read) = sync_channel(2);
    if let Some(stdout) = child.stdout.take() {
        let (log, messages, done) = (log.clone(), messages.clone(), done.clone());
        spawn_thread("stdout", move || {
            log.drain(stdout, |line| {
                if let Some(addresses) = listening(line) {
                    let _ = messages.send(Message::Child(life, Report::Listening(addresses)));
                }
            });
            let _ = done.send(());
        })?;
    }
    if let Some(stderr) = child.stderr.take() {
        let (log, messages) = (log.clone(), messages.clone());
        spawn_thread("stderr", move || {
            let mut pulse = Pulse::default();
            log.drain(stderr, |line| {
                // Dropped when the supervisor is busy: there will be a next one.
                if let Some(report) = pulse.report(line) {
                    let _ = messages.try_send(Message::Child(life, report));
                }
            });
            let _ = done.send(());
        })?;
    }
    let (pid, messages) = (child.id(), messages.clone());
    spawn_thread("exit", move || {
        wait_for_exit(pid, &all_read);
        let _ = messages.send(Message::Child(life, Report::Exited));
    })
}

fn spawn_thread(what: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(what.to_owned()).spawn(body).map(drop)
}

/// Waits without reaping: until the main thread reaps, the id stays the child's.
fn wait_for_exit(child: u32, all_read: &Receiver<()>) {
    let Some(pid) = pid(child) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), options));
    let deadline = Instant::now() + LAST_WORDS_WAIT;
    for _pipe in 0..2 {
        let _ = all_read.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

pub(super) fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown end".to_owned(),
    }
}

/// `{"event":"listening","role":"prefill","http":"127.0.0.1:4711","grpc":"127.0.0.1:4712"}`
fn listening(line: &str) -> Option<Addresses> {
    #[derive(Deserialize)]
    struct Line {
        event: String,
        http: SocketAddr,
        #[serde(default)]
        grpc: Option<SocketAddr>,
    }
    let line: Line = serde_json::from_str(line).ok()?;
    (line.event == "listening").then_some(Addresses { http: line.http, grpc: line.grpc })
}

/// Picks what is worth reporting out of a stream of log lines.
#[derive(Debug, Default)]
struct Pulse {
    reported: Option<Instant>,
    percent: Option<u8>,
}

impl Pulse {
    fn report(&mut self, line: &str) -> Option<Report> {
        if let Some(percent) = loaded_percent(line).filter(|percent| self.percent != Some(*percent)) {
            self.percent = Some(percent);
            return Some(Report::Loaded(percent));
        }
        if self.reported.is_some_and(|last| last.elapsed() < ALIVE_EVERY) {
            return None;
        }
        self.reported = Some(Instant::now());
        Some(Report::Alive)
    }
}

/// The progress that an engine logs while loading: a JSON line with `percent`, at its top or among its `fields`.
fn loaded_percent(line: &str) -> Option<u8> {
    #[derive(Deserialize)]
    struct Percent {
        percent: f64,
    }
    #[derive(Deserialize)]
    struct Line {
        percent: Option<f64>,
        fields: Option<Percent>,
    }
    // Most lines are not about this: spare them the parser.
    if !line.contains("\"percent\"") {
        return None;
    }
    let line: Line = serde_json::from_str(line).ok()?;
    let percent = line.percent.or(line.fields.map(|fields| fields.percent))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=100")]
    Some(percent.clamp(0.0, 100.0) as u8)
}

/// `fathom local child`: dies when `parent` does, and becomes `program`.
///
/// # Errors
/// Returns only if it could not become the program.
pub(super) fn become_child(parent: u32, program: &Path, arguments: &[OsString]) -> anyhow::Error {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow::Error::from(error).context("cannot ask the kernel for the parent's death");
    }
    // It may have died before it was asked for.
    if rustix::process::getppid() != pid(parent) {
        return anyhow::anyhow!("the supervisor (process {parent}) is gone");
    }
    let error = Command::new(program).args(arguments).exec();
    anyhow::Error::from(error).context(format!("cannot start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listening_line_is_understood_and_nothing_else_is_taken_for_it() {
        let line = r#"{"event":"listening","role":"prefill","http":"127.0.0.1:1","grpc":"127.0.0.1:2"}"#;
        let addresses = listening(line).unwrap();
        assert_eq!((addresses.http.port(), addresses.grpc.map(|a| a.port())), (1, Some(2)));
        let router = r#"{"event":"listening","role":"router","http":"[::]:8000","grpc":null}"#;
        assert_eq!(listening(router).unwrap().grpc, None);
        for other in
            ["", "listening", r#"{"event":"loaded","http":"127.0.0.1:1"}"#, r#"{"event":"listening"}"#]
        {
            assert!(listening(other).is_none(), "{other}");
        }
    }

    #[test]
    fn loading_progress_is_found_at_the_top_and_among_the_fields() {
        assert_eq!(loaded_percent(r#"{"event":"loading","percent":41.7}"#), Some(41));
        assert_eq!(loaded_percent(r#"{"level":"INFO","fields":{"message":"x","percent":100}}"#), Some(100));
        assert_eq!(loaded_percent(r#"{"percent":1e99}"#), Some(100));
        assert_eq!(loaded_percent(r#"{"message":"\"percent\" is a word"}"#), None);
        assert_eq!(loaded_percent("not json with \"percent\""), None);
    }
}
