//! `fathom plan`.

use std::process::ExitCode;

/// Shows what would run where, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`fathom plan` is not built yet")
}
