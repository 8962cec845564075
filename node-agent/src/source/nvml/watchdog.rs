//! Calls a driver that may block for minutes, and stops waiting in time.
//! Callers take turns. A blocked call cannot be ended, so its thread stays behind and keeps the turn: at most one thread
//! is ever stuck, and whoever comes later waits as long for its turn as it would for an answer.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Code, Fault};

/// Who may ask the driver: one at a time.
#[derive(Debug)]
pub(super) struct Turn {
    taken: Mutex<bool>,
    given_back: Condvar,
}

impl Turn {
    pub(super) const fn new() -> Self {
        Turn { taken: Mutex::new(false), given_back: Condvar::new() }
    }

    fn take(&'static self, patience: Duration) -> Option<Taken> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.given_back.wait_timeout_while(taken, patience, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return None;
        }
        *taken = true;
        Some(Taken(self))
    }
}

/// Gives the turn back when dropped, also when the call panics.
struct Taken(&'static Turn);

impl Drop for Taken {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.given_back.notify_one();
    }
}

/// Gives the answer of `ask`, or a fault after `patience`.
pub(super) fn watched<T: Send + 'static>(
    turn: &'static Turn,
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let deadline = Instant::now() + patience;
    let Some(taken) = turn.take(patience) else {
        return Err(fault(Code::Timeout, "an earlier call still waits for the driver".to_owned()));
    };
    let (sender, receiver) = sync_channel(1);
    let thread = thread::Builder::new().name("nvml".to_owned()).spawn(move || {
        let answer = ask();
        // Before the answer: whoever has it may ask again at once.
        drop(taken);
        // Nobody listens any more after the patience ran out.
        let _ = sender.send(answer);
    });
    if let Err(error) = thread {
        return Err(fault(Code::Unknown, format!("no thread to ask the driver: {error}")));
    }
    let left = deadline.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).map_err(|error| match error {
        RecvTimeoutError::Timeout => fault(Code::Timeout, format!("waited {} s", patience.as_secs_f32())),
        RecvTimeoutError::Disconnected => fault(Code::Unknown, "the call panicked".to_owned()),
    })
}

fn fault(code: Code, detail: String) -> Fault {
    Fault { code, detail: Some(detail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_in_time_is_given() {
        static TURN: Turn = Turn::new();
        assert_eq!(watched(&TURN, LONG, || 7), Ok(7));
    }

    #[test]
    fn one_call_follows_another_at_once() {
        static TURN: Turn = Turn::new();
        for number in 0..200 {
            // No patience: the turn must be free when the answer is there.
            assert!(TURN.take(Duration::ZERO).is_some(), "before call {number}");
            assert_eq!(watched(&TURN, LONG, move || number), Ok(number));
        }
    }

    #[test]
    fn callers_at_the_same_time_are_all_answered() {
        static TURN: Turn = Turn::new();
        thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || assert_eq!(watched(&TURN, LONG, move || number), Ok(number)));
            }
        });
    }

    #[test]
    fn a_blocked_call_is_left_behind_once_and_the_next_is_answered_after_it_ends() {
        static TURN: Turn = Turn::new();
        let (release, blocked) = sync_channel::<()>(0);
        let first = watched(&TURN, SHORT, move || {
            let _ = blocked.recv();
        });
        assert_eq!(first.unwrap_err().code, Code::Timeout);

        let second = watched(&TURN, SHORT, || ());
        assert_eq!(second.unwrap_err().detail.unwrap(), "an earlier call still waits for the driver");

        release.send(()).unwrap();
        assert_eq!(watched(&TURN, LONG, || 7), Ok(7));
    }

    #[test]
    fn a_panicking_call_is_a_fault_and_gives_the_turn_back() {
        static TURN: Turn = Turn::new();
        let answer = watched(&TURN, LONG, || panic!("as a driver binding might"));
        assert_eq!(answer.map(|(): ()| ()).unwrap_err().code, Code::Unknown);
        assert_eq!(watched(&TURN, LONG, || 7), Ok(7));
    }
}
