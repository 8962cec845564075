//! Which cluster runs, and the variables that lead to it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, ensure};

use crate::cluster::root;

/// Workers that a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Whatever runs; one worker of this machine's own CPUs and memory is enough, and the default.
    Any,
    /// One worker of this machine's own CPUs and memory.
    Plain,
    /// One worker that looks like the server of the story, with its eight GPUs offered as DRA devices.
    Story,
    /// Three workers of different scenes.
    ThreeScenes,
    /// Two workers whose kubelets align GPUs and CPUs, one exclusive CPU each.
    Kubelet,
}

impl Shape {
    /// Arguments of `./dev cluster up`.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Shape::Any | Shape::Plain => &[],
            Shape::Story => &["--scene", "story"],
            Shape::ThreeScenes => &["--workers", "3", "--scene", "story,one-socket,numa-minus-one"],
            Shape::Kubelet => &["--kubelet-numa"],
        }
    }
}

/// The state folder of the cluster: one place for processes, logs, the audit log.
pub fn state_folder() -> PathBuf {
    std::env::var_os("FATHOM_CLUSTER").map_or_else(|| PathBuf::from("/tmp/fathom-cluster"), PathBuf::from)
}

/// The file in which a started cluster keeps the arguments it was started with.
fn shape_file() -> PathBuf {
    state_folder().join("arguments")
}

/// Makes sure that a cluster of `shape` runs. One of another shape is replaced only if `FATHOM_CLUSTER_RESHAPE` is set,
/// as `./dev e2e` does: somebody may be using it.
///
/// # Errors
/// When it does not run and may not be started.
pub(super) fn require(shape: Shape) -> anyhow::Result<()> {
    let wanted = shape.arguments().join(" ");
    let found = std::fs::read_to_string(shape_file()).ok().map(|text| text.trim().to_owned());
    if found.as_deref() == Some(wanted.as_str()) || (shape == Shape::Any && found.is_some()) {
        return Ok(());
    }
    let may = std::env::var_os("FATHOM_CLUSTER_RESHAPE").is_some();
    let up = format!("./dev cluster up {wanted}");
    match found {
        None => ensure!(may, "this test needs a cluster: start one with `{up}`"),
        Some(found) => ensure!(
            may,
            "this test needs other workers than those that run (`{found}`): `./dev cluster down; {up}`, or set FATHOM_CLUSTER_RESHAPE=1"
        ),
    }
    dev(&["down"])?;
    let mut arguments = vec!["up"];
    arguments.extend(shape.arguments());
    dev(&arguments)
}

fn dev(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(root().join("dev")).arg("cluster").args(arguments).output().context("starting ./dev")?;
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
    let output = Command::new("bash").args(["-euc", script]).current_dir(root()).output().context("starting bash")?;
    ensure!(output.status.success(), "./dev cluster env: {}", String::from_utf8_lossy(&output.stderr));
    let parsed = String::from_utf8(output.stdout)?
        .split('\0')
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Ok(VARIABLES.get_or_init(|| parsed))
}
