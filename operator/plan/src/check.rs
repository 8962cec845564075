//! An independent look at a finished plan: nothing here is shared with the steps that made it.
//! In: the plan and its inputs. Out: every violation. Never: repair.
//! Everything is recomputed from the facts, so that a mistake in a step is found and not repeated.

use std::collections::{BTreeMap, BTreeSet};

use engine_spec::host_tier::{GPU_ACTIVATION_BYTES, GPU_SHARE_PERCENT, percent};
use engine_spec::memory::{CacheFormat, weight_bytes_per_rank};
use engine_spec::{PAGE_TOKENS, Precision, Role};
use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::NumaMode;
use node_facts::{Gpu, GpuHealth, Mig, NodeFacts};

use crate::engine_config::index_keys;
use crate::keep::kept;
use crate::plan::{ComputeDevice, Plan, PlanInput, ReplicaPlan};
use crate::report::{Planned, gib, place};

/// Something that must not be in a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{0}: its node {1:?} has no facts, or several")]
    UnknownNode(String, String),
    #[error("{role} has replicas {found:?}; the spec asks for {expected}")]
    ReplicaCount { role: Role, found: Vec<u32>, expected: u32 },
    #[error("{0}: GPU {1} is not on node {2}, or cannot be used")]
    UnusableGpu(String, String, String),
    #[error("{0}: GPU {1} is also given to another replica")]
    GpuTwice(String, String),
    #[error("{0} has {1} GPUs; the spec asks for {2}")]
    GpuCount(String, usize, i32),
    #[error("{0}: {1} is not on NUMA node {2}")]
    OtherNuma(String, String, u32),
    #[error("{0} spans NUMA nodes, which placement.numa forbids")]
    SpansNuma(String),
    #[error("{0} has no CPU")]
    NoCpu(String),
    #[error("{0}: CPU {1} is not on its node, or is another replica's own")]
    Cpu(String, u32),
    #[error("{0}: replicas are promised {promised}, {available} is available", promised = gib(*.1), available = gib(*.2))]
    Memory(String, u64, u64),
    #[error("{0}: GPU {1} has {has}, a rank takes {takes}", has = gib(*.2), takes = gib(*.3))]
    GpuMemory(String, String, u64, u64),
    #[error(
        "{0}: the device pool does not hold one request of {1} tokens, or has other bytes than its pages and slots"
    )]
    DevicePool(String, u32),
    #[error("{0}: the host tier is not whole pages, or not within the replica's memory")]
    HostCache(String),
    #[error("the queue limit has a zero: {0} tokens, {1} requests, {2} ms")]
    QueueLimit(u64, u32, u64),
}

/// Everything that is wrong with a plan; a plan without replicas is right.
pub fn check(input: &PlanInput<'_>, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    check_limits(plan, &mut found);
    if plan.replicas.is_empty() {
        return found;
    }
    check_counts(input, plan, &mut found);
    let mut nodes: BTreeMap<&str, Option<&NodeFacts>> = BTreeMap::new();
    for facts in input.nodes {
        nodes.entry(&facts.node).and_modify(|known| *known = None).or_insert(Some(facts));
    }
    // Per number of ranks, once: many replicas have the same.
    let ranks: BTreeSet<usize> = plan.replicas.iter().map(|replica| replica.gpus.len().max(1)).collect();
    let rank_bytes = ranks
        .into_iter()
        .map(|ranks| (ranks, weight_bytes_per_rank(input.shape, ranks) + GPU_ACTIVATION_BYTES));
    let rank_bytes: BTreeMap<usize, u64> = rank_bytes.collect();
    let stays = staying(input);
    for replica in plan.replicas.iter().filter(|replica| !stays.contains(replica.name.as_str())) {
        match nodes.get(replica.node.as_str()).copied().flatten() {
            None => found.push(Violation::UnknownNode(replica.name.clone(), replica.node.clone())),
            Some(facts) => {
                let rank_bytes = rank_bytes.get(&replica.gpus.len().max(1)).copied().unwrap_or(u64::MAX);
                check_replica(input, replica, facts, rank_bytes, &mut found);
                check_pool(input, plan, replica, &mut found);
            }
        }
    }
    check_shared(plan, &stays, &mut found);
    check_memory(input, plan, &stays, &nodes, &mut found);
    found
}

/// Replicas that were taken over as they run: facts may have changed under them, and they are left alone.
fn staying<'a>(input: &PlanInput<'a>) -> BTreeSet<&'a str> {
    kept(input).into_iter().map(|present| present.replica.name.as_str()).collect()
}

/// Takes a plan back that does not pass, and says why.
pub(crate) fn withdraw_if_wrong(input: &PlanInput<'_>, mut planned: Planned) -> Planned {
    let violations = check(input, &planned.plan);
    if !violations.is_empty() {
        planned.plan.replicas.clear();
        planned.report.host_cache.clear();
        let text: Vec<String> = violations.iter().take(4).map(ToString::to_string).collect();
        let message = format!("the plan does not pass its check: {}", text.join("; "));
        planned.report.refuse(Reason::NotFeasible, message);
    }
    planned
}

fn check_limits(plan: &Plan, found: &mut Vec<Violation>) {
    let limit = &plan.queue_limit;
    let tokens = limit.tokens.unwrap_or(1);
    if tokens == 0 || limit.requests == 0 || limit.time_to_first_token_ms == 0 {
        found.push(Violation::QueueLimit(tokens, limit.requests, limit.time_to_first_token_ms));
    }
}

fn check_counts(input: &PlanInput<'_>, plan: &Plan, found: &mut Vec<Violation>) {
    let prefill = u32::try_from(input.spec.prefill_replicas()).unwrap_or(0);
    let decode = u32::try_from(input.spec.decode.replicas).unwrap_or(0);
    let (decode, unified) = if prefill > 0 { (decode, 0) } else { (0, decode) };
    let expected =
        [(Role::Prefill, prefill), (Role::Decode, decode), (Role::Unified, unified), (Role::Router, 0)];
    for (role, expected) in expected {
        let indices: Vec<u32> = plan.replicas.iter().filter(|r| r.role == role).map(|r| r.index).collect();
        if !indices.iter().copied().eq(0..expected) {
            found.push(Violation::ReplicaCount { role, found: indices, expected });
        }
    }
}

fn check_replica(
    input: &PlanInput<'_>,
    replica: &ReplicaPlan,
    facts: &NodeFacts,
    rank_bytes: u64,
    found: &mut Vec<Violation>,
) {
    let name = || replica.name.clone();
    let asked = match replica.role {
        Role::Prefill => input.spec.prefill.as_ref().map_or(0, |prefill| prefill.gpus),
        Role::Decode | Role::Unified | Role::Router => input.spec.decode.gpus,
    };
    if i32::try_from(replica.gpus.len()) != Ok(asked) {
        found.push(Violation::GpuCount(name(), replica.gpus.len(), asked));
    }
    let several = facts.numa.value().is_some_and(|numa| numa.len() > 1);
    if replica.numa_node.is_none() && several && input.spec.placement.numa == NumaMode::Required {
        found.push(Violation::SpansNuma(name()));
    }
    for gpu in &replica.gpus {
        let known = facts.gpus.value().into_iter().flatten().find(|known| known.uuid == gpu.uuid);
        match known.filter(|known| usable(known)) {
            None => found.push(Violation::UnusableGpu(name(), gpu.uuid.clone(), facts.node.clone())),
            Some(known) => check_gpu(replica, known, several, rank_bytes, found),
        }
    }
    check_cpus(replica, facts, found);
    if let (Some(memory), Some(numa)) = (replica.memory_node, replica.numa_node)
        && memory != numa
    {
        found.push(Violation::OtherNuma(name(), format!("memory node {memory}"), numa));
    }
}

fn usable(gpu: &Gpu) -> bool {
    !matches!(gpu.health.value(), Some(GpuHealth::Lost { .. }))
        && gpu.mig.value() != Some(&Mig::On)
        && gpu.memory_total.value().is_some()
}

fn check_gpu(replica: &ReplicaPlan, gpu: &Gpu, several: bool, rank_bytes: u64, found: &mut Vec<Violation>) {
    if let Some(numa) = replica.numa_node
        && several
        && gpu.numa_node.value() != Some(&numa)
    {
        found.push(Violation::OtherNuma(replica.name.clone(), format!("GPU {}", gpu.uuid), numa));
    }
    if replica.device == ComputeDevice::Cuda {
        let has = gpu.memory_total.value().copied().unwrap_or(0);
        let takes = rank_bytes.saturating_add(replica.device_pool.bytes);
        if takes > percent(has, GPU_SHARE_PERCENT) {
            found.push(Violation::GpuMemory(replica.name.clone(), gpu.uuid.clone(), has, takes));
        }
    }
}

fn check_cpus(replica: &ReplicaPlan, facts: &NodeFacts, found: &mut Vec<Violation>) {
    let numa = replica.numa_node.and_then(|number| facts.numa.value()?.get(&number));
    let home = numa.map_or(&facts.cpus, |numa| &numa.cpus);
    if replica.cpus.is_empty() {
        found.push(Violation::NoCpu(replica.name.clone()));
    }
    for cpu in &replica.cpus {
        if !home.value().is_some_and(|cpus| cpus.contains(cpu)) {
            found.push(Violation::Cpu(replica.name.clone(), *cpu));
        }
    }
}

fn check_pool(input: &PlanInput<'_>, plan: &Plan, replica: &ReplicaPlan, found: &mut Vec<Violation>) {
    let format = CacheFormat { precision: Precision::default(), index_keys: index_keys(input.spec) };
    let pool = replica.device_pool;
    let bytes = format.pool_bytes(input.shape, pool.pages as usize, pool.slots as usize) as u64;
    let tokens = u64::from(pool.pages) * PAGE_TOKENS as u64;
    if pool.slots == 0 || tokens < u64::from(plan.context_tokens) || bytes != pool.bytes {
        found.push(Violation::DevicePool(replica.name.clone(), plan.context_tokens));
    }
    let page = format.page_bytes(input.shape) as u64;
    let in_host =
        replica.host_cache_bytes + if replica.device == ComputeDevice::Cpu { pool.bytes } else { 0 };
    if !replica.host_cache_bytes.is_multiple_of(page.max(1)) || replica.memory_bytes <= in_host {
        found.push(Violation::HostCache(replica.name.clone()));
    }
}

/// What replicas must not have in common.
fn check_shared(plan: &Plan, stays: &BTreeSet<&str>, found: &mut Vec<Violation>) {
    let mut gpus = BTreeSet::new();
    let mut cpus: BTreeMap<&str, BTreeMap<u32, bool>> = BTreeMap::new();
    for replica in &plan.replicas {
        let node = replica.node.as_str();
        for gpu in replica.gpus.iter().filter(|gpu| !gpus.insert(gpu.uuid.as_str())) {
            found.push(Violation::GpuTwice(replica.name.clone(), gpu.uuid.clone()));
        }
        let owners = cpus.entry(node).or_default();
        // One that stays and computes on the CPU makes room for others.
        let stays = stays.contains(replica.name.as_str());
        let shares = replica.cpus_shared || (stays && replica.device == ComputeDevice::Cpu);
        for cpu in &replica.cpus {
            // A CPU may have several owners only when all of them say so.
            let before = owners.insert(*cpu, shares);
            if before.is_some_and(|shared| !shared || !shares) {
                found.push(Violation::Cpu(replica.name.clone(), *cpu));
            }
        }
    }
}

/// What is newly promised must be available, beside what is promised already.
fn check_memory(
    input: &PlanInput<'_>,
    plan: &Plan,
    stays: &BTreeSet<&str>,
    nodes: &BTreeMap<&str, Option<&NodeFacts>>,
    found: &mut Vec<Violation>,
) {
    let mut promised: BTreeMap<(&str, Option<u32>), u64> = BTreeMap::new();
    for replica in plan.replicas.iter().filter(|replica| !stays.contains(replica.name.as_str())) {
        let node = replica.node.as_str();
        for place in BTreeSet::from([(node, replica.numa_node), (node, None)]) {
            let sum = promised.entry(place).or_default();
            *sum = sum.saturating_add(replica.memory_bytes);
        }
    }
    for taken in &input.surroundings.taken {
        for place in BTreeSet::from([(taken.node.as_str(), taken.numa_node), (taken.node.as_str(), None)]) {
            promised.entry(place).and_modify(|sum| *sum = sum.saturating_add(taken.untouched_bytes));
        }
    }
    for ((node, numa), promised) in promised {
        let Some(facts) = nodes.get(node).copied().flatten() else { continue };
        let available = available(facts, numa, plan);
        if promised > available {
            found.push(Violation::Memory(place(node, numa), promised, available));
        }
    }
}

/// What a NUMA node has; for a whole machine the cgroup's limit, and what the machine has if replicas span it.
fn available(facts: &NodeFacts, numa: Option<u32>, plan: &Plan) -> u64 {
    if let Some(number) = numa {
        let numa = facts.numa.value().and_then(|numa| numa.get(&number));
        return numa.and_then(|numa| numa.memory.value()).map_or(0, |memory| memory.available);
    }
    let limit = facts.cgroup_memory_limit.value().copied().unwrap_or(u64::MAX);
    let spans = plan.replicas.iter().any(|replica| replica.node == facts.node && replica.numa_node.is_none());
    let machine = facts.memory.value().map_or(0, |memory| memory.available);
    if spans { machine.min(limit) } else { limit }
}
