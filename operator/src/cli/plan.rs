//! `fathom plan`.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use node_facts::NodeFacts;

use super::{Output, planning};

/// Shows what would run where, and why: without a cluster, and without starting anything.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom plan -f cluster.yaml                          # on this machine
  fathom plan -f cluster.yaml --facts story            # on the server of the examples: 8 GPUs, 2 NUMA nodes
  fathom plan -f cluster.yaml --facts a --facts b      # on two nodes, from captured folders
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
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { file, facts, here: _, output } = args;
    let loaded = planning::load(&file)?;
    let planned = if facts.is_empty() { loaded.plan_here() } else { loaded.plan(&nodes(&facts)?) };
    let mut out = std::io::stdout().lock();
    let written = match output {
        Output::Table => planning::print_table(&planned, &mut out),
        Output::Json => {
            let json = serde_json::to_string_pretty(&planned).context("cannot write the plan as JSON")?;
            writeln!(out, "{json}")
        }
    };
    // Whoever reads may stop early: `fathom plan ... | head`.
    if let Err(error) = written.and_then(|()| out.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        return Err(error).context("cannot write to standard output");
    }
    Ok(if planned.is_feasible() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
