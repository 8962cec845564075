//! Facts of one node: NUMA nodes, CPUs, memory, GPUs and their links, as the node agent reports them.
//! Never: I/O. Every value is present, or absent with a reason, or failed with a reason: unknown is not zero.

use std::collections::BTreeMap;

mod kubelet;
mod material;

pub use kubelet::{
    CgroupCpus, ClaimedDevice, ContainerAllocation, Device, HeldDevices, KubeletFacts, PodAllocation,
    PodCgroups,
};

use serde::{Deserialize, Serialize};

/// A fact that a source was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reading<T> {
    Value(T),
    /// The source answered that there is none: no such device, not supported.
    Absent(String),
    /// The source could not be read.
    Failed(String),
}

impl<T> Reading<T> {
    pub fn value(&self) -> Option<&T> {
        match self {
            Reading::Value(value) => Some(value),
            Reading::Absent(_) | Reading::Failed(_) => None,
        }
    }

    /// Why there is no value.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Reading::Value(_) => None,
            Reading::Absent(reason) | Reading::Failed(reason) => Some(reason),
        }
    }

    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Reading::Value(value) => Reading::Value(f(value)),
            Reading::Absent(reason) => Reading::Absent(reason),
            Reading::Failed(reason) => Reading::Failed(reason),
        }
    }
}

/// Everything known about one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// Kubernetes node name, or the host name.
    pub node: String,
    /// NUMA nodes by number; absent where the kernel shows none (the planner then takes the machine as one node).
    pub numa: Reading<BTreeMap<u32, NumaNode>>,
    /// CPUs that are online, as numbers.
    pub cpus: Reading<Vec<u32>>,
    /// Memory of the whole machine.
    pub memory: Reading<Memory>,
    /// Memory limit of the cgroup that the reader lives in; absent = no limit.
    pub cgroup_memory_limit: Reading<u64>,
    /// GPUs in index order; absent where there is no NVIDIA library.
    pub gpus: Reading<Vec<Gpu>>,
    /// Closest connection of each pair of GPUs, by uuid in ascending order; pairs that could not be read are missing.
    #[serde(default)]
    pub links: Vec<GpuLink>,
    /// What the kubelet decided; absent where the reader was not told of one.
    #[serde(default = "no_kubelet")]
    pub kubelet: Reading<KubeletFacts>,
    /// What went wrong without belonging to one value; bounded by the reader.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Facts of a machine, not of a Kubernetes node.
fn no_kubelet() -> Reading<KubeletFacts> {
    Reading::Absent("no kubelet was asked".to_owned())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaNode {
    pub cpus: Reading<Vec<u32>>,
    pub memory: Reading<Memory>,
    /// ACPI distances to the NUMA nodes in ascending order; itself is 10.
    pub distances: Reading<Vec<u32>>,
}

/// Memory of a NUMA node or of the machine, in bytes. `available` = free + active(file) + inactive(file) +
/// reclaimable slab: sysfs has no MemAvailable per node, and page cache of mapped weights is not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub available: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    pub uuid: String,
    pub index: u32,
    pub name: Reading<String>,
    /// `0000:17:00.0`, lower case.
    pub pci: Reading<String>,
    /// The NUMA node of its PCI device; absent when the kernel says -1.
    pub numa_node: Reading<u32>,
    pub memory_total: Reading<u64>,
    pub memory_used: Reading<u64>,
    pub mig: Reading<Mig>,
    /// Healthy, or why nothing may be placed on it (fallen off the bus, uncorrectable errors).
    pub health: Reading<GpuHealth>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mig {
    Off,
    On,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuHealth {
    Healthy,
    Lost { reason: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLink {
    pub a: String,
    pub b: String,
    pub kind: LinkKind,
}

/// From the closest to the farthest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkKind {
    NvLink,
    SamePciSwitch,
    SameHostBridge,
    SameNuma,
    AcrossNuma,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_without_a_value_keeps_its_reason_through_map() {
        let failed: Reading<u64> = Reading::Failed("torn".into());
        assert_eq!(failed.map(|bytes| bytes / 2), Reading::Failed("torn".into()));
        let absent: Reading<u64> = Reading::Absent("none".into());
        assert_eq!((absent.value(), absent.reason()), (None, Some("none")));
        assert_eq!(Reading::Value(4).map(|bytes| bytes / 2), Reading::Value(2));
    }

    #[test]
    fn json_tells_a_value_of_zero_from_no_value() {
        let json = |reading: Reading<u64>| serde_json::to_string(&reading).unwrap();
        assert_eq!(json(Reading::Value(0)), r#"{"value":0}"#);
        assert_eq!(json(Reading::Absent("no limit".into())), r#"{"absent":"no limit"}"#);
        assert_eq!(json(Reading::Failed("torn".into())), r#"{"failed":"torn"}"#);
        assert!(serde_json::from_str::<Reading<u64>>("null").is_err());
    }

    #[test]
    fn link_kinds_go_from_the_closest_to_the_farthest() {
        use LinkKind::{AcrossNuma, NvLink, SameHostBridge, SameNuma, SamePciSwitch};
        assert!([NvLink, SamePciSwitch, SameHostBridge, SameNuma, AcrossNuma].is_sorted());
    }
}
