//! What Fathom reports back. `fathom explain` and `fathom status` read only this.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What runs, what is planned, and why.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InferenceClusterStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Planned, PlacementSatisfied, Progressing, RolesReady, Routable, Degraded, Ready.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The figures of the printed columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<SummaryStatus>,
    /// Where each engine pod is planned, and what was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The host tier of each engine pod.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_cache: Vec<HostCacheStatus>,
    /// The queue limit, with what it was derived from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_limit: Option<QueueLimitStatus>,
    /// The address for clients inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The revision that is being brought about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// The last revision that was Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good_revision: Option<String>,
    /// The ControllerRevision that holds the spec and image being brought about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_inputs: Option<String>,
    /// The ControllerRevision that holds the spec and image that were Ready last: what `kubectl fathom undo` returns to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good_inputs: Option<String>,
    /// Who enforces the placement, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementStatus>,
}

/// Who enforces the placement.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementStatus {
    /// DRA, Kubelet, Soft or Unmanaged.
    pub mode: String,
    /// Why this mode.
    pub because: String,
    /// Why memory is, or is not, bound.
    pub memory: String,
}

/// Ready and wanted pods as `1/1`, the placement mode in effect and the granted host tier.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SummaryStatus {
    /// Ready and wanted prefill pods.
    pub prefill: String,
    /// Ready and wanted decode pods.
    pub decode: String,
    /// Ready and wanted router pods.
    pub router: String,
    /// The placement mode in effect.
    pub placement: String,
    /// The granted host tier over all pods.
    pub host_cache: String,
}

/// The plan in effect.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStatus {
    /// The engine pods.
    #[schemars(length(max = 1024))]
    pub replicas: Vec<ReplicaStatus>,
    /// Places that could not take a pod, and why.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedStatus>,
    /// How many places were rejected, with those that are not listed.
    pub rejected_total: i32,
    /// What a reader should know besides.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One engine pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    /// Name of the pod without its hash: `flash-prefill-0`.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Its NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i32>,
    /// UUIDs of its GPUs.
    #[schemars(length(max = 64))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Its CPUs, as a Linux CPU list.
    pub cpus: String,
    /// Its memory request and limit.
    pub memory: String,
    /// Its ResourceClaim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// What of the placement was found to hold; absent before the pod runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub achieved: Option<AchievedStatus>,
}

/// What of a placement was found to hold, for each resource.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AchievedStatus {
    /// The GPUs, as the claim or the kubelet says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<AchievedPart>,
    /// The CPUs, as the engine and the kernel say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<AchievedPart>,
    /// The memory's NUMA node, as the engine says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<AchievedPart>,
}

/// Whether one resource is where it was planned.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AchievedPart {
    /// Achieved, Refused, Unknown or NotAsked.
    pub state: AchievedState,
    /// The error, or what could not be found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether a resource is where it was planned.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum AchievedState {
    /// It is where it was planned.
    Achieved,
    /// It is not; the message says why.
    Refused,
    /// Nobody could say yet.
    #[default]
    Unknown,
    /// The plan does not bind it.
    NotAsked,
}

/// A place that could not take a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectedStatus {
    /// The node.
    pub node: String,
    /// The NUMA node, where one was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i32>,
    /// The roles that do not fit there.
    #[schemars(length(max = 4))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// A CamelCase word.
    pub reason: String,
    /// A sentence: `2 of 4 GPUs free`.
    pub message: String,
}

/// The host tier of one engine pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostCacheStatus {
    /// The pod, as in the plan.
    pub replica: String,
    /// What was asked for this pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// What it was granted.
    pub granted: String,
    /// Granted bytes per byte of the device pool of one rank.
    pub ratio: f64,
    /// What limited it: AsAsked, NumaHeadroom, CgroupLimit, BelowDevicePool, OnCpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// The arithmetic.
    pub message: String,
}

/// The queue limit of one prefill replica.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueLimitStatus {
    /// Uncached prompt tokens that may wait; absent until the speed is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
    /// Requests that may wait.
    pub requests: i32,
    /// What the limit was derived from.
    pub derivation: String,
}

/// Conditions as the API server merges them: a map keyed by type.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 316},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                "message": {"type": "string", "maxLength": 32768},
            },
        },
    })
}
