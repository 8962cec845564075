//! Objects as tests read and make them. Pure.

use anyhow::Context;
use serde_json::Value;

use super::namespace::{Condition, PodState};
use crate::cluster::root;

/// `crds/examples/needle.yaml` under another name, after `edit` changed its `spec`.
///
/// # Errors
/// When the example cannot be read.
pub fn needle(name: &str, edit: impl FnOnce(&mut Value)) -> anyhow::Result<Value> {
    example("needle", name, edit)
}

/// An example of `crds/examples` under another name, after `edit` changed its `spec`.
///
/// # Errors
/// When the example cannot be read.
pub fn example(file: &str, name: &str, edit: impl FnOnce(&mut Value)) -> anyhow::Result<Value> {
    let path = root().join(format!("crds/examples/{file}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut object: Value = serde_saphyr::from_str(&text)?;
    object["metadata"]["name"] = name.into();
    edit(object.get_mut("spec").context("the example has no spec")?);
    Ok(object)
}

/// The uid, or nothing.
pub fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// A condition by its type.
pub fn condition(object: &Value, kind: &str) -> Option<Condition> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some(Condition {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
        observed_generation: found["observedGeneration"].as_i64().unwrap_or_default(),
    })
}

/// Whether an owner reference names `uid`.
pub fn is_owned_by(object: &Value, uid: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["uid"] == uid)
}

/// `needle-prefill-0` of `needle-prefill-0-ab12c`.
pub fn replica_of(pod: &str) -> String {
    pod.rsplit_once('-').map_or(pod, |(replica, _)| replica).to_owned()
}

pub(super) fn pod_state(pod: &Value) -> PodState {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = &pod["metadata"]["labels"];
    let conditions = pod["status"]["conditions"].as_array();
    let containers = pod["status"]["containerStatuses"].as_array();
    PodState {
        name: text(&pod["metadata"]["name"]),
        uid: uid(pod),
        restarts: containers.into_iter().flatten().filter_map(|c| c["restartCount"].as_u64()).sum(),
        ready: conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True"),
        ending: !pod["metadata"]["deletionTimestamp"].is_null(),
        revision: text(&labels["fathom.dev/revision"]),
        role: text(&labels["fathom.dev/role"]),
        node: text(&pod["spec"]["nodeName"]),
        address: text(&pod["status"]["podIP"]),
    }
}
