//! The Helm chart, installed, upgraded and uninstalled with the real Helm.

use std::process::Output;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::api::{CLUSTERS, DAEMON_SETS, DEFINITIONS, DEPLOYMENTS, LEASES, PODS, SECRETS};
use super::{Kubernetes, SYSTEM, run};

/// The chart of this checkout.
pub const CHART: &str = "charts/fathom";
/// The release's name, as README says it.
pub const RELEASE: &str = "fathom";
/// Longest time that `--wait` may take.
const READY: &str = "120s";

/// Runs `helm`.
///
/// # Errors
/// When it cannot be started.
pub fn helm(args: &[&str]) -> anyhow::Result<Output> {
    run("helm", args, None)
}

/// What a successful `helm` printed.
///
/// # Errors
/// With what it said.
pub fn helm_ok(args: &[&str]) -> anyhow::Result<String> {
    let output = helm(args)?;
    ensure!(
        output.status.success(),
        "helm {}: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `helm install fathom charts/fathom -n fathom-system --create-namespace --wait`, with `sets` as `--set`.
///
/// # Errors
/// When it does not become ready.
pub fn install(kubernetes: &Kubernetes, sets: &[&str]) -> anyhow::Result<String> {
    released(kubernetes, CHART, &["install", "--wait", "--timeout", READY], sets)
}

/// The same with another chart.
///
/// # Errors
/// When it does not become ready.
pub fn install_from(kubernetes: &Kubernetes, chart: &str) -> anyhow::Result<String> {
    released(kubernetes, chart, &["install", "--wait", "--timeout", READY], &[])
}

/// `helm upgrade` of the release with exactly these values.
///
/// # Errors
/// When it does not become ready.
pub fn upgrade(kubernetes: &Kubernetes, sets: &[&str]) -> anyhow::Result<String> {
    released(
        kubernetes,
        CHART,
        &["upgrade", "--install", "--reset-values", "--wait", "--timeout", READY],
        sets,
    )
}

/// The same without waiting, for an operator that is not meant to work.
///
/// # Errors
/// When it is refused.
pub fn upgrade_unwatched(kubernetes: &Kubernetes, sets: &[&str]) -> anyhow::Result<String> {
    released(kubernetes, CHART, &["upgrade", "--install", "--reset-values"], sets)
}

fn released(kubernetes: &Kubernetes, chart: &str, verb: &[&str], sets: &[&str]) -> anyhow::Result<String> {
    let mut args = verb.to_vec();
    args.extend([RELEASE, chart, "-n", SYSTEM, "--create-namespace"]);
    args.extend(with_machine_values(kubernetes, sets));
    helm_ok(&args)
        .map_err(|error| anyhow::anyhow!("{error:#}\n{}", super::diagnosis::describe(kubernetes, &[])))
}

/// The chart as an earlier commit had it.
#[derive(Debug)]
pub struct Earlier {
    pub commit: String,
    folder: TempDir,
}

impl Earlier {
    /// Its folder.
    pub fn chart(&self) -> String {
        self.folder.path().join(CHART).display().to_string()
    }
}

/// The chart of the newest commit whose chart differs from the one in this checkout; `None` when git knows of none (a
/// checkout without history, no git).
///
/// # Errors
/// When its files cannot be written.
pub fn earlier() -> anyhow::Result<Option<Earlier>> {
    let git = |args: &[&str]| run("git", args, None).ok();
    let Some(history) = git(&["rev-list", "HEAD", "--", CHART]).filter(|output| output.status.success())
    else {
        return Ok(None);
    };
    let history = String::from_utf8(history.stdout)?;
    // Exit status 1: differs; anything else is no answer.
    let differs = |commit: &&str| {
        git(&["diff", "--quiet", commit, "--", CHART]).is_some_and(|output| output.status.code() == Some(1))
    };
    let Some(commit) = history.lines().find(differs) else { return Ok(None) };
    let folder = tempfile::tempdir()?;
    let archive = folder.path().join("chart.tar").display().to_string();
    let target = folder.path().display().to_string();
    for command in
        [vec!["git", "archive", "-o", &archive, commit, CHART], vec!["tar", "-xf", &archive, "-C", &target]]
    {
        let output = run(command[0], &command[1..], None)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", command.join(" "));
    }
    Ok(Some(Earlier { commit: commit.to_owned(), folder }))
}

/// `--set` for each value, and for those that workers with a recorded machine need.
fn with_machine_values<'a>(kubernetes: &'a Kubernetes, sets: &[&'a str]) -> Vec<&'a str> {
    let all = sets.iter().copied().chain(kubernetes.values.iter().copied());
    all.flat_map(|set| ["--set", set]).collect()
}

/// Removes the release and waits until its pods are gone; nothing installed is fine.
///
/// # Errors
/// When it does not go.
pub fn uninstall() -> anyhow::Result<()> {
    helm_ok(&["uninstall", RELEASE, "-n", SYSTEM, "--ignore-not-found", "--wait", "--timeout", READY])
        .map(drop)
}

/// Fathom as the chart's defaults say, whatever an earlier test left: nothing is done when it is there already.
///
/// # Errors
/// When it does not become ready.
pub fn ensure_default(kubernetes: &Kubernetes) -> anyhow::Result<()> {
    if !is_default(kubernetes)? {
        upgrade(kubernetes, &[])?;
    }
    Ok(())
}

/// What is deployed is what this chart renders without values, and its workloads are ready.
fn is_default(kubernetes: &Kubernetes) -> anyhow::Result<bool> {
    let deployed = helm(&["get", "manifest", RELEASE, "-n", SYSTEM])?;
    if !deployed.status.success() {
        return Ok(false);
    }
    let mut template = vec!["template", RELEASE, CHART, "-n", SYSTEM, "--kube-version", "v1.34.0"];
    template.extend(with_machine_values(kubernetes, &[]));
    let shipped = helm_ok(&template)?;
    let deployed = String::from_utf8_lossy(&deployed.stdout);
    Ok(lines(&shipped) == lines(&deployed) && workloads_ready(kubernetes)?)
}

/// The lines that say something.
fn lines(manifest: &str) -> Vec<&str> {
    manifest.lines().map(str::trim_end).filter(|line| !line.is_empty() && *line != "---").collect()
}

fn workloads_ready(kubernetes: &Kubernetes) -> anyhow::Result<bool> {
    let operator = kubernetes.api.find(DEPLOYMENTS, SYSTEM, "fathom-operator")?;
    let agents = kubernetes.api.find(DAEMON_SETS, SYSTEM, "fathom-node-agent")?;
    let settled = |object: &Value| object["metadata"]["generation"] == object["status"]["observedGeneration"];
    let operator = operator.is_some_and(|o| {
        settled(&o)
            && o["status"]["readyReplicas"] == o["spec"]["replicas"]
            && o["status"]["updatedReplicas"] == o["spec"]["replicas"]
    });
    let agents = agents.is_some_and(|a| {
        settled(&a)
            && a["status"]["numberReady"] == a["status"]["desiredNumberScheduled"]
            && a["status"]["updatedNumberScheduled"] == a["status"]["desiredNumberScheduled"]
    });
    Ok(operator && agents)
}

/// Removes everything, objects and definitions too, as after `./dev cluster up`.
///
/// # Errors
/// When something stays.
pub fn remove_all(kubernetes: &Kubernetes) -> anyhow::Result<()> {
    if kubernetes.api.find(DEFINITIONS, "", "inferenceclusters.fathom.dev")?.is_some() {
        for object in kubernetes.api.list(CLUSTERS, "", "")? {
            let namespace =
                object["metadata"]["namespace"].as_str().context("an object without namespace")?;
            let name = object["metadata"]["name"].as_str().context("an object without name")?;
            kubernetes.api.delete(CLUSTERS, namespace, name, None)?;
        }
    }
    uninstall()?;
    kubernetes.api.delete(DEFINITIONS, "", "inferenceclusters.fathom.dev", None)?;
    // The release is gone before its last pod is; the Lease and the Secrets are the operator's own.
    kubernetes.wait("definition and pods to go", Duration::from_secs(60), &[], || {
        let definition = kubernetes.api.find(DEFINITIONS, "", "inferenceclusters.fathom.dev")?;
        let pods = kubernetes.api.list(PODS, SYSTEM, "app.kubernetes.io/name=fathom")?;
        Ok((definition.is_none() && pods.is_empty()).then_some(()))
    })?;
    for secret in ["fathom-node-agent-ca", "fathom-node-agent-tls"] {
        kubernetes.api.delete(SECRETS, SYSTEM, secret, None)?;
    }
    kubernetes.api.delete(LEASES, SYSTEM, "fathom-operator", None)
}
