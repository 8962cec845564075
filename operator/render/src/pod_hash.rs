//! What makes a pod another pod. A live pod with another hash is replaced; one with the same hash stays.
//! In: inputs of rendering. Out: five hexadecimal digits. Never: rendered objects, or whole types of other crates: a
//! field that a new version adds to a plan must not restart what runs. Left out on purpose: replica counts, admission,
//! router, the number of a GPU on its node (it changes over a reboot; the uuid does not).

use engine_spec::Role;
use fathom_crds::inference_cluster::PodTemplateSpec;
use operator_plan::{ComputeDevice, Mode, ReplicaPlan, placement_inputs};
use serde::Serialize;

use crate::desired::RenderInput;
use crate::digest;

/// Digits of the hash: with one replaced pod a minute, two neighbours are alike once in two years, and then a restart
/// is missed.
const DIGITS: usize = 5;

#[derive(Serialize)]
struct PodInputs<'a> {
    revision: &'a str,
    image: &'a str,
    /// A pod tells what placed it; one that was placed by something else is another pod.
    inputs: &'a str,
    enforced: Enforced<'a>,
    bind_memory: bool,
    role: Role,
    node: &'a str,
    numa_node: Option<u32>,
    device: ComputeDevice,
    gpus: Vec<&'a str>,
    cpus: &'a [u32],
    memory_bytes: u64,
    memory_node: Option<u32>,
    kv_pages: u32,
    request_slots: u32,
    host_cache_bytes: u64,
    template: &'a PodTemplateSpec,
}

/// What the mode changes of one pod. A pod without GPUs is the same whether others get theirs by claims or not, so a
/// driver that appears or goes does not touch it.
#[derive(Serialize)]
enum Enforced<'a> {
    Claim(&'a str, &'a str),
    Kubelet(Option<&'a str>),
    Itself(Option<&'a str>),
    Unmanaged,
}

fn enforced<'a>(mode: &'a Mode, entry: &ReplicaPlan) -> Enforced<'a> {
    let has_gpus = !entry.gpus.is_empty();
    let resource = |name: &'a Option<String>| name.as_deref().filter(|_| has_gpus);
    match mode {
        Mode::Dra { driver, device_class } if has_gpus => Enforced::Claim(driver, device_class),
        Mode::Dra { .. } => Enforced::Itself(None),
        Mode::Kubelet { gpu_resource } => Enforced::Kubelet(resource(gpu_resource)),
        Mode::Soft { gpu_resource } => Enforced::Itself(resource(gpu_resource)),
        Mode::Unmanaged => Enforced::Unmanaged,
    }
}

/// The hash in a pod's name.
pub(crate) fn pod_hash(input: &RenderInput<'_>, entry: &ReplicaPlan) -> String {
    let inputs = PodInputs {
        revision: &input.planned.plan.revision,
        image: input.image,
        inputs: &placement_inputs(input.spec, entry.role == Role::Prefill),
        enforced: enforced(&input.enforcement.mode, entry),
        bind_memory: input.enforcement.bind_memory,
        role: entry.role,
        node: &entry.node,
        numa_node: entry.numa_node,
        device: entry.device,
        gpus: entry.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect(),
        cpus: &entry.cpus,
        memory_bytes: entry.memory_bytes,
        memory_node: entry.memory_node,
        kv_pages: entry.device_pool.pages,
        request_slots: entry.device_pool.slots,
        host_cache_bytes: entry.host_cache_bytes,
        template: &input.spec.pod_template,
    };
    digest::hash(&inputs, DIGITS)
}
