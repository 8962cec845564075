//! Who enforces a plan: the scheduler through a claim, the kubelet, the engine itself, or nobody.
//! In: the spec and what the cluster is able to do. Out: one [`Enforcement`], with the reason. Never: I/O.
//! Auto takes the first that the cluster allows: DRA names GPUs exactly and without a race; the kubelet aligns GPUs with
//! CPUs but chooses them itself; the engine can bind CPUs and memory, and no GPU.

use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster::{MemoryBinding, PlacementMode};
use serde::{Deserialize, Serialize};

/// What the cluster offers for pinning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Abilities {
    /// `resource.k8s.io/v1` is served and slices of a GPU driver exist.
    pub claims: Option<ClaimDriver>,
    /// Nodes whose kubelet aligns: topology policy `single-numa-node` or `restricted`, and the static CPU manager.
    pub aligning_nodes: Vec<String>,
    /// The extended resource of GPUs that nodes offer, such as `nvidia.com/gpu`.
    pub gpu_resource: Option<String>,
    /// The namespace's pod-security level when it forbids adding CAP_SYS_NICE (`baseline`, `restricted`); `None`: it may
    /// be added.
    pub forbids_memory_binding: Option<String>,
}

/// A DRA driver of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimDriver {
    /// `gpu.nvidia.com`.
    pub driver: String,
    /// Usually of the same name.
    pub device_class: String,
}

/// Who makes the plan true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    pub mode: Mode,
    /// Why this mode, for people.
    pub because: String,
    /// Whether engine pods ask for CAP_SYS_NICE, without which the default seccomp profile refuses to bind memory.
    pub bind_memory: bool,
    /// Why memory is, or is not, bound.
    pub memory_because: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// A ResourceClaim that names the GPUs.
    #[serde(rename_all = "camelCase")]
    Dra { driver: String, device_class: String },
    /// Device plugin and topology manager; the resource is absent where no replica has GPUs.
    #[serde(rename_all = "camelCase")]
    Kubelet { gpu_resource: Option<String> },
    /// The engine binds itself. Its GPUs, if it has any, come from the device plugin as it chooses.
    #[serde(rename_all = "camelCase")]
    Soft { gpu_resource: Option<String> },
    /// Only the node is chosen.
    Unmanaged,
}

impl Mode {
    /// As `spec.placement.mode` spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Dra { .. } => "DRA",
            Mode::Kubelet { .. } => "Kubelet",
            Mode::Soft { .. } => "Soft",
            Mode::Unmanaged => "Unmanaged",
        }
    }
}

/// Chooses; an explicit mode that the cluster does not offer is refused.
///
/// # Errors
/// A sentence: what the cluster lacks for the mode asked for.
pub fn enforcement(spec: &InferenceClusterSpec, abilities: &Abilities) -> Result<Enforcement, String> {
    let (mode, because) = mode(spec, abilities)?;
    let (bind_memory, memory_because) = memory(spec, abilities, &mode)?;
    Ok(Enforcement { mode, because, bind_memory, memory_because })
}

fn mode(spec: &InferenceClusterSpec, abilities: &Abilities) -> Result<(Mode, String), String> {
    let gpus = spec.decode.gpus > 0
        || (spec.prefill_replicas() > 0 && spec.prefill.as_ref().is_some_and(|p| p.gpus > 0));
    let gpu_resource = abilities.gpu_resource.clone().filter(|_| gpus);
    let asked = || "placement.mode asks for it".to_owned();
    match spec.placement.mode {
        PlacementMode::Auto => Ok(auto(gpus, abilities)),
        PlacementMode::DRA if !gpus => {
            Ok((Mode::Soft { gpu_resource: None }, "no replica has GPUs to claim, so the engine binds itself".to_owned()))
        }
        PlacementMode::DRA => match &abilities.claims {
            Some(claims) => Ok((dra(claims), asked())),
            None => Err("placement.mode is DRA, and no ResourceSlice of a GPU driver exists: install a DRA driver for \
                         GPUs, or use Auto"
                .to_owned()),
        },
        PlacementMode::Kubelet if gpus && gpu_resource.is_none() => {
            Err("placement.mode is Kubelet, and no node offers GPUs as an extended resource: install a device plugin, \
                 or use Auto"
                .to_owned())
        }
        PlacementMode::Kubelet if abilities.aligning_nodes.is_empty() => {
            Err("placement.mode is Kubelet, and no node agent reports a kubelet with topologyManagerPolicy \
                 single-numa-node or restricted and cpuManagerPolicy static: set them, or use Soft"
                .to_owned())
        }
        PlacementMode::Kubelet => Ok((Mode::Kubelet { gpu_resource }, asked())),
        PlacementMode::Soft => Ok((Mode::Soft { gpu_resource }, asked())),
        PlacementMode::Unmanaged => Ok((Mode::Unmanaged, asked())),
    }
}

fn auto(gpus: bool, abilities: &Abilities) -> (Mode, String) {
    if !gpus {
        let because = "Auto: no replica has GPUs, so the engine binds itself to its CPUs";
        return (Mode::Soft { gpu_resource: None }, because.to_owned());
    }
    if let Some(claims) = &abilities.claims {
        return (dra(claims), format!("Auto: slices of the DRA driver {} exist", claims.driver));
    }
    let gpu_resource = abilities.gpu_resource.clone();
    match &gpu_resource {
        Some(resource) if !abilities.aligning_nodes.is_empty() => {
            let because =
                format!("Auto: no DRA driver; nodes offer {resource} and their kubelets align NUMA nodes");
            (Mode::Kubelet { gpu_resource }, because)
        }
        Some(resource) => {
            let because =
                format!("Auto: no DRA driver; nodes offer {resource}, and no kubelet aligns NUMA nodes");
            (Mode::Soft { gpu_resource }, because)
        }
        None => {
            let because =
                "Auto: neither a DRA driver nor a device plugin offers GPUs; the engine binds itself";
            (Mode::Soft { gpu_resource }, because.to_owned())
        }
    }
}

fn dra(claims: &ClaimDriver) -> Mode {
    Mode::Dra { driver: claims.driver.clone(), device_class: claims.device_class.clone() }
}

fn memory(spec: &InferenceClusterSpec, abilities: &Abilities, mode: &Mode) -> Result<(bool, String), String> {
    let forbidden = abilities.forbids_memory_binding.as_ref();
    match (mode, spec.placement.memory_binding, forbidden) {
        (Mode::Unmanaged, ..) => Ok((false, "Unmanaged binds nothing".to_owned())),
        (Mode::Kubelet { .. }, ..) => Ok((false, "the kubelet's memory manager decides".to_owned())),
        (_, MemoryBinding::Off, _) => Ok((false, "placement.memoryBinding is Off".to_owned())),
        (_, MemoryBinding::Required, Some(level)) => Err(format!(
            "placement.memoryBinding is Required, which needs CAP_SYS_NICE, and the namespace enforces pod security \
             level {level}, which forbids it: label the namespace pod-security.kubernetes.io/enforce=privileged, or \
             set memoryBinding to Auto"
        )),
        (_, MemoryBinding::Auto, Some(level)) => Ok((
            false,
            format!(
                "the namespace enforces pod security level {level}, which forbids CAP_SYS_NICE: memory follows the CPUs by first touch"
            ),
        )),
        (_, MemoryBinding::Required | MemoryBinding::Auto, None) => {
            Ok((true, "the namespace allows CAP_SYS_NICE".to_owned()))
        }
    }
}
