//! `fathom local`: runs an InferenceCluster on this machine, without Kubernetes, with the plan a cluster would get.
//!
//! `up` plans and prepares the state folder; `supervise` runs it, in the foreground or behind the terminal; `status`,
//! `logs` and `down` only read the state folder and send signals, so they work whoever started it.

mod down;
mod environment;
mod launch;
mod log;
mod logs;
mod ports;
mod probe;
mod process;
mod select;
mod state;
mod status;
mod supervise;
mod up;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use environment::Environment;

/// Runs an InferenceCluster on this machine, without Kubernetes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom local up -f crds/examples/needle-local.yaml            run it here until Ctrl-C
  fathom local up -f crds/examples/needle-local.yaml --detach   run it in the background
  fathom local status                                           how it is, and its address
  fathom local logs needle prefill                              what prefill wrote last
  fathom local down                                             let requests finish, then end it

State and logs lie in $XDG_STATE_HOME/fathom/NAME, else ~/.local/state/fathom/NAME.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Up(up::Args),
    Status(status::Args),
    Logs(logs::Args),
    Down(down::Args),
    /// The supervisor that `up --detach` leaves behind.
    #[command(hide = true)]
    Supervise {
        #[arg(long)]
        name: String,
    },
    /// What the supervisor starts each process through.
    #[command(hide = true)]
    Child {
        #[arg(long)]
        parent: u32,
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let environment = Environment::read;
    match args.command {
        Command::Up(args) => up::run(args, &environment()?),
        Command::Status(args) => status::run(args, &environment()?),
        Command::Logs(args) => logs::run(args, &environment()?),
        Command::Down(args) => down::run(args, &environment()?),
        Command::Supervise { name } => up::supervise_in_background(&name, &environment()?),
        Command::Child { parent, program, arguments } => {
            Err(process::become_child(parent, &program, &arguments))
        }
    }
}
