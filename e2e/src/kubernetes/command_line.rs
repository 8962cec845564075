//! `kubectl fathom`, as a person calls it.

use std::process::Output;

use anyhow::ensure;

use super::run;
use crate::cluster::program;

/// Runs the built `fathom` against the cluster.
///
/// # Errors
/// When it is not built.
pub fn fathom(args: &[&str]) -> anyhow::Result<Output> {
    run(&program("fathom").to_string_lossy(), args, None)
}

/// What a successful `fathom` printed.
///
/// # Errors
/// With what it said.
pub fn fathom_ok(args: &[&str]) -> anyhow::Result<String> {
    let output = fathom(args)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fathom {}: {stderr}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
