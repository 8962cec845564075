//! The command line: one file per subcommand.

mod completions;
mod local;
mod needle;
mod plan;
mod planning;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Runs DeepSeek V4 where the hardware wants it.
///
/// You describe the cluster you want in an InferenceCluster object; `fathom` shows what would run where, and why,
/// and runs it on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "fathom",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  fathom plan -f crds/examples/needle-local.yaml       what would run here, and why
  fathom local up -f crds/examples/needle-local.yaml   run it here, until Ctrl-C
  fathom needle --url http://127.0.0.1:8000            does it find facts in long texts?

Exit codes: 0 done; 1 it is not as asked (a test failed, a server is not up); 2 bad input, explained in one line."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::Args),
    Local(local::Args),
    Needle(needle::Args),
    Completions(completions::Args),
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// Runs the program. Exit codes: 0 done, 1 the thing asked for is not so (a test failed, a server is not up), 2 bad
/// input, explained in one line.
pub(crate) fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Plan(args) => plan::run(args),
        Command::Local(args) => local::run(args),
        Command::Needle(args) => needle::run(args),
        Command::Completions(args) => completions::run(&args, Cli::command()).map_err(Into::into),
    };
    result.unwrap_or_else(|error| {
        tracing::debug!("{error:?}");
        eprintln!("fathom: {error:#}");
        ExitCode::from(2)
    })
}
