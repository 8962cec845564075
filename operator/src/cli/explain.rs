//! `fathom explain`: why an object is placed as it is, and why not elsewhere.
//! In: its status. Out: text. Never: a second computation: the operator's plan has said why.

use std::fmt::Write as _;
use std::process::ExitCode;

use fathom_crds::conditions::ConditionType;
use fathom_crds::inference_cluster::{
    AchievedPart, AchievedState, InferenceClusterStatus, PlanStatus, ReplicaStatus,
};

use super::connection::{self, ClusterArgs, Reported};
use super::status::text::{bytes, condition, head, lines, place, table};
use super::{Output, print, status};

/// Explains where the pods of an InferenceCluster are and why, why every other place was not taken, and where the host
/// cache and the queue limit come from.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl fathom explain flash -n team-a")]
pub(crate) struct Args {
    /// Name of the InferenceCluster.
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reported = connection::run(async { args.cluster.connect(None).await?.reported(&args.name).await })?;
    match args.output {
        Output::Table => print(&text(&reported))?,
        Output::Json => print(&status::json(&reported)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(reported: &Reported) -> String {
    let status = &reported.status;
    let mut text = head(reported);
    text.push_str(&attention(status));
    if let Some(placement) = &status.placement {
        let _ = write!(text, "\nWho enforces the placement: {}\n  {}\n", placement.mode, placement.because);
        let _ = writeln!(text, "  memory: {}", placement.memory);
    }
    if let Some(plan) = &status.plan {
        text.push_str(&here(plan));
        text.push_str(&not_there(plan));
    }
    text.push_str(&host_cache(status));
    text.push_str(&queue_limit(status));
    if let Some(plan) = status.plan.as_ref().filter(|plan| !plan.notes.is_empty()) {
        text.push_str("\nBesides\n");
        for note in &plan.notes {
            let _ = writeln!(text, "  {note}");
        }
    }
    text
}

/// Conditions that are not as they are when all is well.
fn attention(status: &InferenceClusterStatus) -> String {
    let mut text = String::new();
    for kind in ConditionType::ALL {
        let Some(found) = condition(status, kind) else { continue };
        let well = match kind {
            ConditionType::Progressing | ConditionType::Degraded => "False",
            ConditionType::Accepted
            | ConditionType::Planned
            | ConditionType::PlacementSatisfied
            | ConditionType::RolesReady
            | ConditionType::Routable
            | ConditionType::Ready => "True",
        };
        if found.status != well || (found.reason != "AsExpected" && kind != ConditionType::Ready) {
            let _ = writeln!(text, "  {kind} is {} ({}): {}", found.status, found.reason, found.message);
        }
    }
    if text.is_empty() { text } else { format!("\nWhat to look at\n{text}") }
}

fn here(plan: &PlanStatus) -> String {
    let mut text = "\nWhere the pods are planned\n".to_owned();
    if plan.replicas.is_empty() {
        text.push_str("  nowhere\n");
    }
    for replica in &plan.replicas {
        let numa = replica.numa_node.map_or_else(String::new, |numa| format!(", NUMA node {numa}"));
        let _ = writeln!(text, "  {} on {}{numa}", replica.name, replica.node);
        if !replica.gpus.is_empty() {
            let _ = writeln!(text, "    GPUs {}", replica.gpus.join(", "));
        }
        let _ = writeln!(text, "    CPUs {}, memory {}", replica.cpus, bytes(&replica.memory));
        if let Some(claim) = &replica.claim {
            let _ = writeln!(text, "    claim {claim}");
        }
        text.push_str(&achieved(replica));
    }
    text
}

fn achieved(replica: &ReplicaStatus) -> String {
    let Some(achieved) = &replica.achieved else { return "    does not run yet\n".to_owned() };
    let named = [("GPUs", &achieved.gpus), ("CPUs", &achieved.cpus), ("memory", &achieved.memory)];
    let said: Vec<String> =
        named.into_iter().filter_map(|(name, part)| part.as_ref().map(|part| spoken(name, part))).collect();
    if said.is_empty() { String::new() } else { format!("    found: {}\n", said.join("; ")) }
}

fn spoken(name: &str, part: &AchievedPart) -> String {
    let state = match part.state {
        AchievedState::Achieved => "as planned",
        AchievedState::Refused => "not as planned",
        AchievedState::Unknown => "not known yet",
        AchievedState::NotAsked => "not bound",
    };
    let why = part.message.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    format!("{name} {state}{why}")
}

fn not_there(plan: &PlanStatus) -> String {
    if plan.rejected.is_empty() {
        return "\nNo place was rejected\n".to_owned();
    }
    let mut rows = table(&["PLACE", "FOR", "REASON", "WHY NOT"]);
    for rejected in &plan.rejected {
        rows.add_row([
            place(&rejected.node, rejected.numa_node),
            rejected.roles.join(", "),
            rejected.reason.clone(),
            rejected.message.clone(),
        ]);
    }
    let mut text = format!("\nWhy not elsewhere\n{}", lines(&rows));
    let more = i64::from(plan.rejected_total) - i64::try_from(plan.rejected.len()).unwrap_or(i64::MAX);
    if more > 0 {
        let _ = writeln!(text, "and {more} more places");
    }
    text
}

fn host_cache(status: &InferenceClusterStatus) -> String {
    if status.host_cache.is_empty() {
        return String::new();
    }
    let mut text = "\nHost cache\n".to_owned();
    for line in &status.host_cache {
        let ratio = if line.ratio > 0.0 { format!(" = ratio {:.2}", line.ratio) } else { String::new() };
        let _ = writeln!(text, "  {}: {}{ratio}", line.replica, line.message);
    }
    text
}

fn queue_limit(status: &InferenceClusterStatus) -> String {
    let Some(limit) = &status.queue_limit else { return String::new() };
    let tokens = limit.tokens.and_then(|tokens| u64::try_from(tokens).ok());
    let tokens = tokens.map_or_else(
        || "not known yet".to_owned(),
        |tokens| format!("{} tokens", operator_plan::thousands(tokens)),
    );
    format!("\nQueue limit of one prefill: {tokens}, {} requests\n  {}\n", limit.requests, limit.derivation)
}

#[cfg(test)]
mod tests;
