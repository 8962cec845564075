//! `fathom local`.

use std::process::ExitCode;

/// Runs an InferenceCluster on this machine, without Kubernetes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`fathom local` is not built yet")
}
