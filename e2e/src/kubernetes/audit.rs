//! The API server's audit log: who asked for what, and what came of it.

use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::environment::state_folder;

/// One request that the API server has answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// `system:serviceaccount:fathom-system:fathom-operator`.
    pub user: String,
    pub verb: String,
    pub group: String,
    /// With its subresource: `inferenceclusters/status`. Empty for paths that are no resource.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
    /// The path asked for.
    pub uri: String,
}

impl Call {
    /// Whether this verb changes objects.
    pub fn writes(&self) -> bool {
        ["create", "update", "patch", "delete", "deletecollection"].contains(&self.verb.as_str())
    }

    fn parse(line: &str) -> Option<Self> {
        let event: Value = serde_json::from_str(line).ok()?;
        if event["stage"] == "RequestReceived" || event["stage"] == "ResponseStarted" {
            return None;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let resource = match object["subresource"].as_str() {
            Some(sub) => format!("{}/{sub}", text(&object["resource"])),
            None => text(&object["resource"]),
        };
        Some(Self {
            user: text(&event["user"]["username"]),
            verb: text(&event["verb"]),
            group: text(&object["apiGroup"]),
            resource,
            namespace: text(&object["namespace"]),
            name: text(&object["name"]),
            code: u16::try_from(event["responseStatus"]["code"].as_u64().unwrap_or_default()).ok()?,
            uri: text(&event["requestURI"]),
        })
    }
}

/// A moment in the log.
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

fn log() -> PathBuf {
    state_folder().join("audit.log")
}

/// The end of the log, now.
///
/// # Errors
/// When there is no log.
pub fn mark() -> anyhow::Result<Mark> {
    let path = log();
    Ok(Mark(std::fs::metadata(&path).with_context(|| format!("looking at {}", path.display()))?.len()))
}

/// The start of the log.
pub fn beginning() -> Mark {
    Mark(0)
}

/// What `user` (its end is enough: `:fathom-operator`) asked since `mark`.
///
/// # Errors
/// When the log was rotated since, so that calls may be missing.
pub fn calls_since(mark: Mark, user: &str) -> anyhow::Result<Vec<Call>> {
    let path = log();
    let mut file = std::fs::File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    ensure!(file.metadata()?.len() >= mark.0, "{} was rotated: calls may be missing", path.display());
    file.seek(SeekFrom::Start(mark.0))?;
    let mut calls = Vec::new();
    for line in BufReader::new(file).lines() {
        calls.extend(Call::parse(&line?).filter(|call| call.user.ends_with(user)));
    }
    Ok(calls)
}
