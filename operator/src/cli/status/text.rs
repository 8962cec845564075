//! A status as a person reads it.
//! In: what was reported, the time. Out: text. Never: a figure that the status does not have.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use fathom_crds::Quantity;
use fathom_crds::conditions::ConditionType;
use fathom_crds::inference_cluster::{
    AchievedPart, AchievedState, AchievedStatus, HostCacheStatus, InferenceClusterStatus, ReplicaStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff;

use crate::cli::connection::Reported;

/// Wide enough for a line a replica, narrow enough for a split terminal.
const WIDTH: u16 = 118;

/// Head line, what is wrong, conditions, replicas.
pub(super) fn text(reported: &Reported, now: jiff::Timestamp) -> String {
    let status = &reported.status;
    let mut text = head(reported);
    if !status.conditions.is_empty() {
        let _ = write!(text, "\n{}", lines(&conditions(&status.conditions, now)));
    }
    if let Some(plan) = status.plan.as_ref().filter(|plan| !plan.replicas.is_empty()) {
        let _ = write!(text, "\n{}", lines(&replicas(&plan.replicas, &status.host_cache)));
    }
    text
}

/// Name, whether it is Ready, address, revision; and whether the operator has seen the latest spec.
pub(in crate::cli) fn head(reported: &Reported) -> String {
    let Reported { name, namespace, generation, status } = reported;
    let ready = condition(status, ConditionType::Ready);
    let state = match ready.map(|ready| ready.status.as_str()) {
        Some("True") => "Ready".to_owned(),
        Some(_) => format!("not Ready: {}", ready.map_or("", |ready| &ready.reason)),
        None => "no operator has reported on it yet".to_owned(),
    };
    let mut text = format!("{name} in namespace {namespace}: {state}\n");
    if let (Some(seen), Some(now)) = (status.observed_generation, generation)
        && seen < *now
    {
        let _ = writeln!(
            text,
            "  the operator has not looked at the latest change yet (generation {now}, seen {seen})"
        );
    }
    if let Some(endpoint) = &status.endpoint {
        let _ = writeln!(text, "  address    {endpoint}");
    }
    if let Some(current) = &status.current_revision {
        let good = match &status.last_good_revision {
            Some(good) if good == current => "which was Ready".to_owned(),
            Some(good) => format!("last Ready: {good}"),
            None => "none was Ready yet".to_owned(),
        };
        let _ = writeln!(text, "  revision   {current} ({good})");
    }
    if let Some(summary) = &status.summary {
        let (prefill, decode, router) = (&summary.prefill, &summary.decode, &summary.router);
        let _ = writeln!(text, "  pods       prefill {prefill}, decode {decode}, router {router}");
        let _ = writeln!(text, "  placement  {}, host cache {}", summary.placement, summary.host_cache);
    }
    text
}

pub(in crate::cli) fn condition(status: &InferenceClusterStatus, kind: ConditionType) -> Option<&Condition> {
    let name = kind.to_string();
    status.conditions.iter().find(|condition| condition.type_ == name)
}

fn conditions(conditions: &[Condition], now: jiff::Timestamp) -> Table {
    let mut table = table(&["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for condition in conditions {
        table.add_row([
            condition.type_.clone(),
            condition.status.clone(),
            age(condition.last_transition_time.0, now),
            condition.reason.clone(),
            condition.message.clone(),
        ]);
    }
    table
}

fn replicas(replicas: &[ReplicaStatus], caches: &[HostCacheStatus]) -> Table {
    let mut table = table(&["REPLICA", "WHERE", "GPUS", "CPUS", "MEMORY", "HOST CACHE", "ACHIEVED"]);
    for replica in replicas {
        let cache = caches.iter().find(|cache| cache.replica == replica.name);
        table.add_row([
            replica.name.clone(),
            place(&replica.node, replica.numa_node),
            replica.gpus.len().to_string(),
            replica.cpus.clone(),
            bytes(&replica.memory),
            cache.map_or_else(|| "off".to_owned(), |cache| bytes(&cache.granted)),
            replica.achieved.as_ref().map_or_else(|| "does not run".to_owned(), achieved),
        ]);
    }
    table
}

/// A Kubernetes quantity as people read bytes.
pub(in crate::cli) fn bytes(quantity: &str) -> String {
    match quantity.parse::<Quantity>() {
        Ok(quantity) if quantity.bytes() == 0 => "off".to_owned(),
        Ok(quantity) => operator_plan::gib(quantity.bytes()),
        Err(_) => quantity.to_owned(),
    }
}

/// `yes`, or the parts that are not.
fn achieved(achieved: &AchievedStatus) -> String {
    let named = [("GPUs", &achieved.gpus), ("CPUs", &achieved.cpus), ("memory", &achieved.memory)];
    let part = |(name, part): (&str, &Option<AchievedPart>)| {
        let state = match part.as_ref()?.state {
            AchievedState::Achieved => return None,
            AchievedState::Refused => "refused",
            AchievedState::Unknown => "unknown",
            AchievedState::NotAsked => "not bound",
        };
        Some(format!("{name} {state}"))
    };
    let wrong: Vec<String> = named.into_iter().filter_map(part).collect();
    if wrong.is_empty() { "yes".to_owned() } else { wrong.join(", ") }
}

/// `n1 NUMA 0`.
pub(in crate::cli) fn place(node: &str, numa: Option<i32>) -> String {
    numa.map_or_else(|| node.to_owned(), |numa| format!("{node} NUMA {numa}"))
}

pub(in crate::cli) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(header.to_vec());
    table
}

/// A table without the blanks around it.
pub(in crate::cli) fn lines(table: &Table) -> String {
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line).trim_end())).collect()
}

/// As kubectl writes ages: `45s`, `12m`, `3h`, `9d`.
fn age(then: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
