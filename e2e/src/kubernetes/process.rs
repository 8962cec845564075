//! Processes of pods as this machine's kernel sees them: workers share its process table.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// One value of `/proc/PID/status` (`Cpus_allowed_list`, `VmHWM`) of the engine or router in the pod with this uid.
///
/// # Errors
/// When the pod has no such process, or several.
pub fn engine_status(pod_uid: &str, key: &str) -> anyhow::Result<String> {
    let is_engine = |folder: &Path| {
        let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        text("cgroup").contains(pod_uid) && text("cmdline").starts_with("/fathom-engine\0")
    };
    let folders = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
    let found: Vec<_> = folders.filter(|folder| is_engine(folder)).collect();
    ensure!(found.len() == 1, "processes of pod {pod_uid}: {found:?}");
    let status = fs::read_to_string(found[0].join("status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("no {key} in {status}"))?.trim().to_owned())
}
