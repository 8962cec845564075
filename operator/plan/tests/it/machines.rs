//! Machines in a line: for cases that no shipped scene has.

use std::collections::BTreeMap;

use fathom_crds::InferenceCluster;
use node_facts::{Gpu, GpuHealth, GpuLink, LinkKind, Memory, Mig, NodeFacts, NumaNode, Reading};

pub(crate) const GIB: u64 = 1 << 30;

/// What one NUMA node has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numa {
    pub(crate) gpus: u32,
    pub(crate) gpu_gib: u64,
    pub(crate) cpus: u32,
    pub(crate) memory_gib: u64,
}

/// A NUMA node of a large server with `gpus` GPUs.
pub(crate) fn large(gpus: u32) -> Numa {
    Numa { gpus, gpu_gib: 96, cpus: 64, memory_gib: 256 }
}

/// A healthy machine; GPUs and CPUs are numbered through, all memory is free, all GPUs of a NUMA node are equally close.
pub(crate) fn machine(name: &str, numa: &[Numa]) -> NodeFacts {
    let (mut gpus, mut all_cpus, mut nodes) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (number, at) in (0u32..).zip(numa) {
        let first = u32::try_from(all_cpus.len()).unwrap_or(0);
        let cpus: Vec<u32> = (first..first + at.cpus).collect();
        all_cpus.extend(&cpus);
        for _ in 0..at.gpus {
            gpus.push(gpu(name, u32::try_from(gpus.len()).unwrap_or(0), number, at.gpu_gib));
        }
        let node = NumaNode {
            cpus: Reading::Value(cpus),
            memory: Reading::Value(memory(at.memory_gib)),
            distances: Reading::Absent("not read".to_owned()),
        };
        nodes.insert(number, node);
    }
    NodeFacts {
        node: name.to_owned(),
        numa: Reading::Value(nodes),
        cpus: Reading::Value(all_cpus),
        memory: Reading::Value(memory(numa.iter().map(|at| at.memory_gib).sum())),
        cgroup_memory_limit: Reading::Absent("no limit".to_owned()),
        gpus: Reading::Value(gpus),
        links: Vec::new(),
        kubelet: Reading::Absent("not asked".to_owned()),
        notes: Vec::new(),
    }
}

fn memory(gib: u64) -> Memory {
    Memory { total: gib * GIB, free: gib * GIB, available: gib * GIB }
}

fn gpu(node: &str, index: u32, numa: u32, gib: u64) -> Gpu {
    Gpu {
        uuid: format!("GPU-{node}-{index}"),
        index,
        name: Reading::Value("NVIDIA RTX PRO 6000 Blackwell Server Edition".to_owned()),
        pci: Reading::Value(format!("0000:{index:02x}:00.0")),
        numa_node: Reading::Value(numa),
        memory_total: Reading::Value(gib * GIB),
        memory_used: Reading::Value(0),
        mig: Reading::Value(Mig::Off),
        health: Reading::Value(GpuHealth::Healthy),
    }
}

/// Links a pair of GPUs of a machine.
pub(crate) fn link(machine: &mut NodeFacts, a: u32, b: u32, kind: LinkKind) {
    let uuid = |index: u32| format!("GPU-{}-{index}", machine.node);
    let link = GpuLink { a: uuid(a), b: uuid(b), kind };
    machine.links.push(link);
}

/// An object of the needle model with this in its spec.
pub(crate) fn needle(spec: &str) -> InferenceCluster {
    object("needle", spec)
}

pub(crate) fn object(model: &str, spec: &str) -> InferenceCluster {
    let text = format!(
        "apiVersion: fathom.dev/v1alpha1\nkind: InferenceCluster\nmetadata: {{name: t}}\nspec:\n  \
         model: {{name: {model}, source: {{hostPath: /m}}}}\n  {spec}\n"
    );
    fathom_crds::read(&text).expect("the tests write valid objects")
}
