//! The command line: one file per subcommand.

mod completions;
mod connection;
mod diff;
mod explain;
mod local;
mod needle;
mod plan;
mod planning;
mod status;
mod undo;

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Runs DeepSeek V4 where the hardware wants it.
///
/// You describe the cluster you want in an InferenceCluster object; `fathom` shows what would run where, and why,
/// and runs it on this machine. As `kubectl fathom` it looks at those of a Kubernetes cluster.
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
  kubectl fathom plan --cluster -f cluster.yaml        what would run in a cluster, and why
  kubectl fathom status NAME                           how is it?

Exit codes: 0 done; 1 it is not as asked (a test failed, a server is not up); 2 bad input, explained in one line."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::Args),
    Diff(diff::Args),
    Status(status::Args),
    Explain(explain::Args),
    Undo(undo::Args),
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
    let result = match parsed().command {
        Command::Plan(args) => plan::run(args),
        Command::Diff(args) => diff::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Undo(args) => undo::run(&args),
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

/// The command line. Under the name `kubectl-fathom` the program is a plugin, and calls itself what its users type.
fn parsed() -> Cli {
    let called = std::env::args_os().next().unwrap_or_default();
    let is_plugin = Path::new(&called).file_stem().is_some_and(|name| name == "kubectl-fathom");
    let command = Cli::command().bin_name(if is_plugin { "kubectl fathom" } else { "fathom" });
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Prints a result. Whoever reads may stop early: `fathom plan ... | head`.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_flags_of_a_command_are_taken_for_one() {
        Cli::command().debug_assert();
        let parsed = Cli::try_parse_from(["fathom", "diff", "-f", "x.yaml", "-n", "team-a"]);
        assert!(matches!(parsed.unwrap().command, Command::Diff(_)));
        Cli::try_parse_from(["fathom", "plan", "-f", "x.yaml"]).unwrap();
    }
}
