//! The places that a replica can be put in: a NUMA node of a node, or a whole node.
//! In: facts. Out: [`Room`]s in order of node name and NUMA number, each with what it has or why it cannot be used.
//! Never: a guess. What the facts do not say makes a room unusable, with the reason.
//! A cgroup limit of the machine is split over its NUMA nodes by their memory, so that rooms stay independent.

mod occupied;

use std::collections::{BTreeMap, BTreeSet};

use engine_spec::Role;
use node_facts::{Gpu, GpuHealth, Memory, Mig, NodeFacts, NumaNode, Reading};

use crate::plan::PlanInput;
use crate::report::{RejectReason, Rejected, Report};
use crate::surroundings::Present;

/// A NUMA node of a node, or a whole node.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    pub(crate) facts: &'a NodeFacts,
    /// Absent for a whole node.
    pub(crate) numa_node: Option<u32>,
    /// Usable GPUs by index.
    pub(crate) gpus: Vec<&'a Gpu>,
    /// GPUs that are there and cannot be used, and why.
    pub(crate) lame_gpus: Vec<(u32, String)>,
    pub(crate) cpus: Vec<u32>,
    /// Bytes that can be had without pushing anything out.
    pub(crate) available: u64,
    pub(crate) total: u64,
    /// Whether `available` is the cgroup's limit.
    pub(crate) cgroup_limited: bool,
    /// Why nothing at all can be put here.
    pub(crate) closed: Option<(RejectReason, String)>,
    /// Roles of the replicas that stay here.
    pub(crate) staying: Vec<Role>,
    /// Whether replicas that stay here compute on these CPUs too.
    pub(crate) cpus_shared: bool,
}

impl Room<'_> {
    /// GPUs with at least `bytes` of memory.
    pub(crate) fn gpus_of(&self, bytes: u64) -> usize {
        self.gpus.iter().filter(|gpu| memory_of(gpu) >= bytes).count()
    }
}

/// Memory of a GPU; usable GPUs have it.
pub(crate) fn memory_of(gpu: &Gpu) -> u64 {
    gpu.memory_total.value().copied().unwrap_or(0)
}

/// One room for each NUMA node, or for each machine when `whole`, without what others and the replicas that stay have.
pub(crate) fn rooms<'a>(
    input: &PlanInput<'a>,
    kept: &[&Present],
    whole: bool,
    report: &mut Report,
) -> Vec<Room<'a>> {
    let mut sorted: Vec<&NodeFacts> = input.nodes.iter().collect();
    sorted.sort_by(|a, b| a.node.cmp(&b.node));
    reject_silent(input, report);
    let mut rooms = Vec::new();
    for facts in sorted {
        if let Some(closed) = closed(input, facts) {
            rooms.push(Room { closed: Some(closed), ..whole_room(facts) });
            continue;
        }
        match &facts.numa {
            Reading::Value(numa) if numa.len() == 1 || (!whole && !numa.is_empty()) => {
                numa_rooms(facts, numa, &mut rooms, report);
            }
            Reading::Value(_) => {
                report.note(|| format!("{}: planned as a whole, over its NUMA nodes", facts.node));
                rooms.push(whole_room(facts));
            }
            Reading::Absent(reason) => {
                report.note(|| format!("{}: no NUMA facts ({reason}); planned as one NUMA node", facts.node));
                rooms.push(whole_room(facts));
            }
            Reading::Failed(reason) => {
                let mut room = whole_room(facts);
                if !whole {
                    let message = format!("NUMA facts could not be read: {reason}");
                    room.closed = Some((RejectReason::Unknown, message));
                }
                rooms.push(room);
            }
        }
    }
    occupied::subtract(input, kept, &mut rooms);
    rooms
}

/// CPUs that the kubelet keeps for the system.
fn reserved(facts: &NodeFacts) -> &[u32] {
    facts.kubelet.value().and_then(|kubelet| kubelet.reserved_cpus.value()).map_or(&[], Vec::as_slice)
}

/// Why a node with facts takes nothing new.
fn closed(input: &PlanInput<'_>, facts: &NodeFacts) -> Option<(RejectReason, String)> {
    let nodes = input.surroundings.nodes.as_ref()?;
    match nodes.get(&facts.node) {
        None => Some((RejectReason::NotReady, "the cluster has no such node any more".to_owned())),
        Some(node) => node.keeps_away(&input.spec.pod_template),
    }
}

/// Nodes of the cluster that have no facts are no rooms, and are told.
fn reject_silent(input: &PlanInput<'_>, report: &mut Report) {
    let known: BTreeSet<&str> = input.nodes.iter().map(|facts| facts.node.as_str()).collect();
    for (name, node) in input.surroundings.nodes.iter().flatten() {
        if known.contains(name.as_str()) {
            continue;
        }
        let (reason, message) = node
            .keeps_away(&input.spec.pod_template)
            .unwrap_or_else(|| (RejectReason::Unknown, "no node agent has reported".to_owned()));
        report.reject(|| Rejected {
            node: name.clone(),
            numa_node: None,
            roles: Vec::new(),
            reason,
            message,
        });
    }
}

fn numa_rooms<'a>(
    facts: &'a NodeFacts,
    numa: &'a BTreeMap<u32, NumaNode>,
    rooms: &mut Vec<Room<'a>>,
    report: &mut Report,
) {
    // A GPU that does not say where it is can only be on the only one.
    let only = numa.keys().next().copied().filter(|_| numa.len() == 1);
    let first = rooms.len();
    let total: u64 = numa.values().filter_map(|node| node.memory.value()).map(|m| m.total).sum();
    for (&number, node) in numa {
        let share = |limit: u64| scaled(limit, node.memory.value().map_or(0, |m| m.total), total);
        rooms.push(room(facts, Some(number), &node.cpus, &node.memory, share));
    }
    for gpu in sorted_gpus(facts) {
        let at = match (&gpu.numa_node, only) {
            (Reading::Value(number), _) => Some(*number),
            (_, only) => only,
        };
        let home = rooms[first..].iter_mut().find(|room| at.is_some() && room.numa_node == at);
        match home {
            Some(room) => seat(room, gpu),
            None => report.note(|| homeless(facts, gpu)),
        }
    }
}

/// The GPUs of a machine by index, whatever the order of the facts.
fn sorted_gpus(facts: &NodeFacts) -> Vec<&Gpu> {
    let mut gpus: Vec<&Gpu> = facts.gpus.value().into_iter().flatten().collect();
    gpus.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
    gpus
}

/// A GPU that belongs to no room.
fn homeless(facts: &NodeFacts, gpu: &Gpu) -> String {
    let why = match &gpu.numa_node {
        Reading::Value(number) => format!("it is on NUMA node {number}, of which there are no facts"),
        Reading::Absent(reason) | Reading::Failed(reason) => format!("its NUMA node is unknown: {reason}"),
    };
    format!("{}: GPU {} is left out: {why}", facts.node, gpu.index)
}

fn whole_room(facts: &NodeFacts) -> Room<'_> {
    let mut room = room(facts, None, &facts.cpus, &facts.memory, |limit| limit);
    for gpu in sorted_gpus(facts) {
        seat(&mut room, gpu);
    }
    room
}

fn room<'a>(
    facts: &'a NodeFacts,
    numa_node: Option<u32>,
    cpus: &Reading<Vec<u32>>,
    memory: &Reading<Memory>,
    share: impl Fn(u64) -> u64,
) -> Room<'a> {
    let unknown = match (cpus, memory) {
        (_, Reading::Absent(reason) | Reading::Failed(reason)) => Some(format!("memory unknown: {reason}")),
        (Reading::Absent(reason) | Reading::Failed(reason), _) => Some(format!("CPUs unknown: {reason}")),
        _ => match &facts.cgroup_memory_limit {
            Reading::Failed(reason) => Some(format!("the cgroup's memory limit could not be read: {reason}")),
            _ => None,
        },
    };
    let memory = memory.value().copied().unwrap_or(Memory { total: 0, free: 0, available: 0 });
    let limit = facts.cgroup_memory_limit.value().map(|limit| share(*limit)).unwrap_or(u64::MAX);
    let mut cpus = cpus.value().cloned().unwrap_or_default();
    cpus.retain(|cpu| !reserved(facts).contains(cpu));
    cpus.sort_unstable();
    cpus.dedup();
    Room {
        facts,
        numa_node,
        gpus: Vec::new(),
        lame_gpus: Vec::new(),
        cpus,
        available: memory.available.min(limit),
        total: memory.total,
        cgroup_limited: limit < memory.available,
        closed: unknown.map(|message| (RejectReason::Unknown, message)),
        staying: Vec::new(),
        cpus_shared: false,
    }
}

/// Puts a GPU into its room, as usable or not.
fn seat<'a>(room: &mut Room<'a>, gpu: &'a Gpu) {
    match defect(gpu) {
        None => room.gpus.push(gpu),
        Some(why) => room.lame_gpus.push((gpu.index, why)),
    }
}

/// Why nothing may be placed on a GPU.
pub(crate) fn defect(gpu: &Gpu) -> Option<String> {
    match (&gpu.health, &gpu.mig, &gpu.memory_total) {
        (Reading::Value(GpuHealth::Lost { reason }), ..) => Some(format!("is lost: {reason}")),
        (Reading::Failed(reason), ..) => Some(format!("has an unknown health: {reason}")),
        (_, Reading::Value(Mig::On), _) => Some("is in MIG mode".to_owned()),
        (_, Reading::Failed(reason), _) => Some(format!("has an unknown MIG mode: {reason}")),
        (.., Reading::Absent(reason) | Reading::Failed(reason)) => {
            Some(format!("has an unknown memory size: {reason}"))
        }
        _ => None,
    }
}

/// `of` times `part / whole`, rounded down.
fn scaled(of: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let scaled = u128::from(of) * u128::from(part) / u128::from(whole);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
