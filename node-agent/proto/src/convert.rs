//! Facts to messages and back.
//! Never: a field that is lost on the way (the destructuring below names each); a value where none was sent.

use std::collections::BTreeMap;

use node_facts::{Gpu, GpuHealth, GpuLink, LinkKind, Memory, Mig, NodeFacts, NumaNode, Reading};

use crate::reading::{not_said, readings, sent};
use crate::v1;

/// The message that holds all of the facts.
pub fn sections(facts: &NodeFacts) -> v1::Facts {
    let NodeFacts { node, numa, cpus, memory, cgroup_memory_limit, gpus, links, kubelet, notes } = facts;
    v1::Facts {
        node: node.clone(),
        numa: Some(numa.into()),
        cpus: Some(cpus.into()),
        memory: Some(memory.into()),
        cgroup_memory_limit: Some(cgroup_memory_limit.into()),
        gpus: Some(gpus.into()),
        links: Some(v1::Links { links: links.iter().map(link_to_wire).collect() }),
        notes: Some(v1::Notes { notes: notes.clone() }),
        kubelet: Some(kubelet.into()),
    }
}

/// Facts from a complete message.
pub fn facts(message: v1::Facts) -> NodeFacts {
    let mut facts = NodeFacts {
        node: message.node.clone(),
        numa: not_said(),
        cpus: not_said(),
        memory: not_said(),
        cgroup_memory_limit: not_said(),
        gpus: not_said(),
        links: Vec::new(),
        kubelet: not_said(),
        notes: Vec::new(),
    };
    merge(&mut facts, message);
    facts
}

/// Puts the fields that are set into the facts.
pub fn merge(facts: &mut NodeFacts, changes: v1::Facts) {
    let v1::Facts { node: _, numa, cpus, memory, cgroup_memory_limit, gpus, links, notes, kubelet } = changes;
    replace(&mut facts.numa, numa);
    replace(&mut facts.cpus, cpus);
    replace(&mut facts.memory, memory);
    replace(&mut facts.cgroup_memory_limit, cgroup_memory_limit);
    replace(&mut facts.gpus, gpus);
    replace(&mut facts.kubelet, kubelet);
    if let Some(links) = links {
        facts.links = links.links.into_iter().filter_map(link_from_wire).collect();
    }
    if let Some(notes) = notes {
        facts.notes = notes.notes;
    }
}

fn replace<M, T>(fact: &mut Reading<T>, message: Option<M>)
where
    Reading<T>: From<M>,
{
    if let Some(message) = message {
        *fact = message.into();
    }
}

readings! {
    MemoryReading(memory_reading) for Memory: memory_to_wire, |memory| Reading::Value(memory_from_wire(memory));
    NumaReading(numa_reading) for BTreeMap<u32, NumaNode>: numa_to_wire, |nodes| Reading::Value(numa_from_wire(nodes));
    GpusReading(gpus_reading) for Vec<Gpu>:
        |gpus| v1::Gpus { gpus: gpus.iter().map(gpu_to_wire).collect() },
        |message: v1::Gpus| Reading::Value(message.gpus.into_iter().map(gpu_from_wire).collect());
    MigReading(mig_reading) for Mig: mig_to_wire, mig_from_wire;
    HealthReading(health_reading) for GpuHealth: health_to_wire, health_from_wire;
}

fn memory_to_wire(memory: &Memory) -> v1::Memory {
    let Memory { total, free, available } = *memory;
    v1::Memory { total, free, available }
}

fn memory_from_wire(message: v1::Memory) -> Memory {
    let v1::Memory { total, free, available } = message;
    Memory { total, free, available }
}

fn numa_to_wire(nodes: &BTreeMap<u32, NumaNode>) -> v1::NumaNodes {
    let to_wire = |(number, node): (&u32, &NumaNode)| {
        let NumaNode { cpus, memory, distances } = node;
        let node = v1::NumaNode {
            cpus: Some(cpus.into()),
            memory: Some(memory.into()),
            distances: Some(distances.into()),
        };
        (*number, node)
    };
    v1::NumaNodes { nodes: nodes.iter().map(to_wire).collect() }
}

fn numa_from_wire(message: v1::NumaNodes) -> BTreeMap<u32, NumaNode> {
    let from_wire = |(number, node): (u32, v1::NumaNode)| {
        let v1::NumaNode { cpus, memory, distances } = node;
        (number, NumaNode { cpus: sent(cpus), memory: sent(memory), distances: sent(distances) })
    };
    message.nodes.into_iter().map(from_wire).collect()
}

fn gpu_to_wire(gpu: &Gpu) -> v1::Gpu {
    let Gpu { uuid, index, name, pci, numa_node, memory_total, memory_used, mig, health } = gpu;
    v1::Gpu {
        uuid: uuid.clone(),
        index: *index,
        name: Some(name.into()),
        pci: Some(pci.into()),
        numa_node: Some(numa_node.into()),
        memory_total: Some(memory_total.into()),
        memory_used: Some(memory_used.into()),
        mig: Some(mig.into()),
        health: Some(health.into()),
    }
}

fn gpu_from_wire(message: v1::Gpu) -> Gpu {
    let v1::Gpu { uuid, index, name, pci, numa_node, memory_total, memory_used, mig, health } = message;
    Gpu {
        uuid,
        index,
        name: sent(name),
        pci: sent(pci),
        numa_node: sent(numa_node),
        memory_total: sent(memory_total),
        memory_used: sent(memory_used),
        mig: sent(mig),
        health: sent(health),
    }
}

fn mig_to_wire(mig: &Mig) -> i32 {
    let mig = match mig {
        Mig::Off => v1::Mig::Off,
        Mig::On => v1::Mig::On,
    };
    mig.into()
}

fn mig_from_wire(message: i32) -> Reading<Mig> {
    match v1::Mig::try_from(message) {
        Ok(v1::Mig::Off) => Reading::Value(Mig::Off),
        Ok(v1::Mig::On) => Reading::Value(Mig::On),
        Ok(v1::Mig::Unspecified) | Err(_) => not_said(),
    }
}

fn health_to_wire(health: &GpuHealth) -> v1::Health {
    use v1::health::Health as Wire;
    let health = match health {
        GpuHealth::Healthy => Wire::Healthy(v1::Healthy {}),
        GpuHealth::Lost { reason } => Wire::Lost(v1::Lost { reason: reason.clone() }),
    };
    v1::Health { health: Some(health) }
}

fn health_from_wire(message: v1::Health) -> Reading<GpuHealth> {
    use v1::health::Health as Wire;
    match message.health {
        Some(Wire::Healthy(v1::Healthy {})) => Reading::Value(GpuHealth::Healthy),
        Some(Wire::Lost(v1::Lost { reason })) => Reading::Value(GpuHealth::Lost { reason }),
        None => not_said(),
    }
}

fn link_to_wire(link: &GpuLink) -> v1::Link {
    let GpuLink { a, b, kind } = link;
    let kind = match kind {
        LinkKind::NvLink => v1::LinkKind::NvLink,
        LinkKind::SamePciSwitch => v1::LinkKind::SamePciSwitch,
        LinkKind::SameHostBridge => v1::LinkKind::SameHostBridge,
        LinkKind::SameNuma => v1::LinkKind::SameNuma,
        LinkKind::AcrossNuma => v1::LinkKind::AcrossNuma,
    };
    v1::Link { a: a.clone(), b: b.clone(), kind: kind.into() }
}

/// A pair whose connection is unknown is missing among the links.
fn link_from_wire(message: v1::Link) -> Option<GpuLink> {
    let v1::Link { a, b, kind } = message;
    let kind = match v1::LinkKind::try_from(kind) {
        Ok(v1::LinkKind::NvLink) => LinkKind::NvLink,
        Ok(v1::LinkKind::SamePciSwitch) => LinkKind::SamePciSwitch,
        Ok(v1::LinkKind::SameHostBridge) => LinkKind::SameHostBridge,
        Ok(v1::LinkKind::SameNuma) => LinkKind::SameNuma,
        Ok(v1::LinkKind::AcrossNuma) => LinkKind::AcrossNuma,
        Ok(v1::LinkKind::Unspecified) | Err(_) => return None,
    };
    Some(GpuLink { a, b, kind })
}

#[cfg(test)]
mod tests;
