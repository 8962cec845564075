//! What a room can take: how many replicas of each role, alone and together, and what is missing for one.
//! Never: a choice between rooms.

use engine_spec::host_tier::{CPU_POOL_SHARE_PERCENT, reserve_bytes};
use node_facts::Reading;

use super::Counts;
use crate::host_tier::{cpu_pool_limit, headroom};
use crate::plan::ComputeDevice;
use crate::report::{RejectReason, gib};
use crate::rooms::{Room, memory_of};
use crate::size::Demand;

/// A room beside the demands of at most two roles.
#[derive(Debug)]
pub(super) struct Fit<'r> {
    room: &'r Room<'r>,
    demands: &'r [Demand],
    /// GPUs that are large enough for each role.
    gpus: Counts,
    /// Replicas of each role that fit when the other has none.
    alone: Counts,
}

impl<'r> Fit<'r> {
    /// `apart`: a room in which a replica of another role stays takes none of this one.
    pub(super) fn new(room: &'r Room<'r>, demands: &'r [Demand], apart: bool) -> Self {
        let mut fit = Fit { room, demands, gpus: [0; 2], alone: [0; 2] };
        for (role, demand) in demands.iter().enumerate() {
            let large_enough = room.gpus_of(demand.gpu_memory_bytes().unwrap_or(0));
            fit.gpus[role] = u32::try_from(large_enough).unwrap_or(u32::MAX);
        }
        for (role, demand) in demands.iter().enumerate() {
            if apart && room.staying.iter().any(|other| *other != demand.role) {
                continue;
            }
            fit.alone[role] = largest(demand.replicas(), |count| {
                let mut counts = [0; 2];
                counts[role] = count;
                fit.takes(counts)
            });
        }
        fit
    }

    pub(super) fn alone(&self, role: usize) -> u32 {
        self.alone[role]
    }

    /// Replicas of the second role that fit beside `first` of the first; nothing when those do not fit.
    pub(super) fn beside(&self, first: u32) -> Option<u32> {
        if first > self.alone[0] {
            return None;
        }
        let most = self.demands.get(1).map_or(0, |demand| demand.replicas().min(self.alone[1]));
        Some(largest(most, |second| self.takes([first, second])))
    }

    fn takes(&self, counts: Counts) -> bool {
        let asked = || self.demands.iter().zip(counts).filter(|(_, count)| *count > 0);
        if asked().next().is_none() {
            return true;
        }
        let sum = |of: fn(&Demand) -> u64| -> u64 {
            asked()
                .map(|(demand, count)| of(demand).saturating_mul(u64::from(count)))
                .fold(0, u64::saturating_add)
        };
        let on_gpu = asked().any(|(demand, _)| demand.device == ComputeDevice::Cuda);
        let pool_limit = cpu_pool_limit(self.room, on_gpu);
        let pools_fit = asked()
            .all(|(demand, _)| demand.device == ComputeDevice::Cuda || demand.pool.min_bytes() <= pool_limit);
        self.room.closed.is_none()
            && !self.room.cpus.is_empty()
            && self.gpus_suffice(counts)
            && sum(|demand| u64::from(demand.min_cpus())) <= self.room.cpus.len() as u64
            && pools_fit
            && sum(Demand::min_memory_bytes) <= headroom(self.room, on_gpu)
    }

    /// The GPUs that are large enough for the greedier role are among those of the other: each role and both together
    /// must find enough.
    fn gpus_suffice(&self, counts: Counts) -> bool {
        let mut together = 0u64;
        for (role, demand) in self.demands.iter().enumerate() {
            let wanted = u64::from(demand.gpus) * u64::from(counts[role]);
            if wanted > u64::from(self.gpus[role]) {
                return false;
            }
            together += wanted;
        }
        together <= u64::from(self.gpus[0].max(self.gpus[1]))
    }
}

/// The largest number up to `limit` for which `fits` holds; it holds for 0 and for everything below.
fn largest(limit: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut good, mut bad) = (0, limit.saturating_add(1));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}

/// What keeps one replica out of a room.
pub(super) fn missing(room: &Room<'_>, demand: &Demand) -> (RejectReason, String) {
    if let Some(closed) = &room.closed {
        return closed.clone();
    }
    if let Some(found) = missing_gpus(room, demand) {
        return found;
    }
    let cpus = room.cpus.len();
    if cpus < demand.min_cpus().max(1) as usize {
        return (RejectReason::TooFewCpus, format!("{cpus} of {} CPUs free", demand.min_cpus().max(1)));
    }
    let on_gpu = demand.device == ComputeDevice::Cuda;
    let source = if room.cgroup_limited { "cgroup limit" } else { "available" };
    let (available, reserve) = (gib(room.available), gib(reserve_bytes(room.total, on_gpu)));
    let pool_limit = cpu_pool_limit(room, on_gpu);
    if !on_gpu && demand.min_memory_bytes() <= headroom(room, on_gpu) && demand.pool.min_bytes() > pool_limit
    {
        let message = format!(
            "{} for the device pool ({CPU_POOL_SHARE_PERCENT} % of {available} {source} - {reserve} reserve), {} needed for one request of the full context",
            gib(pool_limit),
            gib(demand.pool.min_bytes()),
        );
        return (RejectReason::Memory, message);
    }
    let message = format!(
        "{} of {} memory free ({available} {source} - {reserve} reserve)",
        gib(headroom(room, on_gpu)),
        gib(demand.min_memory_bytes()),
    );
    (RejectReason::Memory, message)
}

fn missing_gpus(room: &Room<'_>, demand: &Demand) -> Option<(RejectReason, String)> {
    let wanted = demand.gpus as usize;
    if room.gpus.len() < wanted {
        let mut message = match &room.facts.gpus {
            Reading::Failed(reason) => {
                return Some((RejectReason::Unknown, format!("GPUs unknown: {reason}")));
            }
            Reading::Absent(reason) => format!("0 of {wanted} GPUs free ({reason})"),
            Reading::Value(_) => format!("{} of {wanted} GPUs free", room.gpus.len()),
        };
        for (index, why) in &room.lame_gpus {
            message.push_str(&format!("; GPU {index} {why}"));
        }
        return Some((RejectReason::TooFewGpus, message));
    }
    let needed = demand.gpu_memory_bytes().unwrap_or(0);
    let large = room.gpus_of(needed);
    if large < wanted {
        let largest = room.gpus.iter().map(|gpu| memory_of(gpu)).max().unwrap_or(0);
        let message = format!(
            "{large} of {wanted} GPUs have {} of memory; the largest has {}",
            gib(needed),
            gib(largest),
        );
        return Some((RejectReason::GpuMemory, message));
    }
    None
}
