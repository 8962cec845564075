//! The command line: one file per subcommand.

mod local;
mod needle;
mod plan;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs DeepSeek V4 where the hardware wants it.
#[derive(Debug, Parser)]
#[command(name = "fathom", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::Args),
    Local(local::Args),
    Needle(needle::Args),
}

/// Runs the program. Exit codes: 0 done, 1 the thing asked for is not so (a test failed, a server is not up), 2 bad
/// input, explained in one line.
pub(crate) fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Plan(args) => plan::run(args),
        Command::Local(args) => local::run(args),
        Command::Needle(args) => needle::run(args),
    };
    result.unwrap_or_else(|error| {
        tracing::debug!("{error:?}");
        eprintln!("fathom: {error:#}");
        ExitCode::from(2)
    })
}
