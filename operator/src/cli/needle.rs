//! `fathom needle`.

use std::process::ExitCode;

/// Asks an OpenAI endpoint for facts hidden in long texts, and reports how many it finds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`fathom needle` is not built yet")
}
