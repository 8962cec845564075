//! Calls a driver that may block for minutes, and stops waiting in time.
//! A blocked call cannot be ended, so its thread stays behind: at most one, since nobody asks again before it is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use super::{Code, Fault};

/// Gives the answer of `ask`, or a fault after `patience`. `busy` is set as long as the thread runs.
pub(super) fn watched<T: Send + 'static>(
    busy: &'static AtomicBool,
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    if busy.swap(true, Ordering::AcqRel) {
        return Err(timeout("an earlier call still waits for the driver".into()));
    }
    let done = Done(busy);
    let (sender, receiver) = sync_channel(1);
    let thread = thread::Builder::new().name("nvml".into()).spawn(move || {
        let _done = done;
        // Nobody listens any more after the patience ran out.
        let _ = sender.send(ask());
    });
    if let Err(error) = thread {
        return Err(Fault { code: Code::Unknown, detail: Some(format!("no thread to ask it: {error}")) });
    }
    receiver.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => timeout(format!("waited {} s", patience.as_secs_f32())),
        RecvTimeoutError::Disconnected => {
            Fault { code: Code::Unknown, detail: Some("the call panicked".into()) }
        }
    })
}

fn timeout(detail: String) -> Fault {
    Fault { code: Code::Timeout, detail: Some(detail) }
}

/// Frees the flag when the thread ends, however it ends.
struct Done(&'static AtomicBool);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_in_time_is_given() {
        static BUSY: AtomicBool = AtomicBool::new(false);
        assert_eq!(watched(&BUSY, LONG, || 7), Ok(7));
    }

    #[test]
    fn a_blocked_call_is_left_behind_once_and_asked_again_when_it_ends() {
        static BUSY: AtomicBool = AtomicBool::new(false);
        let (release, blocked) = sync_channel::<()>(0);
        let first = watched(&BUSY, Duration::from_millis(1), move || {
            let _ = blocked.recv();
        });
        assert_eq!(first.unwrap_err().code, Code::Timeout);

        let second = watched(&BUSY, LONG, || ());
        assert_eq!(second.unwrap_err().detail.unwrap(), "an earlier call still waits for the driver");

        release.send(()).unwrap();
        let deadline = Instant::now() + LONG;
        while watched(&BUSY, LONG, || ()).is_err() {
            assert!(Instant::now() < deadline, "the flag is never freed");
            thread::yield_now();
        }
    }

    #[test]
    fn a_panicking_call_is_a_fault_and_frees_the_flag() {
        static BUSY: AtomicBool = AtomicBool::new(false);
        let answer = watched(&BUSY, LONG, || panic!("as a driver binding might"));
        assert_eq!(answer.map(|(): ()| ()).unwrap_err().code, Code::Unknown);
        let deadline = Instant::now() + LONG;
        while watched(&BUSY, LONG, || ()).is_err() {
            assert!(Instant::now() < deadline, "the flag is never freed");
            thread::yield_now();
        }
    }
}
