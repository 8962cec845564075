//! `fathom plan`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use fathom_operator::plan_service::PlanAnswer;
use node_facts::NodeFacts;
use operator_plan::Planned;
use serde::Serialize;

use super::connection::{self, ClusterArgs};
use super::{Output, planning, print};

/// Shows what would run where, and why, without starting anything: on this machine, on captured ones, or in a cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom plan -f cluster.yaml                          # on this machine
  fathom plan -f cluster.yaml --facts story            # on the server of the examples: 8 GPUs, 2 NUMA nodes
  fathom plan -f cluster.yaml --facts a --facts b      # on two nodes, from captured folders
  fathom plan -f cluster.yaml --cluster                # in the cluster of the current context
  fathom plan -f cluster.yaml -o json                  # for programs

Exit codes: 0 it fits; 1 it does not, and the table says what is missing where; 2 the input is wrong.")]
pub(crate) struct Args {
    /// File with an InferenceCluster.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Machine to plan for: a folder with captured facts, or the name of one that comes with fathom (an unknown name
    /// lists them). May be given several times, once a node.
    #[arg(long, value_name = "SCENE", conflicts_with = "here")]
    facts: Vec<String>,
    /// Plan for this machine (the default).
    #[arg(long)]
    here: bool,
    /// Plan in a cluster: its operator is asked through a port-forward (right: create pods/portforward in its namespace).
    #[arg(long = "cluster", conflicts_with_all = ["facts", "here"])]
    in_cluster: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    operator: OperatorArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Where the operator is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OperatorArgs {
    /// Namespace that the chart is installed in.
    #[arg(long, value_name = "NAMESPACE", default_value = "fathom-system", help_heading = "Cluster")]
    pub(crate) operator_namespace: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.in_cluster {
        return run_in_cluster(&args);
    }
    let Args { file, facts, output, .. } = args;
    let loaded = planning::load(&file)?;
    let planned = if facts.is_empty() { loaded.plan_here() } else { loaded.plan(&nodes(&facts)?) };
    match output {
        Output::Table => print(&table(&planned)?)?,
        Output::Json => print(&json(&planned)?)?,
    }
    Ok(if planned.is_feasible() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The operator plans with what it sees: facts of all nodes, what others hold, what of the object runs.
fn run_in_cluster(args: &Args) -> anyhow::Result<ExitCode> {
    let mut object = planning::read(&args.file)?;
    let answer = connection::run(async {
        let connection = args.cluster.connect(object.metadata.namespace.as_deref()).await?;
        object.metadata.namespace = Some(connection.namespace.clone());
        connection.ask_operator(&object, &args.operator.operator_namespace).await
    })?;
    match args.output {
        Output::Table => print(&format!("{}{}", table(&answer.planned)?, enforcement(&answer)))?,
        Output::Json => print(&json(&answer)?)?,
    }
    let fits = answer.planned.is_feasible() && answer.lacking.is_none();
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn enforcement(answer: &PlanAnswer) -> String {
    match (&answer.enforcement, &answer.lacking) {
        (Some(enforcement), _) => {
            format!("placement enforced by {}: {}\n", enforcement.mode.name(), enforcement.because)
        }
        (None, Some(lacking)) => format!("the placement cannot be enforced: {lacking}\n"),
        (None, None) => String::new(),
    }
}

fn table(planned: &Planned) -> anyhow::Result<String> {
    let mut text = Vec::new();
    planning::print_table(planned, &mut text).context("cannot write the plan")?;
    String::from_utf8(text).context("cannot write the plan")
}

fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot write the plan as JSON")? + "\n")
}

/// The facts of each scene; nodes of the same name get a number, so that one scene can stand for several nodes.
fn nodes(scenes: &[String]) -> anyhow::Result<Vec<NodeFacts>> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut nodes = Vec::with_capacity(scenes.len());
    for scene in scenes {
        let mut facts = fathom_node_agent::scene::facts(scene)?;
        let times = seen.entry(facts.node.clone()).or_default();
        *times += 1;
        if *times > 1 {
            facts.node = format!("{}-{times}", facts.node);
        }
        nodes.push(facts);
    }
    Ok(nodes)
}
