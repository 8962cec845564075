//! Replicas that stay: what runs is not moved because facts have changed, aged or vanished.
//! In: the replicas that have a pod, the spec. Out: those that stay as they are, and what they hold.
//! Never: facts. A change of the spec that concerns a role's placement moves it; scaling and the weather do not.

use std::collections::{BTreeMap, BTreeSet};

use engine_spec::Role;

use crate::plan::{ComputeDevice, PlanInput, ReplicaPlan};
use crate::revision::placement_inputs;
use crate::surroundings::{Present, Taken};

/// The replicas of a plan that are taken over from what runs, by role and index.
pub(crate) fn kept<'a>(input: &PlanInput<'a>) -> Vec<&'a Present> {
    let gpus_of_others: BTreeSet<&str> =
        input.surroundings.taken.iter().flat_map(|taken| &taken.gpus).map(String::as_str).collect();
    let inputs = [false, true].map(|prefill| placement_inputs(input.spec, prefill));
    let mut kept: BTreeMap<(Role, u32), &Present> = BTreeMap::new();
    for present in &input.surroundings.present {
        let replica = &present.replica;
        let stays = replica.index < replicas(input, replica.role)
            && present.inputs == inputs[usize::from(replica.role == Role::Prefill)]
            && place_is_there(input, present, &gpus_of_others);
        if stays {
            let first = kept.entry((replica.role, replica.index)).or_insert(present);
            // Of two pods of one replica the one that has its place wins.
            if present.holds && !first.holds {
                *first = present;
            }
        }
    }
    kept.into_values().collect()
}

/// Replicas that the spec asks of a role.
pub(crate) fn replicas(input: &PlanInput<'_>, role: Role) -> u32 {
    let (prefill, decode) = (input.spec.prefill_replicas(), input.spec.decode.replicas);
    let asked = match role {
        Role::Prefill => prefill,
        Role::Decode if prefill > 0 => decode,
        Role::Unified if prefill == 0 => decode,
        Role::Decode | Role::Unified | Role::Router => 0,
    };
    u32::try_from(asked).unwrap_or(0)
}

fn place_is_there(input: &PlanInput<'_>, present: &Present, gpus_of_others: &BTreeSet<&str>) -> bool {
    let Some(nodes) = &input.surroundings.nodes else { return true };
    let Some(node) = nodes.get(&present.replica.node) else { return false };
    let gpus_are_free = || !present.replica.gpus.iter().any(|gpu| gpus_of_others.contains(gpu.uuid.as_str()));
    present.holds || (gpus_are_free() && node.keeps_away(&input.spec.pod_template).is_none())
}

/// What a replica that stays holds, for the planning of the others.
pub(crate) fn held(present: &Present) -> Taken {
    let replica = &present.replica;
    Taken {
        by: replica.name.clone(),
        node: replica.node.clone(),
        numa_node: replica.numa_node,
        gpus: replica.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        cpus: if has_own_cpus(replica) { replica.cpus.clone() } else { Vec::new() },
        promised_bytes: replica.memory_bytes,
        untouched_bytes: present.untouched_bytes,
    }
}

/// Whether nobody else may have the CPUs of a replica. Replicas that compute on the CPU make room: with others beside them
/// they share.
pub fn has_own_cpus(replica: &ReplicaPlan) -> bool {
    replica.device == ComputeDevice::Cuda && !replica.cpus_shared
}
