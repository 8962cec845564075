//! `fathom local status`: what the state folder says, checked against what is really alive.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::environment::Environment;
use super::probe;
use super::select::select;
use super::state::{ClusterFolder, ClusterState, ProcessStatus};
use super::supervise::machine::{Phase, ProcessState};
use crate::cli::Output;
use engine_spec::config::Role;

/// Shows how a local cluster is: its address, its processes, and what went wrong.
///
/// Exit code 0 when it is ready for requests, 1 when it is not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom local status
  fathom local status needle -o json | jq -r .endpoint")]
pub(crate) struct Args {
    /// Which one; not needed where only one runs.
    name: Option<String>,
    /// `table` for people, `json` for programs.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// `state.json`, and what was found out just now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// A supervisor is alive.
    running: bool,
    /// The router takes requests.
    ready: bool,
    #[serde(flatten)]
    state: ClusterState,
}

pub(crate) fn run(args: Args, environment: &Environment) -> anyhow::Result<ExitCode> {
    let (folder, state) = select(&environment.state_root, args.name.as_deref())?;
    let status = Status::of(&folder, state);
    let text = match args.output {
        Output::Json => serde_json::to_string_pretty(&status)?,
        Output::Table => status.table(),
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(if status.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Status {
    fn of(folder: &ClusterFolder, mut state: ClusterState) -> Self {
        let running = folder.holder().is_some();
        if !running && state.mark_dead() {
            state.message = Some(format!(
                "its supervisor (process {}) is gone without having cleaned up; its processes ended with it",
                state.supervisor.pid
            ));
        }
        let router = state.processes.iter().find(|process| process.role == Role::Router);
        let router = router.and_then(|router| router.http).filter(|_| running);
        Self { running, ready: router.is_some_and(probe::ready_now), state }
    }

    fn table(&self) -> String {
        let state = &self.state;
        let phase = match (state.phase, self.ready) {
            (Phase::Ready, false) => "started, but its router does not say that it is ready".to_owned(),
            (phase, _) => format!("{phase:?}").to_lowercase(),
        };
        let mut text = format!("{}: {phase}", state.name);
        if let Some(endpoint) = state.endpoint.as_ref().filter(|_| self.running) {
            let _ = write!(text, " at {endpoint} (model {})", state.model);
        }
        if let Some(message) = &state.message {
            let _ = write!(text, "\n{message}");
        }
        let _ = write!(text, "\n\n{}", process_table(&state.processes));
        for process in &state.processes {
            text.push_str(&remarks(process));
        }
        text
    }
}

fn process_table(processes: &[ProcessStatus]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["PROCESS", "STATE", "PID", "RESTARTS", "HTTP", "GRPC"]);
    for process in processes {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            process.name.clone(),
            format!("{:?}", process.state),
            or_dash(process.pid.map(|pid| pid.to_string())),
            process.restarts.to_string(),
            or_dash(process.http.map(|at| at.to_string())),
            or_dash(process.grpc.map(|at| at.to_string())),
        ]);
    }
    table
}

/// What a person should know beyond the table.
fn remarks(process: &ProcessStatus) -> String {
    let mut text = String::new();
    let down = matches!(process.state, ProcessState::Failed | ProcessState::BackOff);
    if let Some(exit) = process.last_exit.as_ref().filter(|_| down) {
        let _ = write!(text, "\n\n{} ended ({exit}). Its last lines:", process.name);
        for line in &process.last_lines {
            let _ = write!(text, "\n    {line}");
        }
    }
    if process.dropped_log_lines > 0 {
        let _ = write!(
            text,
            "\n\n{} log lines of {} could not be written: is the disk full?",
            process.dropped_log_lines, process.name
        );
    }
    text
}
