//! Waits until a process says that it is ready: asks `/readyz` until the answer is 200.

use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::ports;

/// Short against any loading, long against the cost of asking.
const EVERY: Duration = Duration::from_millis(200);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A watch; dropping it ends it.
#[derive(Debug)]
pub(super) struct Probe {
    _ends_when_dropped: SyncSender<()>,
}

impl Probe {
    /// Calls `ready` once, from another thread.
    pub(super) fn start(http: SocketAddr, ready: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (handle, dropped) = sync_channel(0);
        std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
            let agent = agent();
            while !is_ready(&agent, http) {
                if dropped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            ready();
        })?;
        Ok(Self { _ends_when_dropped: handle })
    }
}

/// Asks once.
pub(super) fn ready_now(http: SocketAddr) -> bool {
    is_ready(&agent(), http)
}

fn is_ready(agent: &ureq::Agent, http: SocketAddr) -> bool {
    let url = format!("http://{}/readyz", ports::to_call(http));
    agent.get(&url).call().is_ok_and(|response| response.status() == 200)
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(ANSWER_WITHIN))
        .http_status_as_error(false)
        // Whatever proxy the user's environment names, it is not for our own processes.
        .proxy(None)
        .build();
    config.into()
}
