//! Condition types and reasons: the only place where these strings exist.
//! Never: messages (they come from the report of the step that speaks).

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a condition of an `InferenceCluster` speaks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The object is understood and its name is free.
    Accepted,
    /// There is a place for every replica.
    Planned,
    /// GPUs, CPUs and memory are where the plan says.
    PlacementSatisfied,
    /// A change is on its way.
    Progressing,
    /// Every role has its ready pods.
    RolesReady,
    /// A request finds its way through router, prefill and decode.
    Routable,
    /// Something works less well than planned.
    Degraded,
    /// The current revision answered a real request.
    Ready,
}

impl ConditionType {
    pub const ALL: [ConditionType; 8] = [
        ConditionType::Accepted,
        ConditionType::Planned,
        ConditionType::PlacementSatisfied,
        ConditionType::Progressing,
        ConditionType::RolesReady,
        ConditionType::Routable,
        ConditionType::Degraded,
        ConditionType::Ready,
    ];
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a condition is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Nothing to complain about.
    AsExpected,
    /// The stored object does not decode.
    DecodeFailed,
    /// A child's name belongs to somebody else's object.
    NameTaken,
    /// Neither `shape` nor a published name says the model's dimensions.
    UnknownShape,
    /// The way to the model's files is not supported yet.
    SourceNotSupported,
    /// The engine is not supported yet.
    RuntimeNotSupported,
    /// No node agent has reported.
    NoFacts,
    /// A node agent has not reported for too long.
    FactsStale,
    /// The spec fits nowhere; the plan's report says what is missing where.
    NotFeasible,
    /// Admission refused a pod.
    PodRefused,
    /// A ResourceClaim is not allocated yet.
    ClaimPending,
    /// The kubelet refused the topology.
    TopologyRejected,
    /// A GPU is gone.
    GpuLost,
    /// The checkpoint is not the model that was planned.
    ModelMismatch,
    /// The cluster drops image volumes.
    ImageVolumeUnsupported,
    /// A container keeps ending.
    CrashLoop,
    /// No request came through.
    NotRoutable,
    /// `rollout.mode` is Plan.
    PlanOnly,
    /// All roles have zero replicas.
    ScaledToZero,
    /// The children are being made, replaced or removed.
    Applying,
    /// A call to the API server failed; it is tried again.
    ApplyFailed,
    /// The cluster does not offer the placement mode that was asked for.
    ModeNotOffered,
    /// Pods are not ready yet.
    PodsNotReady,
    /// The scheduler finds no node for a pod.
    Unschedulable,
    /// A container's image cannot be pulled.
    ImagePull,
    /// A container cannot be created.
    ContainerRefused,
    /// A container was ended because it used more memory than it may.
    OutOfMemory,
    /// A resource is not where it was planned.
    NotAchieved,
    /// Not known yet: nobody has said where the resources are.
    NotKnownYet,
    /// The current pods have not answered a request yet.
    NotAsked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
