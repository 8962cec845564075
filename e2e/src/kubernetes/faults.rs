//! Things that go wrong on purpose.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::api::{DEPLOYMENTS, NODES, PODS, Patch};
use super::{Kubernetes, SYSTEM, environment, objects};

/// Pods of the operator.
pub const OPERATOR: &str = "app.kubernetes.io/name=fathom,app.kubernetes.io/component=operator";
/// Pods of the node agent.
pub const AGENT: &str = "app.kubernetes.io/name=fathom,app.kubernetes.io/component=node-agent";

/// Time for a pod to be replaced.
const REPLACED: Duration = Duration::from_secs(60);

/// Deletes every pod of `selector` in Fathom's namespace at once, without a grace period.
///
/// # Errors
/// When there is none.
pub fn kill(kubernetes: &Kubernetes, selector: &str) -> anyhow::Result<()> {
    let pods = kubernetes.api.list(PODS, SYSTEM, selector)?;
    ensure!(!pods.is_empty(), "no pod with {selector}");
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().context("a pod without name")?;
        kubernetes.api.delete(PODS, SYSTEM, name, Some(0))?;
    }
    Ok(())
}

/// Waits until `count` pods of `selector` run that are none of `before`, and are ready.
///
/// # Errors
/// When they do not come.
pub fn wait_replaced(kubernetes: &Kubernetes, selector: &str, before: &[String]) -> anyhow::Result<()> {
    kubernetes.wait(&format!("a new pod of {selector}"), REPLACED, &[], || {
        let pods = kubernetes.api.list(PODS, SYSTEM, selector)?;
        let states: Vec<_> = pods.iter().map(objects::pod_state).collect();
        let fresh = |pod: &super::namespace::PodState| pod.ready && !before.contains(&pod.uid);
        Ok((!states.is_empty() && states.iter().all(fresh)).then_some(()))
    })
}

/// Uids of the pods of `selector`.
///
/// # Errors
/// When the list is refused.
pub fn uids(kubernetes: &Kubernetes, selector: &str) -> anyhow::Result<Vec<String>> {
    Ok(kubernetes.api.list(PODS, SYSTEM, selector)?.iter().map(objects::uid).collect())
}

/// Ends the API server with SIGKILL and starts it again with the same arguments: every watch breaks.
///
/// # Errors
/// When it does not come back.
pub fn restart_api_server(kubernetes: &Kubernetes) -> anyhow::Result<()> {
    environment::dev(&["restart", "apiserver"])?;
    kubernetes
        .wait("the API server", REPLACED, &[], || Ok((kubernetes.api.text("/readyz")? == "ok").then_some(())))
}

/// Ends a program of the cluster with SIGKILL, such as `kubelet-node1`; [`start`] brings it back.
///
/// # Errors
/// When there is no such program.
pub fn stop(program: &str) -> anyhow::Result<()> {
    environment::dev(&["stop", program])
}

/// Starts a program that was stopped.
///
/// # Errors
/// When it does not start.
pub fn start(program: &str) -> anyhow::Result<()> {
    environment::dev(&["start", program])
}

/// Marks a node unschedulable, or schedulable again.
///
/// # Errors
/// When there is no such node.
pub fn cordon(kubernetes: &Kubernetes, node: &str, on: bool) -> anyhow::Result<()> {
    let patch = json!({"spec": {"unschedulable": on}});
    kubernetes.api.patch(NODES, "", node, Patch::Merge, &patch).map(drop)
}

/// Gives the operator's container an environment variable, or takes it away, and waits for the rollout's first pod.
///
/// # Errors
/// When the patch is refused.
pub fn set_operator(
    kubernetes: &Kubernetes,
    image: Option<&str>,
    env: &[(&str, &str)],
) -> anyhow::Result<()> {
    let deployment = kubernetes.api.get(DEPLOYMENTS, SYSTEM, "fathom-operator")?;
    let mut container = deployment["spec"]["template"]["spec"]["containers"][0].clone();
    let variables = container["env"].as_array().cloned().unwrap_or_default();
    let mut kept: Vec<Value> =
        variables.into_iter().filter(|v| !env.iter().any(|(name, _)| v["name"] == *name)).collect();
    kept.extend(
        env.iter().filter(|(_, value)| !value.is_empty()).map(|(n, v)| json!({"name": n, "value": v})),
    );
    container["env"] = kept.into();
    if let Some(image) = image {
        container["image"] = image.into();
    }
    let patch = json!([{"op": "replace", "path": "/spec/template/spec/containers/0", "value": container}]);
    kubernetes.api.patch(DEPLOYMENTS, SYSTEM, "fathom-operator", Patch::Json, &patch).map(drop)
}
