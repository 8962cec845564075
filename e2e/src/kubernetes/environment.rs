//! Which cluster runs, and the variables that lead to it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, ensure};

use crate::cluster::root;

/// Workers that a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One worker of this machine's own CPUs and memory.
    Plain,
    /// One worker that looks like the server of the story, with its eight GPUs offered as DRA devices.
    Story,
    /// Three workers of different scenes.
    ThreeScenes,
    /// Two workers whose kubelets align GPUs and CPUs, one exclusive CPU each, and one for everything else.
    Kubelet,
}

impl Shape {
    /// Arguments of `./dev cluster up`.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Shape::Plain => &[],
            Shape::Story => &["--scene", "story"],
            Shape::ThreeScenes => &["--scene", "story,one-socket,no-gpu"],
            Shape::Kubelet => &["--worker", "a:kubelet=0", "--worker", "b:kubelet=1", "--worker", "c:no-gpu"],
        }
    }

    /// Scene and exclusive CPU of each worker, as the cluster's file of workers has them.
    fn workers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Shape::Plain => &[("-", "-")],
            Shape::Story => &[("story", "-")],
            Shape::ThreeScenes => &[("story", "-"), ("one-socket", "-"), ("no-gpu", "-")],
            Shape::Kubelet => &[("story", "0"), ("story", "1"), ("no-gpu", "-")],
        }
    }
}

/// The state folder of the cluster: one place for processes, logs, the audit log.
pub fn state_folder() -> PathBuf {
    std::env::var_os("FATHOM_CLUSTER").map_or_else(|| PathBuf::from("/tmp/fathom-cluster"), PathBuf::from)
}

/// Lines of `NAME INDEX SCENE CPU`, written by `up`; absent without a cluster.
fn running_workers() -> Option<Vec<(String, String)>> {
    let text = std::fs::read_to_string(state_folder().join("workers")).ok()?;
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    Some(fields.filter(|f| f.len() == 4).map(|f| (f[2].to_owned(), f[3].to_owned())).collect())
}

/// Values of the chart for the workers that run: on a recorded machine the agent is told where the record is.
///
/// # Errors
/// When only some of the workers are recorded machines.
pub(super) fn values() -> anyhow::Result<&'static [&'static str]> {
    let workers = running_workers().context("no cluster is up")?;
    let recorded = workers.iter().filter(|(scene, cpu)| scene != "-" || cpu != "-").count();
    ensure!(
        recorded == 0 || recorded == workers.len(),
        "tests need all workers of recorded machines, or none"
    );
    // A kubelet that gives out one CPU has nothing left for an agent that asks for a part.
    let whole = workers.iter().any(|(_, cpu)| cpu != "-");
    Ok(match (recorded, whole) {
        (0, _) => &[],
        (_, false) => &["nodeAgent.scene=/var/lib/fathom-scene"],
        (_, true) => &["nodeAgent.scene=/var/lib/fathom-scene", "nodeAgent.resources.requests.cpu=0m"],
    })
}

/// Makes sure that a cluster of `shape` runs. One of another shape is replaced only if `FATHOM_CLUSTER_RESHAPE` is set,
/// as `./dev e2e` does: somebody may be using it.
///
/// # Errors
/// When it does not run and may not be started.
pub(super) fn require(shape: Shape) -> anyhow::Result<()> {
    let found = running_workers();
    let fits = |found: &Vec<(String, String)>| {
        found.iter().map(|(scene, cpu)| (scene.as_str(), cpu.as_str())).eq(shape.workers().iter().copied())
    };
    if found.as_ref().is_some_and(fits) {
        return Ok(());
    }
    let may = std::env::var_os("FATHOM_CLUSTER_RESHAPE").is_some();
    let up = format!("./dev cluster up {}", shape.arguments().join(" "));
    match found {
        None => ensure!(may, "this test needs a cluster: start one with `{up}`"),
        Some(found) => ensure!(
            may,
            "this test needs other workers than {found:?}: `./dev cluster down; {up}`, or set FATHOM_CLUSTER_RESHAPE=1"
        ),
    }
    dev(&["down"])?;
    let mut arguments = vec!["up"];
    arguments.extend(shape.arguments());
    dev(&arguments)
}

/// `./dev cluster ARGUMENTS`.
///
/// # Errors
/// With what it said.
pub fn dev(arguments: &[&str]) -> anyhow::Result<()> {
    let output =
        Command::new(root().join("dev")).arg("cluster").args(arguments).output().context("starting ./dev")?;
    ensure!(
        output.status.success(),
        "./dev cluster {}: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// What `./dev cluster env` exports, once a process: PATH with kubectl and helm, KUBECONFIG.
pub(super) fn variables() -> anyhow::Result<&'static [(String, String)]> {
    static VARIABLES: OnceLock<Vec<(String, String)>> = OnceLock::new();
    if let Some(found) = VARIABLES.get() {
        return Ok(found);
    }
    let script = r#"exports=$(./dev cluster env) && eval "$exports" && env -0"#;
    let output =
        Command::new("bash").args(["-euc", script]).current_dir(root()).output().context("starting bash")?;
    ensure!(output.status.success(), "./dev cluster env: {}", String::from_utf8_lossy(&output.stderr));
    let parsed = String::from_utf8(output.stdout)?
        .split('\0')
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Ok(VARIABLES.get_or_init(|| parsed))
}
