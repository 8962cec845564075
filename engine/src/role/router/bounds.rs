//! When a request must end though nothing failed: its deadline, or the end of a drain.
//! In: the configured time, the router's `cut`. Out: an [`Ending`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::ApiError;

/// Why a request was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Deadline(Duration),
    Drain,
}

impl Ending {
    pub(super) fn error(self) -> ApiError {
        match self {
            Ending::Deadline(timeout) => ApiError::timed_out(format!(
                "the request was ended because it took longer than {} s",
                timeout.as_secs_f64()
            )),
            Ending::Drain => {
                ApiError::unavailable("the request was ended because the router is shutting down")
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Bounds {
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    cut: CancellationToken,
    /// Registered at the first wait: most answers of one piece never wait.
    cut_future: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Bounds {
    pub(super) fn new(timeout: Duration, cut: &CancellationToken) -> Self {
        Self { timeout, deadline: Box::pin(tokio::time::sleep(timeout)), cut: cut.clone(), cut_future: None }
    }

    /// Ready when the request must end; call it only when there is nothing else to do.
    pub(super) fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        let cut = self.cut_future.get_or_insert_with(|| Box::pin(self.cut.clone().cancelled_owned()));
        if cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ending::Drain);
        }
        self.poll_deadline(cx).map(|()| Ending::Deadline(self.timeout))
    }

    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.deadline.as_mut().poll(cx)
    }

    /// From now on the deadline is `timeout` away.
    pub(super) fn restart(&mut self, timeout: Duration) {
        self.deadline.as_mut().reset(Instant::now() + timeout);
    }

    /// Ends when the request must end.
    pub(super) async fn ending(&mut self) -> Ending {
        std::future::poll_fn(|cx| self.poll_ending(cx)).await
    }
}
