//! A cluster that `fathom local up --detach` started, in a state folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("e2e lies in the repository")
}

/// A built program, from `FATHOM_BIN` or the default target folder.
pub fn program(name: &str) -> PathBuf {
    let folder = std::env::var_os("FATHOM_BIN").map_or_else(|| root().join("target/release"), PathBuf::from);
    folder.join(name)
}

/// A running cluster; dropped, it is taken down.
#[derive(Debug)]
pub struct Cluster {
    state: tempfile::TempDir,
    pub endpoint: String,
}

impl Cluster {
    /// Starts the quickstart's needle cluster after `edit` changed its `spec`.
    ///
    /// # Errors
    /// What `fathom local up` said.
    pub fn start(edit: impl FnOnce(&mut Value)) -> anyhow::Result<Self> {
        let state = tempfile::tempdir()?;
        let file = state.path().join("cluster.yaml");
        // JSON is YAML.
        std::fs::write(&file, needle_object(edit)?.to_string())?;
        let file = file.to_string_lossy();
        let up = fathom(state.path(), &["local", "up", "-f", &file, "--listen", "127.0.0.1:0", "--detach"])?;
        ensure!(up.status.success(), "fathom local up: {}", String::from_utf8_lossy(&up.stderr));
        let mut cluster = Self { state, endpoint: String::new() };
        cluster.endpoint =
            cluster.status()?["endpoint"].as_str().context("status has no endpoint")?.to_owned();
        Ok(cluster)
    }

    /// `fathom local status needle -o json`.
    ///
    /// # Errors
    /// When the program fails or prints no JSON.
    pub fn status(&self) -> anyhow::Result<Value> {
        let output = fathom(self.state.path(), &["local", "status", "needle", "-o", "json"])?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("fathom local status: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// The process that plays `role`.
    ///
    /// # Errors
    /// When status does not name it.
    pub fn process(&self, role: &str) -> anyhow::Result<Process> {
        let status = self.status()?;
        let processes = status["processes"].as_array().context("status has no processes")?;
        let found =
            processes.iter().find(|p| p["role"] == role).with_context(|| format!("no {role} in {status}"))?;
        Ok(Process {
            pid: found["pid"].as_i64().with_context(|| format!("no pid in {found}"))?,
            http: found["http"].as_str().unwrap_or_default().to_owned(),
            ready: found["state"] == "Ready",
            restarts: found["restarts"].as_u64().unwrap_or_default(),
        })
    }

    /// `kill -9` of the process that plays `role`.
    ///
    /// # Errors
    /// When there is none.
    pub fn kill(&self, role: &str) -> anyhow::Result<Process> {
        let process = self.process(role)?;
        let status = Command::new("kill").args(["-9", &process.pid.to_string()]).status()?;
        ensure!(status.success(), "kill -9 {}", process.pid);
        Ok(process)
    }

    /// The value of a metric of `role`, by its name with labels as the exposition prints it; absent = not exported.
    ///
    /// # Errors
    /// When the process does not answer.
    pub fn metric(&self, role: &str, series: &str) -> anyhow::Result<Option<f64>> {
        let http = self.process(role)?.http;
        let text = ureq::get(format!("http://{http}/metrics")).call()?.body_mut().read_to_string()?;
        Ok(text.lines().find_map(|line| line.strip_prefix(series).and_then(|rest| rest.trim().parse().ok())))
    }

    /// Waits until `role` has been restarted more often than `before` and is ready, and the router knows it.
    ///
    /// # Errors
    /// After 30 s.
    pub fn wait_restarted(&self, role: &str, before: u64) -> anyhow::Result<()> {
        crate::wait_for(&format!("a restart of {role}"), Duration::from_secs(30), || {
            let process = self.process(role).ok()?;
            (process.restarts > before && process.ready).then_some(())
        })?;
        crate::wait_for("the router to be ready again", Duration::from_secs(30), || {
            ureq::get(format!("{}/readyz", self.endpoint)).call().ok().map(|_| ())
        })
    }
}

/// The object of `crds/examples/needle-local.yaml`, with the model's folder absolute, after `edit` changed its `spec`.
///
/// # Errors
/// When the example cannot be read.
pub fn needle_object(edit: impl FnOnce(&mut Value)) -> anyhow::Result<Value> {
    let path = root().join("crds/examples/needle-local.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut object: Value = serde_saphyr::from_str(&text)?;
    let spec = object.get_mut("spec").context("the example has no spec")?;
    spec["model"]["source"]["hostPath"] = root().join("engine/testdata/needle").to_string_lossy().into();
    edit(spec);
    Ok(object)
}

/// Runs `fathom` with its state in `state`.
///
/// # Errors
/// When the program is not built.
pub fn fathom(state: &Path, args: &[&str]) -> anyhow::Result<Output> {
    let program = program("fathom");
    Command::new(&program)
        .args(args)
        .env("XDG_STATE_HOME", state)
        .output()
        .with_context(|| format!("starting {}; build it with ./dev build", program.display()))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        match fathom(self.state.path(), &["local", "down", "needle"]) {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("fathom local down: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => eprintln!("fathom local down: {error:#}"),
        }
    }
}

/// A process as `fathom local status` shows it.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: i64,
    pub http: String,
    pub ready: bool,
    pub restarts: u64,
}
