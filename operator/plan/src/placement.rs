//! Which replicas go into which room.
//! In: demands (at most two roles), rooms. Out: a [`Placement`] per replica, or none at all and the reasons.
//! Never: half a plan. Either every replica has its place or none has.
//! Two roles share a room only if they must: first rooms are given to one role each, and only when that fails to both.
//! Rooms are taken in order, prefill first, so the result does not depend on the order of the facts.

mod assign;
mod count;
mod fit;

use std::collections::BTreeSet;

use engine_spec::Role;
use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::NumaMode;
use node_facts::Gpu;

pub(crate) use count::Counts;

use crate::plan::{PlanInput, PlannedGpu};
use crate::report::{RejectReason, Rejected, Report, gib};
use crate::rooms::{Room, rooms};
use crate::size::Demand;
use crate::surroundings::Present;
use fit::Fit;

/// One replica in its room.
#[derive(Debug)]
pub(crate) struct Placement<'r> {
    pub(crate) room: &'r Room<'r>,
    pub(crate) room_index: usize,
    pub(crate) demand: &'r Demand,
    /// Number of the replica within its role.
    pub(crate) index: u32,
    pub(crate) gpus: Vec<&'r Gpu>,
    pub(crate) cpus: Vec<u32>,
    pub(crate) cpus_shared: bool,
}

impl Placement<'_> {
    pub(crate) fn name(&self, cluster: &str) -> String {
        format!("{cluster}-{}-{}", self.demand.role, self.index)
    }

    pub(crate) fn planned_gpus(&self) -> Vec<PlannedGpu> {
        self.gpus.iter().map(|gpu| PlannedGpu { index: gpu.index, uuid: gpu.uuid.clone() }).collect()
    }
}

/// The rooms to plan with: NUMA nodes, or whole nodes where the object says so or (Preferred) nothing else fits.
pub(crate) fn rooms_for<'a>(
    input: &PlanInput<'a>,
    demands: &[Demand],
    kept: &[&Present],
    report: &mut Report,
) -> Vec<Room<'a>> {
    if demands.is_empty() {
        return Vec::new();
    }
    let numa = input.spec.placement.numa;
    if numa == NumaMode::Preferred {
        let mut scratch = Report::default();
        let strict = rooms(input, kept, false, &mut scratch);
        if count::counts(&fits(&strict, demands, false), demands).is_err() {
            report.note(|| {
                "placement.numa is Preferred, and not every replica fits on one NUMA node".to_owned()
            });
            return rooms(input, kept, true, report);
        }
    }
    rooms(input, kept, numa == NumaMode::Off, report)
}

/// Places every replica, or refuses and says what is missing where.
pub(crate) fn place<'r>(
    rooms: &'r [Room<'r>],
    demands: &'r [Demand],
    report: &mut Report,
) -> Vec<Placement<'r>> {
    if demands.is_empty() || !report.refusals.is_empty() {
        return Vec::new();
    }
    if rooms.is_empty() {
        report.refuse(Reason::NoFacts, "no node has reported its facts".to_owned());
        return Vec::new();
    }
    let twice = rooms
        .windows(2)
        .find(|pair| pair[0].facts.node == pair[1].facts.node && !std::ptr::eq(pair[0].facts, pair[1].facts));
    if let Some([_, room]) = twice {
        report.refuse(
            Reason::NoFacts,
            format!("node {:?} has reported twice; names must differ", room.facts.node),
        );
        return Vec::new();
    }
    let fits_together = fits(rooms, demands, false);
    reject_unfit(rooms, demands, &fits_together, report);
    let apart = count::counts(&fits(rooms, demands, true), demands);
    match apart.or_else(|_| count::counts(&fits_together, demands)) {
        Ok(counts) => {
            let placements = assign::assign(rooms, demands, &counts);
            note_spare(rooms, demands, &fits_together, &placements, report);
            placements
        }
        Err(most) => {
            let on = if rooms.iter().any(|room| room.numa_node.is_some()) { "NUMA node" } else { "node" };
            report.refuse(reason_of(rooms), shortage(demands, &most, on));
            reject_taken(rooms, demands, &fits_together, &most, report);
            Vec::new()
        }
    }
}

fn fits<'r>(rooms: &'r [Room<'r>], demands: &'r [Demand], apart: bool) -> Vec<Fit<'r>> {
    rooms.iter().map(|room| Fit::new(room, demands, apart)).collect()
}

/// Nodes that could have been chosen too.
fn note_spare(
    rooms: &[Room<'_>],
    demands: &[Demand],
    fits: &[Fit<'_>],
    placements: &[Placement<'_>],
    report: &mut Report,
) {
    const NAMED: usize = 3;
    let used: BTreeSet<&str> = placements.iter().map(|placed| placed.room.facts.node.as_str()).collect();
    let fitting =
        rooms.iter().zip(fits).filter(|(_, fit)| (0..demands.len()).any(|role| fit.alone(role) > 0));
    let spare: BTreeSet<&str> =
        fitting.map(|(room, _)| room.facts.node.as_str()).filter(|node| !used.contains(node)).collect();
    if spare.is_empty() {
        return;
    }
    report.note(|| {
        let names: Vec<&str> = spare.iter().copied().take(NAMED).collect();
        let more = match spare.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more} would do as well: nodes are taken in the order of their names", names.join(", "))
    });
}

/// Why nothing fits: the facts, if there are no others, or else the rooms.
fn reason_of(rooms: &[Room<'_>]) -> Reason {
    let closed = |reason| rooms.iter().all(|room| room.closed.as_ref().is_some_and(|(r, _)| *r == reason));
    match () {
        () if closed(RejectReason::Stale) => Reason::FactsStale,
        () if closed(RejectReason::Excluded) => Reason::TopologyRejected,
        () => Reason::NotFeasible,
    }
}

/// Rooms that cannot take a single replica of some role.
fn reject_unfit(rooms: &[Room<'_>], demands: &[Demand], fits: &[Fit<'_>], report: &mut Report) {
    for (room, fit) in rooms.iter().zip(fits) {
        let missing: Vec<&Demand> =
            demands.iter().enumerate().filter(|(role, _)| fit.alone(*role) == 0).map(|(_, d)| d).collect();
        // Roles that miss the same thing share a line.
        let mut told: Vec<Rejected> = Vec::new();
        for demand in missing {
            let (reason, message) = fit::missing(room, demand);
            match told.iter_mut().find(|line| line.message == message) {
                Some(line) => line.roles.push(demand.role),
                None => told.push(rejected(room, vec![demand.role], reason, message)),
            }
        }
        for line in told {
            report.reject(|| line);
        }
    }
}

/// Rooms that are full in the fullest placement there is.
fn reject_taken(
    rooms: &[Room<'_>],
    demands: &[Demand],
    fits: &[Fit<'_>],
    most: &[Counts],
    report: &mut Report,
) {
    let placed = |role: usize| most.iter().map(|counts| counts[role]).sum::<u32>();
    let short: Vec<Role> = demands
        .iter()
        .enumerate()
        .filter(|(role, demand)| placed(*role) < demand.replicas())
        .map(|(_, demand)| demand.role)
        .collect();
    for ((room, fit), counts) in rooms.iter().zip(fits).zip(most) {
        let taken: u32 = counts.iter().sum();
        let could = (0..demands.len()).any(|role| fit.alone(role) > 0);
        if !could || taken == 0 {
            continue;
        }
        report.reject(|| {
            let names: Vec<String> = demands
                .iter()
                .zip(counts)
                .filter(|(_, count)| **count > 0)
                .map(|(demand, count)| format!("{count} {}", demand.role))
                .collect();
            let gpus: u32 = demands.iter().zip(counts).map(|(demand, count)| demand.gpus * count).sum();
            let free = room.gpus.len().saturating_sub(gpus as usize);
            let message = format!(
                "taken by {}: {free} of {} GPUs left, no room for another",
                names.join(" and "),
                room.gpus.len()
            );
            rejected(room, short.clone(), RejectReason::Taken, message)
        });
    }
}

fn rejected(room: &Room<'_>, roles: Vec<Role>, reason: RejectReason, message: String) -> Rejected {
    Rejected { node: room.facts.node.clone(), numa_node: room.numa_node, roles, reason, message }
}

/// `decode: 1 of 2 replicas fit; each needs 4 GPUs of 47.2 GiB on one NUMA node, 16 CPUs, 24.0 GiB of memory`.
fn shortage(demands: &[Demand], most: &[Counts], on: &str) -> String {
    let fit = |role: usize, demand: &Demand| {
        let placed: u32 = most.iter().map(|counts| counts[role]).sum();
        format!("{}: {placed} of {} replicas fit", demand.role, demand.replicas())
    };
    let needs = |demand: &Demand| {
        let mut needs = Vec::new();
        if demand.gpus > 0 {
            let memory =
                demand.gpu_memory_bytes().map_or_else(String::new, |bytes| format!(" of {}", gib(bytes)));
            needs.push(format!("{}{memory} on one {on}", counted(demand.gpus, "GPU")));
        }
        if demand.min_cpus() > 0 {
            needs.push(counted(demand.min_cpus(), "CPU"));
        }
        needs.push(format!("{} of memory", gib(demand.min_memory_bytes())));
        needs.join(", ")
    };
    match demands {
        [first, second] if needs(first) == needs(second) => {
            format!("{}; {}; each needs {}", fit(0, first), fit(1, second), needs(first))
        }
        _ => {
            let sentence = |(role, demand)| format!("{}; each needs {}", fit(role, demand), needs(demand));
            demands.iter().enumerate().map(sentence).collect::<Vec<_>>().join("; ")
        }
    }
}

/// `1 GPU`, `4 GPUs`.
fn counted(number: u32, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
