//! `fathom diff`: what a file would change of an object of a cluster, and which pods would be restarted by it.
//! In: a file, the stored object, the operator's plan of the file. Out: text. Never: a write.

mod spec;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use fathom_operator::plan_service::{Changes, PlanAnswer};
use serde::Serialize;

use super::connection::{self, ClusterArgs};
use super::plan::OperatorArgs;
use super::{Output, planning, print};
pub(super) use spec::{Difference, differences};

/// Shows what applying a file would change: the fields of the spec, and the pods that would be restarted. The operator is
/// asked through a port-forward (right: create pods/portforward in its namespace).
///
/// Exit codes: 0 it would run; 1 it would not; 2 the input is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl fathom diff -f cluster.yaml")]
pub(crate) struct Args {
    /// File with an InferenceCluster.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    operator: OperatorArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// What a file would change.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diff {
    name: String,
    namespace: String,
    /// Whether there is an object to compare with.
    exists: bool,
    spec: Vec<Difference>,
    feasible: bool,
    /// Why it would not run, if so.
    refusals: Vec<String>,
    pods: Changes,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let diff = connection::run(ask(args))?;
    match args.output {
        Output::Table => print(&text(&diff))?,
        Output::Json => print(&(serde_json::to_string_pretty(&diff)? + "\n"))?,
    }
    Ok(if diff.feasible { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask(args: &Args) -> anyhow::Result<Diff> {
    let mut object = planning::read(&args.file)?;
    let connection = args.cluster.connect(object.metadata.namespace.as_deref()).await?;
    object.metadata.namespace = Some(connection.namespace.clone());
    let stored = connection.stored(object.name()).await?;
    let answer = connection.ask_operator(&object, &args.operator.operator_namespace).await?;
    Ok(Diff {
        name: object.name().to_owned(),
        namespace: connection.namespace,
        exists: stored.is_some(),
        spec: stored.map(|stored| differences(&stored.spec, &object.spec)).transpose()?.unwrap_or_default(),
        feasible: answer.planned.is_feasible() && answer.lacking.is_none(),
        refusals: refusals(&answer),
        pods: answer.changes,
    })
}

fn refusals(answer: &PlanAnswer) -> Vec<String> {
    let planned = answer.planned.report.refusals.iter().map(|refusal| refusal.message.clone());
    planned.chain(answer.lacking.clone()).collect()
}

fn text(diff: &Diff) -> String {
    let Diff { name, namespace, exists, spec, feasible, refusals, pods } = diff;
    let mut text = match (exists, spec.is_empty()) {
        (false, _) => format!("{name} is not in namespace {namespace} yet: it would be new\n"),
        (true, true) => format!("{name} in namespace {namespace}: the spec stays as it is\n"),
        (true, false) => format!("{name} in namespace {namespace}: the spec would change\n"),
    };
    for difference in spec {
        let _ = writeln!(text, "  {difference}");
    }
    if !feasible {
        text.push_str("It would not run; what runs now stays:\n");
        for refusal in refusals {
            let _ = writeln!(text, "  {refusal}");
        }
        return text;
    }
    text.push_str(&pods_text(pods));
    text
}

fn pods_text(changes: &Changes) -> String {
    let Changes { kept, created, replaced, removed } = changes;
    let mut text = String::new();
    for pod in replaced {
        let _ = writeln!(text, "  - {} is replaced by {}: {}", pod.pod, pod.by, pod.because);
    }
    for pod in removed {
        let _ = writeln!(text, "  - {pod} is removed");
    }
    for pod in created {
        let _ = writeln!(text, "  + {pod} is created");
    }
    for pod in kept {
        let _ = writeln!(text, "    {pod} stays");
    }
    if text.is_empty() {
        "No engine pod is there, and none would be\n".to_owned()
    } else {
        format!("Engine pods\n{text}")
    }
}

#[cfg(test)]
mod tests;
