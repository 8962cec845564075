//! Images on the workers.

use anyhow::ensure;

use super::environment::state_folder;
use super::run;
use anyhow::Context;

/// The engine's image under the chart's default name.
pub const ENGINE: &str = "fathom.dev/fathom-engine:0.1.0";

/// Names of the workers.
///
/// # Errors
/// When no cluster is up.
pub fn workers() -> anyhow::Result<Vec<String>> {
    let path = state_folder().join("workers");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// Gives an image of every worker a second name.
///
/// # Errors
/// When a worker does not have it.
pub fn tag(image: &str, name: &str) -> anyhow::Result<()> {
    for worker in workers()? {
        let args = [
            "cluster",
            "exec",
            &worker,
            "ctr",
            "--address",
            "/run/containerd/containerd.sock",
            "-n",
            "k8s.io",
            "images",
            "tag",
            "--force",
            image,
            name,
        ];
        let output = run("./dev", &args, None)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tagging {image} on {worker}: {stderr}");
    }
    Ok(())
}
