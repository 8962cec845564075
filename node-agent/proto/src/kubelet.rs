//! The kubelet's facts to messages and back.

use node_facts::{
    CgroupCpus, ClaimedDevice, ContainerAllocation, Device, HeldDevices, KubeletFacts, PodAllocation,
    PodCgroups, Reading,
};

use crate::reading::{readings, sent};
use crate::v1;

readings! {
    KubeletReading(kubelet_reading) for KubeletFacts: kubelet_to_wire, |kubelet| Reading::Value(kubelet_from_wire(kubelet));
    DevicesReading(devices_reading) for Vec<Device>:
        |devices| v1::Devices { devices: devices.iter().map(device_to_wire).collect() },
        |message: v1::Devices| Reading::Value(message.devices.into_iter().map(device_from_wire).collect());
    PodsReading(pods_reading) for Vec<PodAllocation>:
        |pods| v1::Pods { pods: pods.iter().map(pod_to_wire).collect() },
        |message: v1::Pods| Reading::Value(message.pods.into_iter().map(pod_from_wire).collect());
    CgroupsReading(cgroups_reading) for Vec<PodCgroups>:
        |pods| v1::Cgroups { pods: pods.iter().map(cgroups_to_wire).collect() },
        |message: v1::Cgroups| Reading::Value(message.pods.into_iter().map(cgroups_from_wire).collect());
}

fn kubelet_to_wire(kubelet: &KubeletFacts) -> v1::Kubelet {
    let KubeletFacts { cpu_manager, topology_manager, memory_manager, reserved_cpus, devices, pods, cgroups } =
        kubelet;
    v1::Kubelet {
        cpu_manager: Some(cpu_manager.into()),
        topology_manager: Some(topology_manager.into()),
        memory_manager: Some(memory_manager.into()),
        reserved_cpus: Some(reserved_cpus.into()),
        devices: Some(devices.into()),
        pods: Some(pods.into()),
        cgroups: Some(cgroups.into()),
    }
}

fn kubelet_from_wire(message: v1::Kubelet) -> KubeletFacts {
    let v1::Kubelet { cpu_manager, topology_manager, memory_manager, reserved_cpus, devices, pods, cgroups } =
        message;
    KubeletFacts {
        cpu_manager: sent(cpu_manager),
        topology_manager: sent(topology_manager),
        memory_manager: sent(memory_manager),
        reserved_cpus: sent(reserved_cpus),
        devices: sent(devices),
        pods: sent(pods),
        cgroups: sent(cgroups),
    }
}

fn device_to_wire(device: &Device) -> v1::Device {
    let Device { resource, id, numa } = device.clone();
    v1::Device { resource, id, numa }
}

fn device_from_wire(message: v1::Device) -> Device {
    let v1::Device { resource, id, numa } = message;
    Device { resource, id, numa }
}

fn pod_to_wire(pod: &PodAllocation) -> v1::Pod {
    let PodAllocation { namespace, name, containers } = pod;
    let containers = containers.iter().map(container_to_wire).collect();
    v1::Pod { namespace: namespace.clone(), name: name.clone(), containers }
}

fn pod_from_wire(message: v1::Pod) -> PodAllocation {
    let v1::Pod { namespace, name, containers } = message;
    PodAllocation { namespace, name, containers: containers.into_iter().map(container_from_wire).collect() }
}

fn container_to_wire(container: &ContainerAllocation) -> v1::Container {
    let ContainerAllocation { name, cpus, devices, claims } = container;
    v1::Container {
        name: name.clone(),
        cpus: cpus.clone(),
        devices: devices.iter().map(held_to_wire).collect(),
        claims: claims.iter().map(claimed_to_wire).collect(),
    }
}

fn container_from_wire(message: v1::Container) -> ContainerAllocation {
    let v1::Container { name, cpus, devices, claims } = message;
    ContainerAllocation {
        name,
        cpus,
        devices: devices.into_iter().map(held_from_wire).collect(),
        claims: claims.into_iter().map(claimed_from_wire).collect(),
    }
}

fn held_to_wire(held: &HeldDevices) -> v1::HeldDevices {
    let HeldDevices { resource, ids, numa } = held.clone();
    v1::HeldDevices { resource, ids, numa }
}

fn held_from_wire(message: v1::HeldDevices) -> HeldDevices {
    let v1::HeldDevices { resource, ids, numa } = message;
    HeldDevices { resource, ids, numa }
}

fn claimed_to_wire(claimed: &ClaimedDevice) -> v1::ClaimedDevice {
    let ClaimedDevice { namespace, claim, driver, pool, device } = claimed.clone();
    v1::ClaimedDevice { namespace, claim, driver, pool, device }
}

fn claimed_from_wire(message: v1::ClaimedDevice) -> ClaimedDevice {
    let v1::ClaimedDevice { namespace, claim, driver, pool, device } = message;
    ClaimedDevice { namespace, claim, driver, pool, device }
}

fn cgroups_to_wire(pod: &PodCgroups) -> v1::PodCgroups {
    let PodCgroups { uid, containers } = pod;
    let containers = containers.iter().map(|container| {
        let CgroupCpus { id, cpus, mems } = container;
        v1::ContainerCgroup { id: id.clone(), cpus: Some(cpus.into()), mems: Some(mems.into()) }
    });
    v1::PodCgroups { uid: uid.clone(), containers: containers.collect() }
}

fn cgroups_from_wire(message: v1::PodCgroups) -> PodCgroups {
    let v1::PodCgroups { uid, containers } = message;
    let containers = containers.into_iter().map(|container| {
        let v1::ContainerCgroup { id, cpus, mems } = container;
        CgroupCpus { id, cpus: sent(cpus), mems: sent(mems) }
    });
    PodCgroups { uid, containers: containers.collect() }
}
