//! From a sample to facts: what the kernel's texts and NVML's answers mean together.
//! In: [`Sample`]. Out: [`NodeFacts`]. Never: I/O, panics, a number where none was read.

pub(crate) mod cpulist;
mod gpus;
mod links;
mod memory;
mod pci;

use std::collections::BTreeMap;

use node_facts::{NodeFacts, NumaNode, Reading};

use crate::collect::Sample;
use crate::source::FileText;
use crate::source::sysfs::NumaFiles;

pub(crate) use pci::address as pci_address;

/// A machine in trouble repeats itself; the first reasons are the useful ones.
const MAX_NOTES: usize = 32;
/// Longest name of a Kubernetes node.
const MAX_NAME_BYTES: usize = 253;

pub(crate) fn facts(sample: &Sample) -> NodeFacts {
    let mut notes = Notes::default();
    let node = node_name(sample, &mut notes);
    let numa = sample.numa.clone().map(|nodes| numa_nodes(&nodes));
    let gpus = gpus::gpus(sample, &numa, &mut notes);
    let links = links::links(sample, &numa, &gpus);
    NodeFacts {
        node,
        cpus: sample.online_cpus.parse(online_cpus),
        memory: sample.meminfo.parse(memory::parse),
        cgroup_memory_limit: memory::limit(&sample.memory_limits),
        numa,
        gpus,
        links,
        kubelet: Reading::Absent("no kubelet was asked".to_owned()),
        notes: notes.0,
    }
}

fn node_name(sample: &Sample, notes: &mut Notes) -> String {
    let name = sample.hostname.parse(|text| match text.trim() {
        name if name.is_empty() || name.len() > MAX_NAME_BYTES => {
            Err(format!("expected a host name of 1 to {MAX_NAME_BYTES} bytes, found {} bytes", name.len()))
        }
        // It is shown on terminals.
        name if !name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(format!("expected a host name in plain letters, found {:?}", excerpt(name)))
        }
        name => Ok(name.to_owned()),
    });
    match name {
        Reading::Value(name) => name,
        Reading::Absent(reason) | Reading::Failed(reason) => {
            notes.add(format!("the host name is unknown: {reason}"));
            "unnamed".to_owned()
        }
    }
}

/// The CPUs, or memory nodes, that a control group's file lists.
pub(crate) fn cpus_of(file: &FileText) -> Reading<Vec<u32>> {
    file.parse(cpulist::parse)
}

/// Unlike a NUMA node, a machine that answers has a CPU.
fn online_cpus(text: &str) -> Result<Vec<u32>, String> {
    match cpulist::parse(text) {
        Ok(cpus) if cpus.is_empty() => Err("expected the CPUs that are online, found none".to_owned()),
        Ok(cpus) => Ok(cpus),
        Err(error) => Err(error.to_string()),
    }
}

fn numa_nodes(nodes: &BTreeMap<u32, NumaFiles>) -> BTreeMap<u32, NumaNode> {
    let numbers: Vec<u32> = nodes.keys().copied().collect();
    let derive = |(number, files): (&u32, &NumaFiles)| {
        let node = NumaNode {
            cpus: files.cpulist.parse(cpulist::parse),
            memory: files.meminfo.parse(memory::parse),
            distances: files.distance.parse(|text| distances(text, *number, &numbers)),
        };
        (*number, node)
    };
    nodes.iter().map(derive).collect()
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum DistanceError {
    #[error("expected a distance, found {found:?}")]
    NotANumber { found: String },
    #[error("expected {expected} distances, one for each NUMA node, found {found}")]
    WrongCount { expected: usize, found: usize },
    #[error("expected 10 as the distance of node {node} to itself, found {found}")]
    NotItself { node: u32, found: u32 },
}

/// ACPI's table has one distance for each node in ascending order, 10 being a node's own.
fn distances(text: &str, node: u32, nodes: &[u32]) -> Result<Vec<u32>, DistanceError> {
    let row = text
        .split_whitespace()
        .map(|word| word.parse().map_err(|_| DistanceError::NotANumber { found: excerpt(word) }))
        .collect::<Result<Vec<u32>, _>>()?;
    if row.len() != nodes.len() {
        return Err(DistanceError::WrongCount { expected: nodes.len(), found: row.len() });
    }
    let own = nodes.iter().zip(&row).find(|(number, _)| **number == node);
    match own {
        Some((_, &found)) if found != 10 => Err(DistanceError::NotItself { node, found }),
        Some(_) | None => Ok(row),
    }
}

/// Remarks for the facts' reader, bounded.
#[derive(Debug, Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add(&mut self, note: String) {
        match self.0.len() {
            full if full >= MAX_NOTES => {}
            full if full + 1 == MAX_NOTES => self.0.push("more remarks were left out".to_owned()),
            _ => self.0.push(note),
        }
    }
}

/// Enough of a text to recognise it in an error.
fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
