//! What of a replica's placement was found to hold.
//! In: claims, the kubelet's allocations, the engine's own report. Out: one part for each resource that the plan names.
//! Never: a guess. Whoever could say and did not is Unknown.

use fathom_crds::inference_cluster::{AchievedPart, AchievedState, AchievedStatus};
use node_facts::{ContainerAllocation, NodeFacts};
use operator_plan::{Mode, ReplicaPlan, cpu_list};
use serde_json::Value;

use super::running::claim_of;
use super::{Effect, Observed};
use crate::live::pod::LivePod;

/// What holds of one replica whose pod runs.
pub(super) fn achieved(
    observed: &Observed<'_>,
    effect: &Effect<'_>,
    pod: &LivePod,
    replica: &ReplicaPlan,
) -> AchievedStatus {
    let seen = Seen::of(observed, pod, replica);
    AchievedStatus {
        gpus: (!replica.gpus.is_empty()).then(|| gpus(observed, effect, pod, replica, &seen)),
        cpus: (!replica.cpus.is_empty()).then(|| cpus(effect, replica, &seen)),
        memory: replica.memory_node.map(|_| memory(effect, &seen)),
    }
}

/// What others say about one pod.
struct Seen<'a> {
    /// The engine's `/server_info`.
    engine: Option<&'a Value>,
    /// The kubelet's allocation; its absence may mean that nothing is the pod's alone.
    allocation: Option<&'a [ContainerAllocation]>,
}

impl<'a> Seen<'a> {
    fn of(observed: &Observed<'a>, pod: &LivePod, replica: &ReplicaPlan) -> Self {
        let node = observed.gathered.facts.iter().find(|facts| facts.node == replica.node);
        let kubelet = |facts: &'a NodeFacts| facts.kubelet.value();
        let allocation =
            node.and_then(kubelet).and_then(|kubelet| kubelet.allocation(&pod.key.namespace, pod.name()));
        Self {
            engine: observed.gathered.engines.get(pod.name()),
            allocation: allocation.map(|allocation| allocation.containers.as_slice()),
        }
    }

    /// Ids of the devices that a device plugin gave, with the NUMA nodes it named.
    fn devices(&self) -> Vec<(&'a str, &'a [u32])> {
        let containers = self.allocation.into_iter().flatten();
        let held = containers.flat_map(|container| &container.devices);
        held.flat_map(|held| held.ids.iter().map(|id| (id.as_str(), held.numa.as_slice()))).collect()
    }

    /// CPUs that are the pod's alone.
    fn own_cpus(&self) -> Vec<u32> {
        let containers = self.allocation.into_iter().flatten();
        let mut cpus: Vec<u32> = containers.flat_map(|container| container.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        cpus
    }
}

fn gpus(
    observed: &Observed<'_>,
    effect: &Effect<'_>,
    pod: &LivePod,
    replica: &ReplicaPlan,
    seen: &Seen<'_>,
) -> AchievedPart {
    match &effect.enforcement.mode {
        Mode::Dra { .. } => claimed(observed, pod, replica),
        Mode::Kubelet { .. } => given_by_kubelet(replica, seen),
        Mode::Soft { .. } | Mode::Unmanaged => match seen.devices().as_slice() {
            [] => part(AchievedState::NotAsked, "in this mode nobody assigns GPUs to the pod"),
            devices => as_planned(replica, devices),
        },
    }
}

/// The claim's selector names exactly the planned GPUs: allocated in full, it holds them.
fn claimed(observed: &Observed<'_>, pod: &LivePod, replica: &ReplicaPlan) -> AchievedPart {
    let Some(claim) = claim_of(observed, pod) else {
        return part(AchievedState::Unknown, "the pod's ResourceClaim is not there");
    };
    match (claim.devices().len(), replica.gpus.len()) {
        (0, _) => part(AchievedState::Unknown, "the pod's ResourceClaim is not allocated yet"),
        (has, wanted) if has == wanted => achieved_part(),
        (has, wanted) => part(AchievedState::Refused, format!("{has} of {wanted} GPUs are allocated")),
    }
}

/// The kubelet picks the devices; what was planned is that they share a NUMA node.
fn given_by_kubelet(replica: &ReplicaPlan, seen: &Seen<'_>) -> AchievedPart {
    let devices = seen.devices();
    if devices.is_empty() {
        return part(
            AchievedState::Unknown,
            "the node's agent has not reported what the kubelet gave the pod",
        );
    }
    let mut nodes: Vec<u32> = devices.iter().flat_map(|(_, numa)| numa.iter().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    match (nodes.as_slice(), replica.numa_node) {
        ([one], Some(planned)) if *one != planned => AchievedPart {
            state: AchievedState::Achieved,
            message: Some(format!("all on NUMA node {one}, where the kubelet had room; planned {planned}")),
        },
        ([_], _) => achieved_part(),
        ([], _) => as_planned(replica, &devices),
        (several, _) => part(
            AchievedState::Refused,
            format!("the kubelet gave GPUs of the NUMA nodes {}", cpu_list(several)),
        ),
    }
}

fn as_planned(replica: &ReplicaPlan, devices: &[(&str, &[u32])]) -> AchievedPart {
    let mut given: Vec<&str> = devices.iter().map(|(id, _)| *id).collect();
    let mut planned: Vec<&str> = replica.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    given.sort_unstable();
    planned.sort_unstable();
    if given == planned {
        achieved_part()
    } else {
        part(AchievedState::Refused, format!("the kubelet gave other GPUs: {}", given.join(", ")))
    }
}

fn cpus(effect: &Effect<'_>, replica: &ReplicaPlan, seen: &Seen<'_>) -> AchievedPart {
    let own = seen.own_cpus();
    match effect.enforcement.mode {
        Mode::Unmanaged => not_bound(),
        Mode::Kubelet { .. } if own.is_empty() => {
            part(AchievedState::Unknown, "the kubelet has not reported CPUs that are the pod's alone")
        }
        Mode::Kubelet { .. } => {
            let inside = replica.cpus_shared || own.iter().all(|cpu| replica.cpus.contains(cpu));
            let message = (!inside).then(|| format!("the kubelet gave CPUs {}", cpu_list(&own)));
            AchievedPart { state: AchievedState::Achieved, message }
        }
        Mode::Dra { .. } | Mode::Soft { .. } => reported(seen, "cpus"),
    }
}

fn memory(effect: &Effect<'_>, seen: &Seen<'_>) -> AchievedPart {
    match effect.enforcement.mode {
        Mode::Unmanaged => not_bound(),
        Mode::Dra { .. } | Mode::Kubelet { .. } | Mode::Soft { .. } => {
            let part = reported(seen, "memory");
            match part.state {
                AchievedState::NotAsked => {
                    AchievedPart { message: Some(effect.enforcement.memory_because.clone()), ..part }
                }
                AchievedState::Achieved | AchievedState::Refused | AchievedState::Unknown => part,
            }
        }
    }
}

/// What the engine says of its own binding: `{"state": "refused", "error": "..."}`.
fn reported(seen: &Seen<'_>, resource: &str) -> AchievedPart {
    let Some(report) = seen.engine.map(|info| &info["binding"][resource]) else {
        return part(AchievedState::Unknown, "the engine has not answered yet");
    };
    let error = report["error"].as_str().unwrap_or_default();
    match report["state"].as_str() {
        Some("achieved") => achieved_part(),
        Some("refused") => part(AchievedState::Refused, error),
        Some("notAsked") => part(AchievedState::NotAsked, error),
        _ => part(AchievedState::Unknown, error),
    }
}

fn not_bound() -> AchievedPart {
    part(AchievedState::NotAsked, "in this mode nothing is bound")
}

fn achieved_part() -> AchievedPart {
    AchievedPart { state: AchievedState::Achieved, message: None }
}

fn part(state: AchievedState, message: impl Into<String>) -> AchievedPart {
    let message = message.into();
    AchievedPart { state, message: (!message.is_empty()).then_some(message) }
}
