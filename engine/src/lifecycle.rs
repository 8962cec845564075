//! Where a process stands: loading, ready, draining. Readiness and the refusal of new requests follow it.
//! In: steps of the start and the stop. Out: the phase, and waiting for it.
//! Never: going back: a draining process never becomes ready again.

use tokio::sync::watch;

use crate::ApiError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not ready yet, and what it waits for.
    Starting(String),
    Ready,
    /// Told to stop: running requests end, new ones are refused.
    Draining,
}

/// Clones share the phase.
#[derive(Debug, Clone)]
pub struct Lifecycle {
    phase: watch::Sender<Phase>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { phase: watch::Sender::new(Phase::Starting("the model is loading".to_owned())) }
    }
}

impl Lifecycle {
    pub fn starting(&self, waits_for: impl Into<String>) {
        self.advance(Phase::Starting(waits_for.into()));
    }

    pub fn ready(&self) {
        self.advance(Phase::Ready);
    }

    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let forward = match (&*phase, &to) {
                (Phase::Starting(_), _) | (_, Phase::Draining) => true,
                (Phase::Ready | Phase::Draining, _) => false,
            };
            if forward {
                *phase = to;
            }
            forward
        });
    }

    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// # Errors
    /// 503, saying why.
    pub fn check(&self) -> Result<(), ApiError> {
        match &*self.phase.borrow() {
            Phase::Ready => Ok(()),
            Phase::Starting(why) => Err(ApiError::unavailable(format!("Not ready yet: {why}."))),
            Phase::Draining => Err(ApiError::unavailable("This server is shutting down.")),
        }
    }

    /// Waits until the process is told to stop.
    pub async fn draining(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives in `self`: the wait ends with the phase.
        let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draining_process_never_becomes_ready_again() {
        let lifecycle = Lifecycle::default();
        assert_eq!(lifecycle.check().unwrap_err().status, 503);
        lifecycle.ready();
        assert!(lifecycle.check().is_ok());
        lifecycle.starting("something else");
        assert_eq!(lifecycle.phase(), Phase::Ready);
        lifecycle.drain();
        lifecycle.ready();
        assert!(lifecycle.check().unwrap_err().message.contains("shutting down"));
    }
}
