//! Which GPUs and CPUs each replica of a room gets.
//! In: counts per room. Out: placements, room by room.
//! GPUs: the closest that are left; the role that needs the larger ones chooses first. CPUs: those with a number of
//! their own take the lowest that are left, the others split the rest evenly, core by core; on the CPU, replicas that would get fewer
//! than two share instead.

use node_facts::Gpu;

use super::{Counts, Placement};
use crate::gpus::{Distances, closest};
use crate::plan::ComputeDevice;
use crate::rooms::{Room, memory_of};
use crate::size::Demand;

/// A replica on the CPU gets at least so many of its own, or shares.
const MIN_OWN_CPUS: usize = 2;

pub(super) fn assign<'r>(
    rooms: &'r [Room<'r>],
    demands: &'r [Demand],
    counts: &[Counts],
) -> Vec<Placement<'r>> {
    let mut next = [0usize; 2];
    let mut placements = Vec::new();
    for (room_index, (room, counts)) in rooms.iter().zip(counts).enumerate() {
        let mut here = Vec::new();
        for (role, demand) in demands.iter().enumerate() {
            for &index in &demand.indices[next[role]..next[role] + counts[role] as usize] {
                here.push(Placement {
                    room,
                    room_index,
                    demand,
                    index,
                    gpus: Vec::new(),
                    cpus: Vec::new(),
                    cpus_shared: false,
                });
            }
            next[role] += counts[role] as usize;
        }
        assign_gpus(room, &mut here);
        assign_cpus(room, &mut here);
        placements.extend(here);
    }
    placements
}

fn assign_gpus<'r>(room: &'r Room<'r>, placements: &mut [Placement<'r>]) {
    if placements.iter().all(|placement| placement.demand.gpus == 0) {
        return;
    }
    let distances = Distances::new(&room.facts.links);
    let mut free: Vec<&'r Gpu> = room.gpus.clone();
    let mut order: Vec<&mut Placement<'r>> = placements.iter_mut().collect();
    order.sort_by_key(|placement| std::cmp::Reverse(placement.demand.gpu_memory_bytes().unwrap_or(0)));
    for placement in order {
        let needed = placement.demand.gpu_memory_bytes().unwrap_or(0);
        let large: Vec<&Gpu> = free.iter().copied().filter(|gpu| memory_of(gpu) >= needed).collect();
        placement.gpus = closest(&large, placement.demand.gpus as usize, &distances);
        free.retain(|gpu| placement.gpus.iter().all(|taken| taken.uuid != gpu.uuid));
    }
}

fn assign_cpus(room: &Room<'_>, placements: &mut [Placement<'_>]) {
    let all = room.cpus.as_slice();
    let mut free = all.iter().copied();
    for placement in placements.iter_mut() {
        if let Some(asked) = placement.demand.cpus {
            placement.cpus = free.by_ref().take(asked as usize).collect();
        }
    }
    let rest: Vec<u32> = free.collect();
    let mut open: Vec<&mut Placement<'_>> =
        placements.iter_mut().filter(|placement| placement.demand.cpus.is_none()).collect();
    if open.is_empty() {
        return;
    }
    let on_cpu = open.iter().all(|placement| placement.demand.device == ComputeDevice::Cpu);
    let each = rest.len() / open.len();
    if each == 0 || (on_cpu && (each < MIN_OWN_CPUS || room.cpus_shared)) {
        share(if rest.is_empty() { all } else { &rest }, placements, rest.is_empty() || room.cpus_shared);
        return;
    }
    let count = open.len();
    let runs: Vec<&[u32]> = rest.chunk_by(|a, b| a + 1 == *b).collect();
    // `0-31,64-95`: the second run usually holds the second threads of the same cores, so every run is split.
    let threads = runs.iter().all(|run| run.len() == runs[0].len() && run.len().is_multiple_of(count));
    let pieces = if threads { runs } else { vec![rest.as_slice()] };
    for (position, placement) in open.iter_mut().enumerate() {
        let part = |piece: &&[u32]| {
            piece[position * piece.len() / count..(position + 1) * piece.len() / count].to_vec()
        };
        placement.cpus = pieces.iter().flat_map(part).collect();
    }
}

/// Gives every replica without a number of its own the same CPUs; `everybody` when these are also those of the others.
fn share(cpus: &[u32], placements: &mut [Placement<'_>], everybody: bool) {
    let open = placements.iter().filter(|placement| placement.demand.cpus.is_none()).count();
    for placement in placements {
        let own = placement.demand.cpus.is_some();
        if !own {
            placement.cpus = cpus.to_vec();
        }
        placement.cpus_shared = everybody || (!own && open > 1);
    }
}
