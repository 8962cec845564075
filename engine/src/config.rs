//! The command line and the configuration file: read here, once.
//! In: arguments. Out: a checked [`EngineConfig`].
//! Never: environment variables.

use std::path::PathBuf;

use clap::Parser;
use engine_spec::{ConfigError, EngineConfig};

/// One engine process of Fathom: prefill, decode, router or unified, as its configuration says.
///
/// It prints one JSON line `{"event":"listening",...}` on stdout when it listens, and JSON log lines on stderr.
/// `fathom local up` and the operator start it; by hand it needs nothing but a configuration file:
///
///   {"name": "needle-0", "role": "unified",
///    "model": {"name": "needle", "path": "engine/testdata/needle", "contextTokens": 32768},
///    "pools": {"kvPages": 512, "requestSlots": 64}}
#[derive(Debug, Parser)]
#[command(name = "fathom-engine", version, verbatim_doc_comment)]
pub struct Args {
    /// The configuration: JSON, unknown keys are refused.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Read and check the configuration, print it with all defaults, and stop.
    #[arg(long)]
    pub check_config: bool,

    /// Log this and above: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: tracing::level_filters::LevelFilter,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("reading the configuration {}", .path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{}", .path.display())]
    Config { path: PathBuf, source: ConfigError },
}

/// Reads and checks the file.
///
/// # Errors
/// [`ReadError`], naming the file, and all mistakes at once.
pub fn read(path: &PathBuf) -> Result<EngineConfig, ReadError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ReadError::Open { path: path.clone(), source })?;
    EngineConfig::from_json(&text).map_err(|source| ReadError::Config { path: path.clone(), source })
}
