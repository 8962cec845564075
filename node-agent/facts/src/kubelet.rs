//! What the kubelet of a node decided: its policies, the devices it offers, and what it gave to whom.
//! Never: wishes. A policy is the one in force, not the one configured.

use serde::{Deserialize, Serialize};

use crate::Reading;

/// The kubelet's policies and allocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletFacts {
    /// `none` or `static`, from the kubelet's state file: a changed configuration is not in force while that file stays.
    pub cpu_manager: Reading<String>,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub topology_manager: Reading<String>,
    /// `None` or `Static`.
    pub memory_manager: Reading<String>,
    /// CPUs that the kubelet keeps for the system (`reservedSystemCPUs`): it gives them to no pod alone.
    pub reserved_cpus: Reading<Vec<u32>>,
    /// Devices that plugins of GPUs offer, by resource name and id.
    pub devices: Reading<Vec<Device>>,
    /// Pods that hold CPUs of their own, devices or claims; the others hold nothing that is theirs alone.
    pub pods: Reading<Vec<PodAllocation>>,
    /// CPUs and memory nodes that the kernel grants the containers of Guaranteed pods: the kubelet pins no others.
    pub cgroups: Reading<Vec<PodCgroups>>,
}

impl KubeletFacts {
    /// What a pod holds; `None`: nothing that is its alone, or unknown.
    pub fn allocation(&self, namespace: &str, name: &str) -> Option<&PodAllocation> {
        self.pods.value()?.iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }

    /// The CPUs of a container, by the uid of its pod and the id in its status (with or without `containerd://`).
    pub fn cgroup(&self, pod_uid: &str, container_id: &str) -> Option<&CgroupCpus> {
        let id = container_id.rsplit('/').next().unwrap_or(container_id);
        let pod = self.cgroups.value()?.iter().find(|pod| pod.uid == pod_uid)?;
        pod.containers.iter().find(|container| container.id == id)
    }
}

/// One device of a device plugin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// `nvidia.com/gpu`.
    pub resource: String,
    /// For whole GPUs the uuid.
    pub id: String,
    /// NUMA nodes that the plugin names; empty: it names none.
    pub numa: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAllocation {
    pub namespace: String,
    pub name: String,
    pub containers: Vec<ContainerAllocation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerAllocation {
    pub name: String,
    /// CPUs that are its alone, in ascending order.
    pub cpus: Vec<u32>,
    pub devices: Vec<HeldDevices>,
    pub claims: Vec<ClaimedDevice>,
}

/// Devices of one resource on the same NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldDevices {
    pub resource: String,
    pub ids: Vec<String>,
    pub numa: Vec<u32>,
}

/// A device that a ResourceClaim brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedDevice {
    pub namespace: String,
    pub claim: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCgroups {
    pub uid: String,
    /// The pod's sandbox is among them.
    pub containers: Vec<CgroupCpus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupCpus {
    /// Container id without the runtime's prefix.
    pub id: String,
    pub cpus: Reading<Vec<u32>>,
    /// Memory nodes.
    pub mems: Reading<Vec<u32>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_found_by_the_id_that_its_status_shows() {
        let container =
            CgroupCpus { id: "ab12".into(), cpus: Reading::Value(vec![1]), mems: Reading::Value(vec![0]) };
        let unread = || Reading::Absent("not read".to_owned());
        let facts = KubeletFacts {
            cpu_manager: unread(),
            topology_manager: unread(),
            memory_manager: unread(),
            reserved_cpus: Reading::Absent("not read".into()),
            devices: Reading::Absent("not read".into()),
            pods: Reading::Absent("not read".into()),
            cgroups: Reading::Value(vec![PodCgroups {
                uid: "u".into(),
                containers: vec![container.clone()],
            }]),
        };
        assert_eq!(facts.cgroup("u", "containerd://ab12"), Some(&container));
        assert_eq!(facts.cgroup("u", "ab12"), Some(&container));
        assert_eq!(facts.cgroup("v", "ab12"), None);
        assert_eq!(facts.cgroup("u", "containerd://"), None);
    }
}
