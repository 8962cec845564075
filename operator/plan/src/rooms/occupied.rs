//! Takes out of the rooms what others hold and what replicas that stay hold.
//! Never: an error: whoever holds more than there is leaves nothing.

use std::collections::BTreeMap;

use node_facts::Gpu;

use crate::keep::{has_own_cpus, held};
use crate::plan::PlanInput;
use crate::surroundings::{Present, Taken};

use super::{Room, scaled};

pub(super) fn subtract(input: &PlanInput<'_>, kept: &[&Present], rooms: &mut [Room<'_>]) {
    let ours: Vec<Taken> = kept.iter().map(|present| held(present)).collect();
    // By node: thousands of pods on thousands of nodes would otherwise meet each other.
    let mut by_node: BTreeMap<&str, Vec<&Taken>> = BTreeMap::new();
    for taken in input.surroundings.taken.iter().chain(&ours) {
        by_node.entry(&taken.node).or_default().push(taken);
    }
    for room in rooms.iter_mut() {
        let mut promised = 0u64;
        for taken in by_node.get(room.facts.node.as_str()).into_iter().flatten() {
            promised = promised.saturating_add(take(room, taken));
        }
        // What has been promised is not to be had, whether it is used already (then it is not available any more) or not.
        room.available = room.available.min(room.total.saturating_sub(promised));
    }
    for present in kept {
        let replica = &present.replica;
        let home = |room: &&mut Room<'_>| {
            room.facts.node == replica.node
                && (room.numa_node == replica.numa_node
                    || room.numa_node.is_none()
                    || replica.numa_node.is_none())
        };
        for room in rooms.iter_mut().filter(home) {
            room.staying.push(replica.role);
            room.cpus_shared |= !has_own_cpus(replica);
        }
    }
}

/// Returns the bytes of this room that `taken` was promised.
fn take(room: &mut Room<'_>, taken: &Taken) -> u64 {
    let gpus = std::mem::take(&mut room.gpus).into_iter();
    let (gone, left): (Vec<&Gpu>, _) = gpus.partition(|gpu| taken.gpus.contains(&gpu.uuid));
    room.gpus = left;
    room.lame_gpus.extend(gone.iter().map(|gpu| (gpu.index, format!("is taken by {}", taken.by))));
    room.cpus.retain(|cpu| !taken.cpus.contains(cpu));
    let share = |bytes: u64| match (taken.numa_node, room.numa_node) {
        (Some(theirs), Some(ours)) if theirs != ours => 0,
        (Some(_), _) | (None, None) => bytes,
        (None, Some(_)) => {
            let machine = room.facts.memory.value().map_or(room.total, |memory| memory.total);
            scaled(bytes, room.total, machine)
        }
    };
    room.available = room.available.saturating_sub(share(taken.untouched_bytes));
    share(taken.promised_bytes)
}
