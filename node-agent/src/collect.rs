//! Asks every source of a machine and keeps the answers as they came.
//! In: a tree of kernel files, NVML's answers. Out: [`Sample`]. Never: a stop at the first failure, an interpretation
//! beyond what is needed to know which file to read next.

use std::collections::BTreeMap;

use node_facts::Reading;

use crate::derive::pci_address;
use crate::source::nvml::NvmlAnswer;
use crate::source::sysfs::{NumaFiles, PciFiles};
use crate::source::{FileText, Tree, cgroup, procfs, sysfs};

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) hostname: FileText,
    pub(crate) online_cpus: FileText,
    pub(crate) meminfo: FileText,
    pub(crate) memory_limits: Reading<Vec<FileText>>,
    pub(crate) numa: Reading<BTreeMap<u32, NumaFiles>>,
    /// NVIDIA GPUs that the PCI bus shows.
    pub(crate) gpus_on_bus: Reading<usize>,
    /// Devices that NVML names, by address as sysfs writes it.
    pub(crate) pci: BTreeMap<String, PciFiles>,
    pub(crate) nvml: NvmlAnswer,
}

pub(crate) fn sample(tree: &Tree, nvml: NvmlAnswer) -> Sample {
    let named = nvml.iter().flat_map(|answer| &answer.devices);
    let addresses = named.filter_map(|device| pci_address(device.pci.as_deref().ok()?).ok());
    let pci = addresses.map(|address| (address.clone(), sysfs::pci_device(tree, &address))).collect();
    Sample {
        hostname: procfs::hostname(tree),
        online_cpus: sysfs::online_cpus(tree),
        meminfo: procfs::meminfo(tree),
        memory_limits: cgroup::memory_limits(tree),
        numa: sysfs::numa_nodes(tree),
        gpus_on_bus: sysfs::nvidia_devices(tree),
        pci,
        nvml,
    }
}
