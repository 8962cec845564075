//! Host memory of every placed replica: its device pool on the CPU, and its host tier.
//! In: placements, what the object asks. Out: complete replicas, and a line of the report for each host tier.
//! Never: more than the room has. Replicas of one room get equal parts, so the order of planning does not matter.
//! room = available - reserve - what the room's replicas need for themselves; a host tier gets at most 80 % of it.

use engine_spec::host_tier::{
    CPU_POOL_SHARE_PERCENT, MIN_RATIO, ROOM_SHARE_PERCENT, gpu_pool_bytes, percent, reserve_bytes, room_share,
};
use fathom_crds::inference_cluster::HostCacheMode;

use crate::placement::Placement;
use crate::plan::{ComputeDevice, DevicePool, PlanInput, ReplicaPlan};
use crate::report::{HostCacheLimit, HostCacheReport, Report, gib};
use crate::rooms::{Room, memory_of};
use crate::size::Demand;
use crate::surroundings::Present;

/// Bytes of a room that replicas may be promised in total.
pub(crate) fn headroom(room: &Room<'_>, on_gpu: bool) -> u64 {
    room.available.saturating_sub(reserve_bytes(room.total, on_gpu))
}

/// Most bytes that a device pool in host memory may have, before other replicas are counted.
pub(crate) fn cpu_pool_limit(room: &Room<'_>, on_gpu: bool) -> u64 {
    percent(headroom(room, on_gpu), CPU_POOL_SHARE_PERCENT)
}

/// Turns placements into replicas, room by room, and back into the order of the plan.
pub(crate) fn grant(
    input: &PlanInput<'_>,
    placements: &[Placement<'_>],
    kept: &[&Present],
    report: &mut Report,
) -> Vec<ReplicaPlan> {
    if !report.refusals.is_empty() {
        return Vec::new();
    }
    let engines = (placements.len() + kept.len()) as u64;
    let mut finished: Vec<Finished> = kept.iter().map(|present| stay(&present.replica)).collect();
    for shared in placements.chunk_by(|a, b| a.room_index == b.room_index) {
        finished.extend(room_replicas(input, shared, engines, report));
    }
    finished.sort_by_key(|(replica, _)| (replica.role, replica.index));
    let (replicas, lines): (Vec<_>, Vec<_>) = finished.into_iter().unzip();
    report.host_cache = lines.into_iter().flatten().collect();
    replicas
}

const OFF_ON_CPU: &str = "off: on the CPU the device pool is host memory already";

type Finished = (ReplicaPlan, Option<HostCacheReport>);

/// A replica that stays keeps what it was granted.
fn stay(replica: &ReplicaPlan) -> Finished {
    let line = replica.host_cache_limit.map(|limited_by| HostCacheReport {
        replica: replica.name.clone(),
        asked_bytes: None,
        granted_bytes: replica.host_cache_bytes,
        ratio: quotient(replica.host_cache_bytes, replica.device_pool.bytes),
        limited_by,
        message: stays_text(limited_by, replica.host_cache_bytes),
    });
    (replica.clone(), line)
}

fn stays_text(limited_by: HostCacheLimit, granted: u64) -> String {
    match limited_by {
        HostCacheLimit::OnCpu => OFF_ON_CPU.to_owned(),
        HostCacheLimit::BelowDevicePool => {
            "off since it was placed: there was less room than the device pool takes".to_owned()
        }
        HostCacheLimit::AsAsked | HostCacheLimit::NumaHeadroom | HostCacheLimit::CgroupLimit => {
            format!("granted {} when it was placed; limited by {limited_by:?}", gib(granted))
        }
    }
}

/// The replicas of one room.
fn room_replicas(
    input: &PlanInput<'_>,
    placements: &[Placement<'_>],
    engines: u64,
    report: &mut Report,
) -> Vec<Finished> {
    let Some(room) = placements.first().map(|placement| placement.room) else { return Vec::new() };
    let on_gpu = placements.iter().any(|p| p.demand.device == ComputeDevice::Cuda);
    let headroom = headroom(room, on_gpu);
    let own: u64 = placements.iter().map(|p| p.demand.own_bytes).sum();
    let pools = placements.iter().filter(|p| p.demand.device == ComputeDevice::Cpu).count() as u64;
    let free_for_pool = headroom.saturating_sub(own).checked_div(pools).unwrap_or(0);
    let pool_bytes = free_for_pool.min(cpu_pool_limit(room, on_gpu));
    let sized: Vec<(&Placement<'_>, DevicePool)> =
        placements.iter().map(|placement| (placement, device_pool(placement, pool_bytes))).collect();
    let in_host = |demand: &Demand, pool: &DevicePool| match demand.device {
        ComputeDevice::Cuda => demand.own_bytes,
        ComputeDevice::Cpu => demand.own_bytes + pool.bytes,
    };
    let needs: u64 = sized.iter().map(|(placement, pool)| in_host(placement.demand, pool)).sum();
    let room_bytes = headroom.saturating_sub(needs);
    for Placement { demand, .. } in placements.iter().filter(|p| p.demand.indices.first() == Some(&p.index)) {
        let weights = demand.weight_bytes_per_rank;
        if demand.device == ComputeDevice::Cpu && weights > room_bytes {
            report.note(|| {
                let (role, weights, free) = (demand.role, gib(weights), gib(room_bytes));
                format!("{role}: weights of {weights} do not stay in {free} of free memory and are read again and again")
            });
        }
    }
    let share = Share {
        room_bytes: room_bytes / placements.len().max(1) as u64,
        limit: if room.cgroup_limited { HostCacheLimit::CgroupLimit } else { HostCacheLimit::NumaHeadroom },
        arithmetic: arithmetic(room, on_gpu, needs, placements.len()),
    };
    sized
        .into_iter()
        .map(|(placement, pool)| {
            let line = host_cache(input, placement, pool, engines, &share);
            let granted = line.as_ref().map_or(0, |line| line.granted_bytes);
            let memory_bytes = in_host(placement.demand, &pool) + granted;
            (replica(input, placement, pool, memory_bytes, line.as_ref()), line)
        })
        .collect()
}

fn device_pool(placement: &Placement<'_>, host_bytes: u64) -> DevicePool {
    let demand = placement.demand;
    match demand.device {
        ComputeDevice::Cpu => demand.pool.pool(host_bytes.min(demand.pool.cpu_wish_bytes())),
        ComputeDevice::Cuda => {
            // All ranks hold the same KV: the smallest GPU decides.
            let smallest = placement.gpus.iter().map(|gpu| memory_of(gpu)).min().unwrap_or(0);
            demand.pool.pool(gpu_pool_bytes(smallest, demand.weight_bytes_per_rank).unwrap_or(0))
        }
    }
}

/// What one replica of a room may take for its host tier, and how that came about.
struct Share {
    room_bytes: u64,
    limit: HostCacheLimit,
    arithmetic: String,
}

fn arithmetic(room: &Room<'_>, on_gpu: bool, needs: u64, replicas: usize) -> String {
    let source = if room.cgroup_limited { "in the cgroup" } else { "available" };
    let split = if replicas > 1 { format!(" / {replicas} replicas") } else { String::new() };
    format!(
        "{ROOM_SHARE_PERCENT} % of ({} {source} - {} reserve - {} own needs){split}",
        gib(room.available),
        gib(reserve_bytes(room.total, on_gpu)),
        gib(needs),
    )
}

/// The host tier of one replica; nothing where the object says Off.
fn host_cache(
    input: &PlanInput<'_>,
    placement: &Placement<'_>,
    pool: DevicePool,
    engines: u64,
    share: &Share,
) -> Option<HostCacheReport> {
    let cache = &input.spec.host_cache;
    let demand = placement.demand;
    let asked = match cache.mode {
        HostCacheMode::Off => return None,
        HostCacheMode::Size => cache.size.map(|size| size.bytes() / engines.max(1)),
        HostCacheMode::Ratio => cache.ratio.map(|ratio| times(pool.bytes, ratio)),
        HostCacheMode::Auto if demand.device == ComputeDevice::Cpu => {
            return Some(HostCacheReport {
                replica: placement.name(input.name),
                asked_bytes: None,
                granted_bytes: 0,
                ratio: 0.0,
                limited_by: HostCacheLimit::OnCpu,
                message: OFF_ON_CPU.to_owned(),
            });
        }
        HostCacheMode::Auto => None,
    };
    let most = room_share(share.room_bytes);
    let wanted = asked.map_or(most, |asked| asked.min(most));
    let limit = if asked.is_some_and(|asked| asked <= most) { HostCacheLimit::AsAsked } else { share.limit };
    let why = limit_text(placement.room, limit, &share.arithmetic);
    let asked_text =
        asked.map_or_else(|| "asked for what there is".to_owned(), |asked| format!("asked {}", gib(asked)));
    let (granted, limited_by, message) = if wanted >= MIN_RATIO * pool.bytes {
        let page = demand.pool.page_bytes().max(1);
        let granted = wanted / page * page;
        (granted, limit, format!("{asked_text}, granted {}: {why}", gib(granted)))
    } else {
        let (wanted, pool) = (gib(wanted), gib(pool.bytes));
        let possible = match limit {
            HostCacheLimit::AsAsked => String::new(),
            _ => format!(", {wanted} possible ({why})"),
        };
        let message = format!("off: {asked_text}{possible}, less than the device pool of {pool}");
        (0, HostCacheLimit::BelowDevicePool, message)
    };
    Some(HostCacheReport {
        replica: placement.name(input.name),
        asked_bytes: asked,
        granted_bytes: granted,
        ratio: quotient(granted, pool.bytes),
        limited_by,
        message,
    })
}

fn limit_text(room: &Room<'_>, limit: HostCacheLimit, arithmetic: &str) -> String {
    let place = room.numa_node.map_or_else(|| "node".to_owned(), |numa| format!("NUMA node {numa}"));
    match limit {
        HostCacheLimit::AsAsked => "as asked, in whole pages".to_owned(),
        HostCacheLimit::CgroupLimit => format!("{place} cgroup limit, {arithmetic}"),
        HostCacheLimit::NumaHeadroom | HostCacheLimit::BelowDevicePool | HostCacheLimit::OnCpu => {
            format!("{place} headroom, {arithmetic}")
        }
    }
}

fn times(bytes: u64, ratio: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a wish; `as` saturates and the grant is exact"
    )]
    let product = (bytes as f64 * ratio) as u64;
    product
}

fn quotient(granted: u64, pool: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for people, two decimals")]
    let ratio = granted as f64 / pool.max(1) as f64;
    (ratio * 100.0).round() / 100.0
}

fn replica(
    input: &PlanInput<'_>,
    placement: &Placement<'_>,
    device_pool: DevicePool,
    memory_bytes: u64,
    host_cache: Option<&HostCacheReport>,
) -> ReplicaPlan {
    ReplicaPlan {
        name: placement.name(input.name),
        role: placement.demand.role,
        index: placement.index,
        node: placement.room.facts.node.clone(),
        numa_node: placement.room.numa_node,
        device: placement.demand.device,
        gpus: placement.planned_gpus(),
        cpus: placement.cpus.clone(),
        cpus_shared: placement.cpus_shared,
        memory_bytes,
        memory_node: placement.room.numa_node,
        device_pool,
        host_cache_bytes: host_cache.map_or(0, |line| line.granted_bytes),
        host_cache_limit: host_cache.map(|line| line.limited_by),
    }
}
