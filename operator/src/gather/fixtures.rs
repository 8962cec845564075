//! Objects for tests: as short as they can be.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use operator_plan::{ComputeDevice, DevicePool, PlannedGpu, ReplicaPlan};
use serde_json::json;

use crate::live::pod::LivePod;

pub(crate) fn replica(name: &str, node: &str) -> ReplicaPlan {
    let index = name.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    serde_json::from_value(json!({
        "name": name, "role": if name.contains("prefill") { "prefill" } else { "decode" }, "index": index,
        "node": node, "numaNode": 0, "device": ComputeDevice::Cpu, "gpus": Vec::<PlannedGpu>::new(),
        "cpus": [0, 1], "cpusShared": false, "memoryBytes": 1 << 30, "memoryNode": 0,
        "devicePool": DevicePool { pages: 1, slots: 1, bytes: 1 << 20 }, "hostCacheBytes": 0,
    }))
    .expect("a replica's plan")
}

/// A pod as its watch shows it.
pub(crate) fn seen(pod: &Pod) -> Arc<LivePod> {
    Arc::new(pod.clone().into())
}

/// An engine pod of the object with this uid, as it is created.
pub(crate) fn engine_pod(replica_name: &str, owner: &str, node: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{replica_name}-abcde"), "namespace": "ns", "uid": format!("pod-{replica_name}"),
            "labels": {"fathom.dev/owner-uid": owner, "fathom.dev/role": "prefill"},
            "annotations": {
                "fathom.dev/plan": serde_json::to_string(&replica(replica_name, node)).expect("JSON"),
                "fathom.dev/inputs": "inputs",
            },
        },
    }))
    .expect("a pod")
}

/// Lets its container run.
pub(crate) fn run(pod: &mut Pod, ip: &str, restarts: i32, ready: bool) {
    let status: PodStatus = serde_json::from_value(json!({
        "phase": "Running", "podIP": ip,
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        "containerStatuses": [{
            "name": "engine", "image": "i", "imageID": "i", "restartCount": restarts, "ready": ready,
            "state": {"running": {}},
        }],
    }))
    .expect("a status");
    pod.status = Some(status);
}

/// Lets a kubelet refuse it.
pub(crate) fn refuse(pod: &mut Pod, reason: &str) {
    let status = json!({"phase": "Failed", "reason": reason, "message": "cannot be allocated"});
    pod.status = Some(serde_json::from_value(status).expect("a status"));
}
