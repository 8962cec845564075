//! A real Kubernetes as `./dev cluster up` starts it: a client of its API, namespaces, the chart, faults, audit log.
//! In: what `./dev cluster env` prints. Out: handles that remove what they made when dropped.
//! Never: sleeps in place of a condition, objects that two tests could share.

pub mod agent_call;
pub mod api;
pub mod audit;
pub mod chart;
pub mod client_pod;
pub mod command_line;
pub mod devices;
mod diagnosis;
mod environment;
pub mod faults;
pub mod images;
pub mod namespace;
pub mod objects;
pub mod process;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use api::Api;
pub use environment::{Shape, dev as cluster_command, state_folder};
pub use namespace::{Level, Namespace};

/// Time between two looks at the API server: short against what is waited for, long enough to leave the cores alone.
const POLL: Duration = Duration::from_millis(200);

/// Namespace of operator and agents.
pub const SYSTEM: &str = "fathom-system";

/// A connection to the running cluster.
#[derive(Debug)]
pub struct Kubernetes {
    pub api: Api,
    /// Values of the chart that the workers need: those with a recorded machine tell the agent where it is.
    values: &'static [&'static str],
}

impl Kubernetes {
    /// The running cluster, whatever workers it has, with Fathom installed as the chart's defaults say.
    ///
    /// # Errors
    /// When no cluster is up, or the chart does not become ready.
    pub fn with_fathom(shape: Shape) -> anyhow::Result<Self> {
        let kubernetes = Self::bare(shape)?;
        chart::ensure_default(&kubernetes)?;
        Ok(kubernetes)
    }

    /// The running cluster, as it is.
    ///
    /// # Errors
    /// When no cluster of this shape is up and none may be started.
    pub fn bare(shape: Shape) -> anyhow::Result<Self> {
        environment::require(shape)?;
        Ok(Self { api: Api::connect()?, values: environment::values()? })
    }

    /// Runs `kubectl` with `args`; its output when it succeeds.
    ///
    /// # Errors
    /// With what it said.
    pub fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = run("kubectl", args, None)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {stderr}", args.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until `check` gives a value. An error of `check` is no end: a restarting API server answers with some.
    ///
    /// # Errors
    /// After `limit`, with the last error and the state of Fathom and of `namespaces`.
    pub fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        namespaces: &[&str],
        mut check: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        loop {
            let error = match check() {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => None,
                Err(error) => Some(error),
            };
            if start.elapsed() >= limit {
                let last = error.map(|error| format!("; last error: {error:#}")).unwrap_or_default();
                anyhow::bail!("waited {limit:?} for {what}{last}\n{}", diagnosis::describe(self, namespaces));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Checks for the whole of `time` that `check` finds nothing wrong.
    ///
    /// # Errors
    /// With the first sentence of `check`.
    pub fn holds_for(
        &self,
        time: Duration,
        namespaces: &[&str],
        mut check: impl FnMut() -> anyhow::Result<Option<String>>,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            if let Some(complaint) = check()? {
                anyhow::bail!(
                    "{complaint}, after {:?}\n{}",
                    start.elapsed(),
                    diagnosis::describe(self, namespaces)
                );
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

/// Runs a program of the cluster (`kubectl`, `helm`, a script of `e2e/cluster`) in the cluster's environment.
///
/// # Errors
/// When it cannot be started.
pub fn run(program: &str, args: &[&str], stdin: Option<&str>) -> anyhow::Result<Output> {
    let mut command = Command::new(program);
    command.args(args).envs(environment::variables()?.iter().cloned()).current_dir(crate::cluster::root());
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
    if let (Some(text), Some(mut pipe)) = (stdin, child.stdin.take()) {
        std::io::Write::write_all(&mut pipe, text.as_bytes())
            .with_context(|| format!("writing to {program}"))?;
    }
    child.wait_with_output().with_context(|| format!("waiting for {program}"))
}
