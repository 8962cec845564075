//! What a pod of ours says about itself.
//! In: a pod as kept. Out: its plan entry, owner, state. Never: decisions.

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use operator_plan::Present;
use operator_render::names::{ANNOTATION_INPUTS, LABEL_OWNER_UID, LABEL_ROLE};
use operator_render::plan_entry;

/// Its plan entry, if it is an engine pod.
pub fn present(pod: &Pod) -> Option<Present> {
    let replica = plan_entry(pod)?;
    let inputs = pod.metadata.annotations.as_ref()?.get(ANNOTATION_INPUTS).cloned().unwrap_or_default();
    // A ready engine has touched its pools; until then the node's memory still counts them as free.
    let untouched_bytes = if ready(pod) { 0 } else { replica.memory_bytes };
    Some(Present { replica, inputs, holds: has_started(pod), untouched_bytes })
}

/// Whether a container of it runs or has ever run: its node and devices are settled.
fn has_started(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().any(|container| {
        let begun = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
        container.restart_count > 0 || container.state.as_ref().is_some_and(begun)
    })
}

pub fn owner(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(LABEL_OWNER_UID).map(String::as_str)
}

pub fn role(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(LABEL_ROLE).map(String::as_str)
}

/// Being deleted.
pub fn ending(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Its containers have ended for good: it holds nothing any more.
pub fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

pub fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Where it can be asked, once a container runs.
pub fn address(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    let runs = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
        c.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let running = status.container_statuses.iter().flatten().any(runs);
    status.pod_ip.as_deref().filter(|ip| running && !ip.is_empty())
}

/// Why a kubelet refused the pod for good: the reason and its sentence.
pub fn refused_by_kubelet(pod: &Pod) -> Option<(&str, &str)> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.as_deref()?;
    let refused =
        matches!(reason, "TopologyAffinityError" | "UnexpectedAdmissionError") || reason.starts_with("OutOf");
    let failed = status.phase.as_deref() == Some("Failed");
    (failed && refused).then_some((reason, status.message.as_deref().unwrap_or_default()))
}
