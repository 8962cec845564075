//! `fathom`: explains a plan, runs an `InferenceCluster` on this machine, asks an endpoint needle questions.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
