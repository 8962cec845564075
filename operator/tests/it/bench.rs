//! A folder with `fathom`, a fake engine beside it, and a state folder of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Far beyond what anything here takes; a wait that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(90);

pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        // Below the target folder, so that a hard link to the program is possible.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bench = Self { folder };
        for name in ["bin", "state", "rules"] {
            std::fs::create_dir(bench.path(name)).unwrap();
        }
        std::fs::hard_link(env!("CARGO_BIN_EXE_fathom"), bench.path("bin/fathom")).unwrap();
        let script = format!(
            "#!/bin/sh\nFAKE_ENGINE_CONFIG=\"$2\" exec '{}' --ignored --exact fake_engine::process --nocapture\n",
            std::env::current_exe().unwrap().display()
        );
        std::fs::write(bench.engine(), script).unwrap();
        std::fs::set_permissions(bench.engine(), Permissions::from_mode(0o755)).unwrap();
        bench
    }

    pub(crate) fn engine(&self) -> PathBuf {
        self.path("bin/fathom-engine")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of the cluster's state folder.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.path("state/fathom/needle").join(name)
    }

    /// Tells the engines of a role to misbehave from now on.
    pub(crate) fn rule(&self, rule: &str) {
        std::fs::write(self.path("rules").join(rule), "").unwrap();
    }

    pub(crate) fn end_rule(&self, rule: &str) {
        std::fs::remove_file(self.path("rules").join(rule)).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/fathom"));
        command
            .args(args)
            .env("XDG_STATE_HOME", self.path("state"))
            .env("FAKE_ENGINE_RULES", self.path("rules"))
            // Somebody's proxy must not come between us and our own processes.
            .env("http_proxy", "http://127.0.0.1:1")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn fathom(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    pub(crate) fn up(&self, more: &[&str]) -> Said {
        self.fathom(&[&Self::up_args(), more].concat())
    }

    pub(crate) fn up_args() -> [&'static str; 6] {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/examples/needle-local.yaml");
        ["local", "up", "-f", file, "--listen", "127.0.0.1:0"]
    }

    /// `fathom local status needle -o json`
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.fathom(&["local", "status", "needle", "-o", "json"]).stdout).unwrap()
    }

    /// The process of `role` out of [`Self::status`].
    pub(crate) fn process(&self, role: &str) -> Value {
        let status = self.status();
        let processes = status["processes"].as_array().unwrap();
        processes.iter().find(|process| process["role"] == role).unwrap().clone()
    }

    /// What the fake engines noted, in order: `start prefill`, `term router`.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("rules/events")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A test that failed half-way must leave nothing running either.
        let _ = self.command(&["local", "down", "needle"]).output();
    }
}

/// What a program said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32, said: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in said {
            assert!(self.stdout.contains(part) || self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
        self
    }
}

#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {DEADLINE:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn kill(pid: &Value, signal: Signal) {
    let pid = Pid::from_raw(pid.as_i64().unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Gone, or dead and only waiting to be reaped by somebody else.
pub(crate) fn is_dead(pid: &Value) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))
        .map_or(true, |stat| stat.contains(") Z "))
}
