//! The tables of a status: plan, host tier, queue limit, columns.
//! In: plan and report, pods. Out: the API's types. Never: a figure that neither plan nor engines gave.

use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::{
    AchievedPart, AchievedState, AchievedStatus, HostCacheStatus, PlanStatus, QueueLimitStatus,
    RejectedStatus, ReplicaStatus, SummaryStatus,
};
use fathom_crds::{InferenceClusterStatus, Quantity};
use operator_plan::{Mode, Planned, QueueLimit, Rejected, ReplicaPlan, cpu_list, gib, thousands};

use super::achieved::achieved;
use super::roles::RoleCounts;
use super::running::Running;
use super::{Effect, Observed};

/// Rejected places that a status lists.
pub(super) const MAX_REJECTED: usize = 32;

/// Engine pods that a status lists.
const MAX_REPLICAS: usize = 1024;

/// Notes that a status lists.
const MAX_NOTES: usize = 32;

/// The plan of the spec; what runs says beside it what was achieved.
pub(super) fn plan(
    observed: &Observed<'_>,
    running: &Running<'_>,
    planned: &Planned,
    before: &InferenceClusterStatus,
) -> PlanStatus {
    let report = &planned.report;
    let replicas = planned.plan.replicas.iter().take(MAX_REPLICAS);
    let replicas: Vec<_> =
        replicas.map(|replica| replica_status(observed, running, replica, before)).collect();
    // Where all stay no place was looked at: what was said when they were placed is still why they are there.
    let all_stay = report.kept > 0 && report.kept as usize == planned.plan.replicas.len();
    if let Some(told) = before.plan.as_ref().filter(|told| all_stay && tells_of(told, &replicas, before)) {
        return PlanStatus { replicas, ..told.clone() };
    }
    PlanStatus {
        replicas,
        rejected: report.rejected.iter().take(MAX_REJECTED).map(rejected).collect(),
        rejected_total: i32::try_from(report.rejected_total).unwrap_or(i32::MAX),
        notes: report.notes.iter().take(MAX_NOTES).cloned().collect(),
    }
}

/// Whether an earlier table says why these replicas are where they are. One without replicas tells of a wish that fitted
/// nowhere, one of mode Plan of a wish that may never have been carried out.
fn tells_of(told: &PlanStatus, replicas: &[ReplicaStatus], before: &InferenceClusterStatus) -> bool {
    let plan_only = Reason::PlanOnly.to_string();
    if before.conditions.iter().any(|condition| condition.reason == plan_only) {
        let place = |replica: &ReplicaStatus| (replica.name.clone(), replica.node.clone(), replica.numa_node);
        return told.replicas.iter().map(place).eq(replicas.iter().map(place));
    }
    !told.replicas.is_empty()
}

fn replica_status(
    observed: &Observed<'_>,
    running: &Running<'_>,
    replica: &ReplicaPlan,
    before: &InferenceClusterStatus,
) -> ReplicaStatus {
    let shared = if replica.cpus_shared { " shared" } else { "" };
    let effect = observed.effect.as_ref();
    // In mode Plan the table shows a plan that is not carried out: only what is the same in both runs.
    let runs = running.of_replica(&replica.name).filter(|(_, planned)| *planned == replica);
    let runs = effect.zip(runs);
    let claims = |effect: &Effect<'_>| matches!(effect.enforcement.mode, Mode::Dra { .. });
    let planned = ReplicaStatus {
        name: replica.name.clone(),
        node: replica.node.clone(),
        numa_node: replica.numa_node.and_then(|numa| i32::try_from(numa).ok()),
        gpus: replica.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        cpus: format!("{}{shared}", cpu_list(&replica.cpus)),
        memory: Quantity::from_bytes(replica.memory_bytes).to_string(),
        claim: runs
            .filter(|(effect, _)| claims(effect) && !replica.gpus.is_empty())
            .map(|(_, (pod, _))| pod.name().to_owned()),
        achieved: None,
    };
    let Some((effect, (pod, replica))) = runs else { return planned };
    let mut found = achieved(observed, effect, pod, replica);
    if pod.is_ready() && !observed.gathered.engines.contains_key(pod.name()) {
        keep_what_the_engine_said(&mut found, &planned, before);
    }
    ReplicaStatus { achieved: Some(found), ..planned }
}

/// An operator that starts has not asked the engines yet: what they told the last one about the same plan still holds.
fn keep_what_the_engine_said(
    found: &mut AchievedStatus,
    planned: &ReplicaStatus,
    before: &InferenceClusterStatus,
) {
    let same = |old: &&ReplicaStatus| ReplicaStatus { achieved: None, ..(*old).clone() } == *planned;
    let old = before.plan.as_ref().and_then(|plan| plan.replicas.iter().find(same));
    let Some(old) = old.and_then(|old| old.achieved.as_ref()) else { return };
    let keep = |part: &mut Option<AchievedPart>, old: &Option<AchievedPart>| {
        let is_unknown = part.as_ref().is_some_and(|part| part.state == AchievedState::Unknown);
        if is_unknown && old.is_some() {
            part.clone_from(old);
        }
    };
    keep(&mut found.cpus, &old.cpus);
    keep(&mut found.memory, &old.memory);
}

fn rejected(rejected: &Rejected) -> RejectedStatus {
    RejectedStatus {
        node: rejected.node.clone(),
        numa_node: rejected.numa_node.and_then(|numa| i32::try_from(numa).ok()),
        roles: rejected.roles.iter().map(ToString::to_string).collect(),
        reason: rejected.reason.to_string(),
        message: rejected.message.clone(),
    }
}

/// One line for each engine pod whose host tier was asked for.
pub(super) fn host_cache(planned: &Planned) -> Vec<HostCacheStatus> {
    let lines = planned.report.host_cache.iter().take(MAX_REPLICAS);
    lines
        .map(|line| HostCacheStatus {
            replica: line.replica.clone(),
            asked: line.asked_bytes.map(|bytes| Quantity::from_bytes(bytes).to_string()),
            granted: Quantity::from_bytes(line.granted_bytes).to_string(),
            ratio: line.ratio,
            limited_by: Some(format!("{:?}", line.limited_by)),
            message: line.message.clone(),
        })
        .collect()
}

/// The queue limit of the plan, or, where it is measured at start, what the engines say that it came to.
pub(super) fn queue_limit(
    observed: &Observed<'_>,
    limit: &QueueLimit,
    before: &InferenceClusterStatus,
) -> QueueLimitStatus {
    let requests = i32::try_from(limit.requests).unwrap_or(i32::MAX);
    let planned = limit.tokens.and_then(|tokens| i64::try_from(tokens).ok());
    let measured = if planned.is_none() { measured(observed) } else { None };
    let derivation = match measured {
        Some((_, speed)) => format!(
            "measured at start: {} tokens/s at the slowest of those that compute prompts; {}",
            thousands(speed),
            limit.derivation
        ),
        None if limit.given => "the object's own limit".to_owned(),
        None => limit.derivation.clone(),
    };
    let tokens = planned.or(measured.map(|(tokens, _)| tokens));
    match &before.queue_limit {
        // Nobody was asked yet since this operator started.
        Some(old) if tokens.is_none() && observed.gathered.engines.is_empty() && old.requests == requests => {
            old.clone()
        }
        _ => QueueLimitStatus { tokens, requests, derivation },
    }
}

/// The smallest limit that an engine measured, and its speed.
fn measured(observed: &Observed<'_>) -> Option<(i64, u64)> {
    let computes_prompts = |role: &str| role == "prefill" || role == "unified";
    let engines = observed.gathered.engines.values();
    let engines = engines.filter(|info| info["role"].as_str().is_some_and(computes_prompts));
    let limits = engines.filter_map(|info| {
        let admission = &info["admission"];
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "for people; `as` saturates"
        )]
        let speed = admission["prefillTokensPerSecond"].as_f64()?.round() as u64;
        Some((admission["limitTokens"].as_i64()?, speed))
    });
    limits.min()
}

/// The figures of the printed columns.
pub(super) fn summary(
    counts: &RoleCounts,
    placement: Option<&str>,
    planned: Option<&Planned>,
) -> SummaryStatus {
    let granted: u64 =
        planned.map_or(0, |planned| planned.report.host_cache.iter().map(|line| line.granted_bytes).sum());
    SummaryStatus {
        prefill: counts.prefill.to_string(),
        decode: counts.decode.to_string(),
        router: counts.router.to_string(),
        placement: placement.unwrap_or("-").to_owned(),
        host_cache: if granted == 0 { "off".to_owned() } else { gib(granted) },
    }
}
