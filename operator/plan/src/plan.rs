//! The plan, and the steps that make it, in order.
//! In: [`PlanInput`]. Out: [`Planned`]. Never: arithmetic (it is in the steps and in `engine-spec`).
//! A plan leaves no choice to whoever carries it out.

use engine_spec::admission::SpeedSource;
use engine_spec::{ModelShape, Role};
use fathom_crds::InferenceClusterSpec;
use node_facts::NodeFacts;
use serde::{Deserialize, Serialize};

use crate::report::{HostCacheLimit, Planned, Report};
use crate::surroundings::Surroundings;
use crate::{admission, check, host_tier, keep, placement, revision, size};

/// Everything that a plan depends on.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Name of the object: children are named after it.
    pub name: &'a str,
    pub spec: &'a InferenceClusterSpec,
    /// Resolved by the caller: by name, or read from the model's folder.
    pub shape: &'a ModelShape,
    /// One entry a node, in any order.
    pub nodes: &'a [NodeFacts],
    /// Bytes of the checkpoint where the caller can see them; otherwise computed from the shape.
    pub weight_bytes: Option<u64>,
    /// The engine's image, resolved; absent without Kubernetes.
    pub image: Option<&'a str>,
    /// What the cluster adds to the facts; [`crate::NO_SURROUNDINGS`] without Kubernetes.
    pub surroundings: &'a Surroundings,
}

/// What is to run where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub name: String,
    /// What prefill and decode must agree on, as a short hash.
    pub revision: String,
    /// Longest prompt plus answer, resolved.
    pub context_tokens: u32,
    /// Engine replicas: prefill (or none), then decode or unified, each by index. Empty when the spec fits nowhere.
    pub replicas: Vec<ReplicaPlan>,
    /// Router replicas: not pinned, placed by whoever carries the plan out.
    pub routers: u32,
    pub queue_limit: QueueLimit,
}

/// One engine replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaPlan {
    /// `flash-prefill-0`.
    pub name: String,
    pub role: Role,
    pub index: u32,
    pub node: String,
    /// Absent where the machine shows no NUMA nodes, or the replica spans them.
    pub numa_node: Option<u32>,
    pub device: ComputeDevice,
    /// In rank order.
    pub gpus: Vec<PlannedGpu>,
    /// CPUs that the replica is bound to.
    pub cpus: Vec<u32>,
    /// Whether other replicas have the same CPUs.
    pub cpus_shared: bool,
    /// Memory request and limit: own needs, a device pool in host memory, the host tier.
    pub memory_bytes: u64,
    /// NUMA node that memory is bound to.
    pub memory_node: Option<u32>,
    /// Of one rank: all ranks hold the same KV.
    pub device_pool: DevicePool,
    /// One host copy for all ranks; 0 = no host tier.
    pub host_cache_bytes: u64,
    /// What limited the host tier when the replica was placed; absent where none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cache_limit: Option<HostCacheLimit>,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ComputeDevice {
    Cuda,
    Cpu,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedGpu {
    /// Number on its node, for people.
    pub index: u32,
    pub uuid: String,
}

/// The KV pool of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DevicePool {
    pub pages: u32,
    pub slots: u32,
    pub bytes: u64,
}

/// How much may wait at one prefill (or unified) replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueLimit {
    /// Uncached prompt tokens; absent until the speed has been measured.
    pub tokens: Option<u64>,
    /// Whether `tokens` is the user's own number.
    pub given: bool,
    pub requests: u32,
    pub time_to_first_token_ms: u64,
    pub prefill_tokens_per_second: Option<f64>,
    pub source: SpeedSource,
    /// How the limit came about, for people.
    pub derivation: String,
}

/// Makes a plan. The result has passed [`check::check`]: a plan that does not is withdrawn, and the report says why.
pub fn plan(input: &PlanInput<'_>) -> Planned {
    let mut report = Report::default();
    let context_tokens = size::context_tokens(input);
    let kept = keep::kept(input);
    report.kept = u32::try_from(kept.len()).unwrap_or(u32::MAX);
    let demands = size::demands(input, &kept, &mut report);
    let rooms = placement::rooms_for(input, &demands, &kept, &mut report);
    let placements = placement::place(&rooms, &demands, &mut report);
    let replicas = host_tier::grant(input, &placements, &kept, &mut report);
    let plan = Plan {
        name: input.name.to_owned(),
        revision: revision::revision(input.spec, input.shape, input.image),
        context_tokens,
        queue_limit: admission::queue_limit(input, &replicas),
        replicas,
        routers: u32::try_from(input.spec.router.replicas).unwrap_or(0),
    };
    check::withdraw_if_wrong(input, Planned { plan, report })
}
