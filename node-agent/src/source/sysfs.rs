//! Files of /sys: NUMA nodes, CPUs, PCI devices.
//! Never: a NUMA node for a device whose file is missing; a missing folder is told from an unreadable one.

use std::collections::BTreeMap;

use node_facts::Reading;

use super::{FileText, Tree, TreeError};

const NODES: &str = "sys/devices/system/node";
const PCI: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// PCI class of display controllers (VGA 0x0300, 3D 0x0302); sound and USB parts of a card have others.
const DISPLAY_CLASS: &str = "0x03";

/// What the kernel says of one NUMA node.
#[derive(Debug, Clone)]
pub(crate) struct NumaFiles {
    pub(crate) cpulist: FileText,
    pub(crate) meminfo: FileText,
    pub(crate) distance: FileText,
}

/// What the kernel says of one PCI device.
#[derive(Debug, Clone)]
pub(crate) struct PciFiles {
    /// Target of its link: the bridges that lead to it.
    pub(crate) chain: Reading<String>,
    pub(crate) numa_node: FileText,
    pub(crate) local_cpulist: FileText,
}

pub(crate) fn online_cpus(tree: &Tree) -> FileText {
    FileText::required(tree, "sys/devices/system/cpu/online")
}

/// NUMA nodes that the kernel shows. Absent: a kernel without NUMA.
pub(crate) fn numa_nodes(tree: &Tree) -> Reading<BTreeMap<u32, NumaFiles>> {
    let names = match tree.names(NODES) {
        Ok(names) => names,
        Err(TreeError::NotFound { .. }) => {
            return Reading::Absent(format!("this kernel shows no NUMA nodes (/{NODES} does not exist)"));
        }
        Err(error) => return Reading::Failed(error.to_string()),
    };
    let nodes: BTreeMap<u32, NumaFiles> = names
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .map(|number| (number, numa_files(tree, number)))
        .collect();
    if nodes.is_empty() {
        return Reading::Absent(format!("this kernel shows no NUMA nodes (none in /{NODES})"));
    }
    Reading::Value(nodes)
}

fn numa_files(tree: &Tree, number: u32) -> NumaFiles {
    let file = |name| FileText::required(tree, format!("{NODES}/node{number}/{name}"));
    NumaFiles { cpulist: file("cpulist"), meminfo: numa_meminfo(tree, number), distance: file("distance") }
}

pub(crate) fn numa_meminfo(tree: &Tree, number: u32) -> FileText {
    FileText::required(tree, format!("{NODES}/node{number}/meminfo"))
}

/// How many NVIDIA display devices the PCI bus shows: what NVML should know about.
/// Devices whose vendor or class cannot be read are not NVIDIA's as far as anybody can tell.
pub(crate) fn nvidia_devices(tree: &Tree) -> Reading<usize> {
    let names = match tree.names(PCI) {
        Ok(names) => names,
        Err(error @ TreeError::NotFound { .. }) => return Reading::Absent(error.to_string()),
        Err(error) => return Reading::Failed(error.to_string()),
    };
    let says = |address: &str, file: &str, start: &str| {
        tree.text(&format!("{PCI}/{address}/{file}")).is_ok_and(|text| text.starts_with(start))
    };
    let is_gpu = |address: &str| says(address, "vendor", NVIDIA) && says(address, "class", DISPLAY_CLASS);
    Reading::Value(names.iter().filter(|address| is_gpu(address)).count())
}

pub(crate) fn pci_device(tree: &Tree, address: &str) -> PciFiles {
    let device = format!("{PCI}/{address}");
    PciFiles {
        chain: tree.link(&device).map_or_else(|e| Reading::Failed(e.to_string()), Reading::Value),
        numa_node: FileText::required(tree, format!("{device}/numa_node")),
        local_cpulist: FileText::required(tree, format!("{device}/local_cpulist")),
    }
}
