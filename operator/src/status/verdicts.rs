//! What each condition says.
//! In: everything seen, counted and found wrong. Out: one [`Verdict`] a condition.
//! Never: an empty message; a message that changes while nothing does.

use std::collections::BTreeSet;

use fathom_crds::conditions::{ConditionType, Reason};
use fathom_crds::inference_cluster::{
    AchievedState, InferenceClusterStatus, MemoryBinding, NumaMode, ReplicaStatus, RolloutMode,
};
use operator_plan::{Planned, STALE_AFTER_MS};

use super::condition::{State, Verdict};
use super::roles::RoleCounts;
use super::trouble::Trouble;
use super::{Effect, Intent, Observed};
use crate::question;

use ConditionType as Kind;
use State::{False, True, Unknown};

/// What the verdicts are made from.
pub(super) struct Seen<'a> {
    pub(super) observed: &'a Observed<'a>,
    pub(super) counts: RoleCounts,
    pub(super) troubles: &'a [Trouble],
    /// The plan's table, with what was achieved.
    pub(super) replicas: &'a [ReplicaStatus],
    pub(super) before: &'a InferenceClusterStatus,
}

/// One verdict for each condition.
pub(super) fn all(seen: &Seen<'_>) -> Vec<Verdict> {
    let accepted = accepted(seen);
    let planned = planned(seen);
    let routable = routable(seen);
    let roles_ready = roles_ready(seen);
    let progressing = progressing(seen);
    let ready = ready(seen, [&accepted, &planned, &progressing, &roles_ready, &routable]);
    let (placed, degraded) = (placement(seen), degraded(seen));
    vec![accepted, planned, placed, progressing, roles_ready, routable, degraded, ready]
}

fn accepted(seen: &Seen<'_>) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::Accepted, state, reason, message);
    if let Intent::Refused { reason, message } = seen.observed.intent {
        return say(False, reason, message.to_owned());
    }
    let taken = seen.observed.effect.map_or(&[][..], |effect| effect.outcome.taken_names.as_slice());
    if let Some((first, others)) = taken.split_first() {
        let others = others.iter().map(|name| format!(", {name}")).collect::<String>();
        let message = format!(
            "taken by somebody else, and left alone: {first}{others}. Remove or rename what is there, or give this InferenceCluster another name"
        );
        return say(False, Reason::NameTaken, message);
    }
    say(True, Reason::AsExpected, "the object is understood, and its names are free".to_owned())
}

fn planned(seen: &Seen<'_>) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::Planned, state, reason, message);
    let (planned, enforcement) = match seen.observed.intent {
        Intent::Refused { reason, .. } => {
            return say(Unknown, reason, "not planned, because the object was not accepted".to_owned());
        }
        Intent::Planned { planned, enforcement } => (planned, enforcement),
    };
    if let Some((first, others)) = planned.report.refusals.split_first() {
        let others = others.iter().map(|refusal| format!("; {}", refusal.message)).collect::<String>();
        let rejected = &planned.report.rejected;
        let places = match (planned.report.rejected_total, rejected.first()) {
            (0, _) => String::new(),
            (1, Some(only)) => format!("; the only place is {}: {}", only.place(), only.message),
            (n, _) => format!("; {n} places were looked at, status.plan.rejected says why not each"),
        };
        return say(False, first.reason, format!("{}{others}{places}", first.message));
    }
    if let Err(lacking) = enforcement {
        return say(False, Reason::ModeNotOffered, lacking.to_owned());
    }
    let stale = stale_nodes(seen.observed, planned);
    if !stale.is_empty() {
        let message = format!(
            "every replica has its place; the agents of {} are silent: what runs there stays, nothing new is placed",
            stale.join(", ")
        );
        return say(True, Reason::FactsStale, message);
    }
    if planned.plan.replicas.is_empty() {
        return say(True, Reason::ScaledToZero, "no replica asks for a place".to_owned());
    }
    say(
        True,
        Reason::AsExpected,
        format!("{} engine replicas have their places", planned.plan.replicas.len()),
    )
}

/// Nodes of the plan whose facts are old; no ages, they would change with every look.
fn stale_nodes<'a>(observed: &Observed<'a>, planned: &'a Planned) -> Vec<&'a str> {
    let Some(nodes) = &observed.gathered.surroundings.nodes else { return Vec::new() };
    let is_stale = |node: &str| {
        let age = nodes.get(node).and_then(|state| state.facts_age_ms);
        age.is_none_or(|age| age > STALE_AFTER_MS)
    };
    let mut stale: Vec<&str> = planned.plan.replicas.iter().map(|replica| replica.node.as_str()).collect();
    stale.sort_unstable();
    stale.dedup();
    stale.retain(|node| is_stale(node));
    stale
}

fn placement(seen: &Seen<'_>) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::PlacementSatisfied, state, reason, message);
    let told = |reason| seen.troubles.iter().find(|trouble| trouble.reason == reason);
    if let Some(trouble) = told(Reason::GpuLost).or_else(|| told(Reason::TopologyRejected)) {
        return say(False, trouble.reason, trouble.message.clone());
    }
    let Some(effect) = &seen.observed.effect else {
        return say(Unknown, Reason::NotKnownYet, "nothing runs yet".to_owned());
    };
    if !effect.planned.is_feasible() {
        return say(Unknown, Reason::NotKnownYet, "what runs belongs to an earlier plan".to_owned());
    }
    if seen.counts.is_zero() {
        return say(True, Reason::ScaledToZero, "no pod needs a place".to_owned());
    }
    let refused = parts(seen, AchievedState::Refused);
    if !refused.is_empty() {
        let message = format!("{}. {}", refused.join("; "), what_refusal_means(effect));
        return say(False, Reason::NotAchieved, message);
    }
    let unknown = parts(seen, AchievedState::Unknown);
    let running = seen.replicas.iter().filter(|replica| replica.achieved.is_some()).count();
    if !unknown.is_empty() || running < seen.replicas.len() {
        let waiting = seen.replicas.len() - running;
        let message = match unknown.first() {
            Some(first) => format!("{first}{}", others(unknown.len())),
            None => format!("{waiting} of {} pods do not run yet", seen.replicas.len()),
        };
        return say(Unknown, Reason::NotKnownYet, message);
    }
    let mode = effect.enforcement.mode.name();
    let message = match parts(seen, AchievedState::NotAsked).first() {
        None => format!("GPUs, CPUs and memory are where the plan says (mode {mode})"),
        Some(first) => format!("all that the plan binds is where it says (mode {mode}); not bound: {first}"),
    };
    say(True, Reason::AsExpected, message)
}

/// `flash-prefill-0 memory: why`, for every part in this state.
fn parts(seen: &Seen<'_>, state: AchievedState) -> Vec<String> {
    let mut found = Vec::new();
    for replica in seen.replicas {
        let Some(achieved) = &replica.achieved else { continue };
        let named = [("GPUs", &achieved.gpus), ("CPUs", &achieved.cpus), ("memory", &achieved.memory)];
        for (name, part) in named {
            if let Some(part) = part.as_ref().filter(|part| part.state == state) {
                let why = part.message.as_deref().unwrap_or("no reason given");
                found.push(format!("{} {name}: {why}", replica.name));
            }
        }
    }
    found
}

fn what_refusal_means(effect: &Effect<'_>) -> &'static str {
    if requires_binding(effect) {
        "The spec requires it, so these pods stay not ready: free the place, or ask for Preferred"
    } else {
        "The spec does not require it, so these pods serve, perhaps more slowly than planned"
    }
}

/// Whether engines stay not ready where binding is refused.
pub(super) fn requires_binding(effect: &Effect<'_>) -> bool {
    let placement = &effect.spec.placement;
    placement.numa == NumaMode::Required || placement.memory_binding == MemoryBinding::Required
}

fn progressing(seen: &Seen<'_>) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::Progressing, state, reason, message);
    let observed = seen.observed;
    let plan_only = is_plan_only(seen);
    if let Some(failure) = observed.failure {
        return say(True, Reason::ApplyFailed, format!("{failure}; it is tried again"));
    }
    let Some(effect) = &observed.effect else {
        let message = if plan_only {
            "rollout.mode is Plan: the plan is in the status, and nothing is carried out"
        } else {
            "nothing is carried out; Accepted and Planned say why"
        };
        let reason = if plan_only { Reason::PlanOnly } else { root_reason(seen) };
        return say(False, reason, message.to_owned());
    };
    if !effect.planned.is_feasible() {
        let message = "the spec fits nowhere, so what runs stays as it is; Planned says what is missing";
        return say(False, root_reason(seen), message.to_owned());
    }
    let updated = seen.counts.is_updated() && effect.outcome.waiting.is_empty();
    if let Some(trouble) = seen.troubles.iter().find(|trouble| trouble.stuck)
        && !(updated && seen.counts.is_ready())
    {
        return say(False, trouble.reason, trouble.message.clone());
    }
    if !updated || !seen.counts.is_ready() {
        let hint = seen.troubles.iter().find(|trouble| !trouble.stuck);
        let reason = hint.map_or(Reason::Applying, |trouble| trouble.reason);
        return say(True, reason, progress(seen, effect, hint));
    }
    if plan_only {
        let message = "rollout.mode is Plan: what runs is kept as it is, and the new plan is in the status";
        return say(False, Reason::PlanOnly, message.to_owned());
    }
    if seen.counts.is_zero() {
        return say(False, Reason::ScaledToZero, "no engine pod is asked for".to_owned());
    }
    say(False, Reason::AsExpected, "everything asked for is there".to_owned())
}

/// `updated 1 of 3 pods; pod flash-decode-0-ab12c is ending`.
fn progress(seen: &Seen<'_>, effect: &Effect<'_>, hint: Option<&Trouble>) -> String {
    let roles = seen.counts.all();
    let wanted: usize = roles.iter().map(|(_, count)| count.wanted).sum();
    let current: usize = roles.iter().map(|(_, count)| count.current.min(count.wanted)).sum();
    let ready: usize = roles.iter().map(|(_, count)| count.ready.min(count.wanted)).sum();
    let mut message = format!("updated {current} of {wanted} pods, {ready} ready");
    if seen.counts.outdated > 0 {
        message.push_str(&format!(", {} of an earlier revision or plan", seen.counts.outdated));
    }
    for waiting in effect.outcome.waiting.iter().take(3) {
        message.push_str(&format!("; {waiting}"));
    }
    if let Some(hint) = hint {
        message.push_str(&format!("; {}", hint.message));
    }
    message
}

fn roles_ready(seen: &Seen<'_>) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::RolesReady, state, reason, message);
    let Some(effect) = &seen.observed.effect else {
        return say(False, root_reason(seen), "nothing is carried out, so no pod is there".to_owned());
    };
    if !effect.planned.is_feasible() {
        let roles = seen.counts.all().map(|(role, count)| format!("{role} {count}")).join(", ");
        return say(False, root_reason(seen), format!("ready, of an earlier plan: {roles}"));
    }
    if seen.counts.is_zero() {
        return say(True, Reason::ScaledToZero, "no engine pod is asked for".to_owned());
    }
    if seen.counts.is_ready() {
        let roles = seen.counts.all().map(|(role, count)| format!("{role} {count}")).join(", ");
        return say(True, Reason::AsExpected, roles);
    }
    let lacking = seen.counts.lacking();
    match seen.troubles.first() {
        Some(trouble) => say(False, trouble.reason, format!("ready: {lacking}; {}", trouble.message)),
        None => say(
            False,
            Reason::PodsNotReady,
            format!("ready: {lacking}; `kubectl describe pod` of the others says what they wait for"),
        ),
    }
}

fn routable(seen: &Seen<'_>) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::Routable, state, reason, message);
    let Some(effect) = &seen.observed.effect else {
        return say(False, Reason::NotRoutable, "no pods are there that could answer".to_owned());
    };
    let counts = &seen.counts;
    if !effect.planned.is_feasible() {
        return if any_serves(seen) {
            say(True, Reason::Applying, "pods of an earlier plan answer".to_owned())
        } else {
            say(False, Reason::NotRoutable, "the pods of the earlier plan do not answer".to_owned())
        };
    }
    if counts.is_zero() {
        return say(False, Reason::ScaledToZero, "no engine pod is asked for".to_owned());
    }
    let missing = counts
        .all()
        .into_iter()
        .find(|(role, count)| count.ready == 0 && (count.wanted > 0 || *role != "prefill"));
    if let Some((role, _)) = missing {
        if any_serves(seen) {
            let message = "pods of an earlier revision answer while new ones are made";
            return say(True, Reason::Applying, message.to_owned());
        }
        return say(False, Reason::NotRoutable, format!("no {role} pod is ready"));
    }
    let revision = &effect.planned.plan.revision;
    let ready_set = question::ready_set(&seen.observed.gathered.live, revision);
    let answer = seen.observed.answered.filter(|answer| answer.revision == *revision);
    match answer {
        Some(answer) if answer.ready_set == ready_set && answer.ok => {
            say(True, Reason::AsExpected, format!("revision {revision} answers requests"))
        }
        Some(answer) if answer.ready_set == ready_set => {
            say(False, Reason::NotRoutable, format!("the last question failed: {}", answer.message))
        }
        // The ready pods changed a moment ago, and the next question is on its way: no verdict is better than two.
        Some(answer) if answer.ok => {
            say(True, Reason::AsExpected, format!("revision {revision} answers requests"))
        }
        _ if was_routable(seen, revision) => {
            say(True, Reason::AsExpected, format!("revision {revision} answers requests"))
        }
        _ => say(Unknown, Reason::NotAsked, format!("revision {revision} has not been asked yet")),
    }
}

/// Whether pods of one revision, whichever it is, can still answer: a router and an engine pod for each part of a request
/// are ready, and requests came through when somebody looked last.
fn any_serves(seen: &Seen<'_>) -> bool {
    let live = &seen.observed.gathered.live;
    let ready: Vec<_> = live.staying().filter(|pod| pod.is_ready()).collect();
    let has = |role: &str, revision: &str| {
        ready.iter().any(|pod| *pod.content.role == *role && *pod.content.revision == *revision)
    };
    let pairs =
        |revision: &str| has("unified", revision) || (has("prefill", revision) && has("decode", revision));
    let revisions: BTreeSet<&str> =
        ready.iter().filter(|pod| !pod.is_router()).map(|pod| &*pod.content.revision).collect();
    let is_whole = ready.iter().any(|pod| pod.is_router()) && revisions.into_iter().any(pairs);
    is_whole && is_true(seen.before, Kind::Routable)
}

fn is_true(status: &InferenceClusterStatus, kind: ConditionType) -> bool {
    let name = kind.to_string();
    status.conditions.iter().any(|condition| condition.type_ == name && condition.status == "True")
}

/// Whether this revision was routable when an operator looked last: a new operator believes it until it has asked.
fn was_routable(seen: &Seen<'_>, revision: &str) -> bool {
    seen.before.current_revision.as_deref() == Some(revision)
        && seen.observed.answered.is_none()
        && is_true(seen.before, Kind::Routable)
}

fn degraded(seen: &Seen<'_>) -> Verdict {
    let troubles: Vec<&Trouble> = seen
        .troubles
        .iter()
        .filter(|trouble| !matches!(trouble.reason, Reason::ClaimPending | Reason::Unschedulable))
        .collect();
    let Some(first) = troubles.first() else {
        return Verdict::new(
            Kind::Degraded,
            False,
            Reason::AsExpected,
            "nothing works less well than planned",
        );
    };
    let listed: Vec<&str> = troubles.iter().take(4).map(|trouble| trouble.message.as_str()).collect();
    let left = troubles.len() - listed.len();
    let left = if left > 0 { format!("; and {left} more") } else { String::new() };
    Verdict::new(Kind::Degraded, True, first.reason, format!("{}{left}", listed.join("; ")))
}

/// Ready speaks of what runs: in mode Plan an impossible new spec does not take it away.
fn ready(seen: &Seen<'_>, [accepted, planned, progressing, roles, routable]: [&Verdict; 5]) -> Verdict {
    let say = |state, reason, message: String| Verdict::new(Kind::Ready, state, reason, message);
    let because = |verdict: &Verdict| say(False, verdict.reason, verdict.message.clone());
    let plan_only = is_plan_only(seen);
    if seen.observed.effect.is_none() {
        return match (accepted.is_true(), planned.is_true()) {
            (false, _) => because(accepted),
            (true, false) => because(planned),
            (true, true) if plan_only => {
                say(False, Reason::PlanOnly, "rollout.mode is Plan: nothing is carried out".to_owned())
            }
            (true, true) => say(False, Reason::Applying, "nothing is carried out yet".to_owned()),
        };
    }
    if !accepted.is_true() && accepted.reason == Reason::NameTaken {
        return because(accepted);
    }
    let is_wanted = accepted.is_true() && planned.is_true();
    if !plan_only && !is_wanted {
        return because(if accepted.is_true() { planned } else { accepted });
    }
    if seen.counts.is_zero() {
        return say(
            False,
            Reason::ScaledToZero,
            "no engine pod is asked for, so nothing can answer".to_owned(),
        );
    }
    if !seen.counts.is_updated() {
        return because(progressing);
    }
    if !roles.is_true() {
        return because(roles);
    }
    match routable.state {
        True => say(True, Reason::AsExpected, routable.message.clone()),
        other => say(other, routable.reason, routable.message.clone()),
    }
}

/// Why nothing is carried out.
fn root_reason(seen: &Seen<'_>) -> Reason {
    match seen.observed.intent {
        Intent::Refused { reason, .. } => reason,
        Intent::Planned { planned, enforcement } => match planned.report.refusals.first() {
            Some(refusal) => refusal.reason,
            None if enforcement.is_err() => Reason::ModeNotOffered,
            None if is_plan_only(seen) => Reason::PlanOnly,
            None => Reason::Applying,
        },
    }
}

fn is_plan_only(seen: &Seen<'_>) -> bool {
    seen.observed.gathered.cluster.spec.rollout.mode == RolloutMode::Plan
}

fn others(count: usize) -> String {
    if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() }
}
