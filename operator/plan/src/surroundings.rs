//! What a cluster adds to the facts: nodes as Kubernetes sees them, what others hold, what of this object runs already.
//! In: filled by `gather` from watches. Out: read by the steps of the plan. Never: I/O, times (ages are durations).

use std::collections::BTreeMap;

use fathom_crds::inference_cluster::PodTemplateSpec;
use serde::{Deserialize, Serialize};

use crate::plan::ReplicaPlan;

/// Facts older than this place nothing new; what runs stays.
pub const STALE_AFTER_MS: u64 = 60_000;

/// Everything about the cluster that a plan looks at besides facts. The default is a machine without Kubernetes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// Nodes by name; `None` without Kubernetes: then every node with facts may be planned.
    pub nodes: Option<BTreeMap<String, NodeState>>,
    /// What replicas of other objects and strangers hold.
    pub taken: Vec<Taken>,
    /// Replicas of this object that run.
    pub present: Vec<Present>,
}

/// A node as Kubernetes sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// Condition Ready.
    pub ready: bool,
    /// Age of its facts; `None`: no agent has reported.
    pub facts_age_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// Part of a node that is not ours to plan with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Who has it: `flash-decode-0 of namespace b`, `claim x of namespace y`.
    pub by: String,
    pub node: String,
    pub numa_node: Option<u32>,
    /// UUIDs.
    pub gpus: Vec<String>,
    /// CPUs that are theirs alone.
    pub cpus: Vec<u32>,
    /// Promised bytes of host memory.
    pub memory_bytes: u64,
}

/// A replica that runs: its plan entry as its pod carries it.
#[derive(Debug, Clone, PartialEq)]
pub struct Present {
    pub replica: ReplicaPlan,
    /// [`crate::placement_inputs`] of the spec that placed it.
    pub inputs: String,
}

/// What of a pod template decides about nodes.
pub(crate) fn admits(node: &NodeState, template: &PodTemplateSpec) -> Result<(), String> {
    let _ = (node, template);
    Ok(())
}

/// A replica as a pod's annotation carries it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanAnnotation(pub ReplicaPlan);
