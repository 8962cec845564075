//! Asks every source of a machine and keeps the answers as they came.
//! In: trees of kernel files, NVML's answers. Out: [`Sample`]. Never: a stop at the first failure, an interpretation
//! beyond what is needed to know which file to read next.

use std::collections::BTreeMap;

use node_facts::Reading;

use crate::derive::pci_address;
use crate::source::nvml::NvmlAnswer;
use crate::source::sysfs::{NumaFiles, PciFiles};
use crate::source::{FileText, Tree, cgroup, pods, procfs, sysfs};

/// Where the kernel's files are. In a pod, sysfs is the host's, mounted somewhere, and procfs its own: that tells of the
/// host's memory too.
#[derive(Debug, Clone)]
pub(crate) struct Trees {
    pub(crate) sys: Tree,
    pub(crate) proc: Tree,
    pub(crate) reader: Reader,
}

/// Whose memory limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The reader's own: what it starts lives with it.
    Itself,
    /// That of all pods: the reader is one of them, with a limit that concerns nobody else.
    Agent,
}

impl Trees {
    /// Everything in one place, as on a machine or in a scene.
    pub(crate) fn whole(tree: Tree) -> Self {
        Trees { sys: tree.clone(), proc: tree, reader: Reader::Itself }
    }
}

#[derive(Debug, Clone)]
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

pub(crate) fn sample(trees: &Trees, nvml: NvmlAnswer) -> Sample {
    let Trees { sys, proc, reader } = trees;
    let addresses = addresses(&nvml);
    Sample {
        hostname: procfs::hostname(proc),
        online_cpus: sysfs::online_cpus(sys),
        meminfo: procfs::meminfo(proc),
        memory_limits: match reader {
            Reader::Itself => cgroup::memory_limits(proc, sys),
            Reader::Agent => pods::memory_limit(proc, sys),
        },
        numa: sysfs::numa_nodes(sys),
        gpus_on_bus: sysfs::nvidia_devices(sys),
        pci: addresses.map(|address| (address.clone(), sysfs::pci_device(sys, &address))).collect(),
        nvml,
    }
}

/// Reads again what moves from second to second; the rest of a sample costs a thousand files on a large machine.
/// Everything is read again when NVML names other devices than before.
pub(crate) fn refresh(before: &Sample, trees: &Trees, nvml: NvmlAnswer) -> Sample {
    if !addresses(&nvml).eq(before.pci.keys().cloned()) {
        return sample(trees, nvml);
    }
    let numa = before.numa.clone().map(|nodes| {
        let refreshed = nodes.into_iter().map(|(number, files)| {
            (number, NumaFiles { meminfo: sysfs::numa_meminfo(&trees.sys, number), ..files })
        });
        refreshed.collect()
    });
    Sample { meminfo: procfs::meminfo(&trees.proc), numa, nvml, ..before.clone() }
}

/// In ascending order.
fn addresses(nvml: &NvmlAnswer) -> impl Iterator<Item = String> + use<> {
    let named = nvml.iter().flat_map(|answer| &answer.devices);
    let addresses = named.filter_map(|device| pci_address(device.pci.as_deref().ok()?).ok());
    addresses.collect::<std::collections::BTreeSet<_>>().into_iter()
}
