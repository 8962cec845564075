//! The kubelet's answers as facts: only what belongs to somebody alone, in bounds.
//! Never: a number that does not fit taken for another.

use node_facts::{ClaimedDevice, ContainerAllocation, Device, HeldDevices, PodAllocation};

use super::pod_resources::v1;

/// Pods that hold something; a node runs 110 pods, at most some hundred.
const MAX_PODS: usize = 1_024;
/// GPUs and their parts: 16 GPUs of 7 instances are 112.
const MAX_DEVICES: usize = 1_024;
const MAX_TEXT: usize = 256;

pub(super) fn pods(pods: Vec<v1::PodResources>, note: &mut Option<String>) -> Vec<PodAllocation> {
    let mut holders: Vec<PodAllocation> = pods.into_iter().filter_map(pod).collect();
    if holders.len() > MAX_PODS {
        *note = Some(format!("{} pods hold resources of their own, {MAX_PODS} are shown", holders.len()));
    }
    // The kubelet's order is that of a hash table.
    holders.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    holders.truncate(MAX_PODS);
    holders
}

fn pod(pod: v1::PodResources) -> Option<PodAllocation> {
    let containers: Vec<_> = pod.containers.into_iter().filter_map(container).collect();
    let holds = !containers.is_empty();
    holds.then(|| PodAllocation { namespace: cut(pod.namespace), name: cut(pod.name), containers })
}

fn container(container: v1::ContainerResources) -> Option<ContainerAllocation> {
    let mut cpus: Vec<u32> = container.cpu_ids.into_iter().filter_map(|cpu| cpu.try_into().ok()).collect();
    cpus.sort_unstable();
    let mut devices: Vec<_> = container.devices.into_iter().map(held).collect();
    devices.sort_by(|a, b| (&a.resource, &a.ids).cmp(&(&b.resource, &b.ids)));
    let mut claims: Vec<_> = container.dynamic_resources.into_iter().flat_map(claimed).collect();
    claims.sort_by(|a, b| key(a).cmp(&key(b)));
    let holds = !(cpus.is_empty() && devices.is_empty() && claims.is_empty());
    holds.then(|| ContainerAllocation { name: cut(container.name), cpus, devices, claims })
}

fn key(claimed: &ClaimedDevice) -> [&str; 5] {
    let ClaimedDevice { namespace, claim, driver, pool, device } = claimed;
    [namespace, claim, driver, pool, device]
}

fn held(devices: v1::ContainerDevices) -> HeldDevices {
    let mut ids: Vec<String> = devices.device_ids.into_iter().take(MAX_DEVICES).map(cut).collect();
    ids.sort();
    HeldDevices { resource: cut(devices.resource_name), ids, numa: numa(devices.topology) }
}

fn claimed(resource: v1::DynamicResource) -> impl Iterator<Item = ClaimedDevice> {
    let v1::DynamicResource { claim_name, claim_namespace, claim_resources } = resource;
    claim_resources.into_iter().take(MAX_DEVICES).map(move |device| ClaimedDevice {
        namespace: cut(claim_namespace.clone()),
        claim: cut(claim_name.clone()),
        driver: cut(device.driver_name),
        pool: cut(device.pool_name),
        device: cut(device.device_name),
    })
}

/// Devices of GPUs; the kubelet also tells of network cards and others.
pub(super) fn devices(groups: Vec<v1::ContainerDevices>, note: &mut Option<String>) -> Vec<Device> {
    let mut devices = Vec::new();
    for group in groups.into_iter().filter(|group| is_gpu(&group.resource_name)) {
        let numa = numa(group.topology);
        let resource = cut(group.resource_name);
        devices.extend(group.device_ids.into_iter().map(|id| Device {
            resource: resource.clone(),
            id: cut(id),
            numa: numa.clone(),
        }));
    }
    if devices.len() > MAX_DEVICES {
        *note = Some(format!("the kubelet offers {} devices, {MAX_DEVICES} are shown", devices.len()));
    }
    devices.sort();
    devices.dedup();
    devices.truncate(MAX_DEVICES);
    devices
}

/// `nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, `gpu.example.com/x`.
fn is_gpu(resource: &str) -> bool {
    resource.split(['/', '.', '-']).any(|word| word == "gpu" || word == "mig")
}

/// No topology: the plugin names none, which is not node 0.
fn numa(topology: Option<v1::TopologyInfo>) -> Vec<u32> {
    let nodes = topology.into_iter().flat_map(|topology| topology.nodes);
    let mut numa: Vec<u32> = nodes.filter_map(|node| node.id.try_into().ok()).collect();
    numa.sort_unstable();
    numa.dedup();
    numa
}

fn cut(mut text: String) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    text.truncate(end);
    text
}
