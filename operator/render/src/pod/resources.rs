//! CPUs, memory and GPUs that an engine container asks for.
//! In: a plan entry, who enforces it. Out: requests and limits. Memory is always both: what the plan counted on is kept,
//! and an engine that grows beyond it ends alone.

use std::collections::BTreeMap;

use engine_spec::Role;
use fathom_crds::InferenceClusterSpec;
use k8s_openapi::api::core::v1::{ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use operator_plan::{Mode, ReplicaPlan};

use crate::desired::RenderInput;
use crate::names;

type Amounts = BTreeMap<String, Quantity>;

/// Requests and limits of one engine.
pub(crate) fn resources(input: &RenderInput<'_>, entry: &ReplicaPlan) -> ResourceRequirements {
    let mode = &input.enforcement.mode;
    // Extended resources need a limit, and the request is the same.
    let both =
        [("memory", entry.memory_bytes.to_string())].into_iter().chain(device_plugin_gpus(mode, entry));
    let cpus = |amount: String| ("cpu", amount);
    match mode {
        Mode::Kubelet { .. } => {
            // Only equal requests and limits in whole CPUs get CPUs and a NUMA node of their own.
            let all = amounts(both.chain([cpus(whole_cpus(input.spec, entry).to_string())]));
            ResourceRequirements { requests: Some(all.clone()), limits: Some(all), claims: None }
        }
        Mode::Dra { .. } | Mode::Soft { .. } | Mode::Unmanaged => {
            let claim = ResourceClaim { name: names::CLAIM.to_owned(), request: None };
            let limits = amounts(both.clone());
            ResourceRequirements {
                requests: Some(amounts(both.chain([cpus(shared_cpus(input.spec, entry))]))),
                limits: Some(limits),
                claims: has_claim(mode, entry).then(|| vec![claim]),
            }
        }
    }
}

/// Whether the pod's GPUs come by a ResourceClaim.
pub(crate) fn has_claim(mode: &Mode, entry: &ReplicaPlan) -> bool {
    matches!(mode, Mode::Dra { .. }) && !entry.gpus.is_empty()
}

fn device_plugin_gpus<'a>(mode: &'a Mode, entry: &ReplicaPlan) -> Option<(&'a str, String)> {
    let (Mode::Kubelet { gpu_resource } | Mode::Soft { gpu_resource }) = mode else { return None };
    let resource = gpu_resource.as_deref().filter(|_| !entry.gpus.is_empty())?;
    Some((resource, entry.gpus.len().to_string()))
}

pub(crate) fn amounts<'a>(given: impl IntoIterator<Item = (&'a str, String)>) -> Amounts {
    given.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).collect()
}

/// Whole CPUs of a pod that the kubelet pins.
pub(crate) fn whole_cpus(spec: &InferenceClusterSpec, entry: &ReplicaPlan) -> u32 {
    given_cpus(spec, entry).unwrap_or(u32::try_from(entry.gpus.len()).unwrap_or(u32::MAX).max(1))
}

/// Without a limit: an engine binds itself to its CPUs, and a limit would only throttle it there.
fn shared_cpus(spec: &InferenceClusterSpec, entry: &ReplicaPlan) -> String {
    match (given_cpus(spec, entry), entry.gpus.len()) {
        (Some(cpus), _) => cpus.to_string(),
        (None, 0) => "100m".to_owned(),
        (None, gpus) => gpus.to_string(),
    }
}

/// The user's number.
fn given_cpus(spec: &InferenceClusterSpec, entry: &ReplicaPlan) -> Option<u32> {
    let role = if entry.role == Role::Prefill { spec.prefill.as_ref()? } else { &spec.decode };
    u32::try_from(role.cpus?).ok().filter(|cpus| *cpus > 0)
}
