//! What the scenarios share: a running local cluster, a client, waits with a deadline.
//! In: the programs' folder, `FATHOM_BIN` (`./dev e2e` sets it). Out: handles that stop what they started when dropped.
//! Never: sleeps in place of a condition, ports or folders that two scenarios could share.

pub mod client;
pub mod cluster;
pub mod kubernetes;
pub mod needle;

use std::time::{Duration, Instant};

/// Calls `check` until it gives a value.
///
/// # Errors
/// After `limit`, with `what` was waited for.
pub fn wait_for<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = check() {
            return Ok(value);
        }
        anyhow::ensure!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
