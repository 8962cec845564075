use proptest::prelude::*;

use super::*;

fn ready() -> Health {
    let mut health = Health::unknown();
    health.polled(PollResult::Ready);
    health
}

fn suspect() -> Health {
    let mut health = ready();
    (0..SUSPECT_AFTER).for_each(|_| health.requested(RequestResult::Status(500)));
    assert_eq!(health.state(), WorkerState::Suspect);
    health
}

/// S65
#[test]
fn client_errors_never_open_the_breaker() {
    let mut health = ready();
    for status in [400, 429, 404, 413].into_iter().cycle().take(400) {
        health.requested(RequestResult::Status(status));
        assert_eq!(health.state(), WorkerState::Ready);
    }
}

/// S66
#[test]
fn slow_polls_leave_a_worker_whose_answers_flow() {
    let mut health = ready();
    for _ in 0..50 {
        health.polled(PollResult::Slow { answers_flow: true });
        assert_eq!(health.state(), WorkerState::Ready);
    }
    (0..SLOW_POLLS).for_each(|_| health.polled(PollResult::Slow { answers_flow: false }));
    assert_eq!(health.state(), WorkerState::Down);
}

#[test]
fn a_refused_connection_takes_a_worker_away_at_once_and_one_poll_brings_it_back() {
    let mut health = ready();
    health.requested(RequestResult::ConnectFailed);
    assert_eq!(health.state(), WorkerState::Down);
    health.polled(PollResult::Ready);
    assert_eq!(health.state(), WorkerState::Ready);
}

#[test]
fn a_draining_worker_gets_nothing_new_and_no_blame() {
    let mut health = ready();
    (0..20).for_each(|_| health.requested(RequestResult::Status(503)));
    assert_eq!(health.state(), WorkerState::Ready);
    health.polled(PollResult::NotReady);
    assert_eq!(health.state(), WorkerState::NotReady);
    assert!(!health.state().takes_requests());
}

#[test]
fn a_suspect_is_tried_again_and_one_failure_is_enough_then() {
    let mut health = suspect();
    (0..RETRY_AFTER_POLLS).for_each(|_| health.polled(PollResult::Ready));
    assert_eq!(health.state(), WorkerState::Ready);
    health.requested(RequestResult::Broken);
    assert_eq!(health.state(), WorkerState::Suspect);
}

#[test]
fn a_restarted_worker_starts_without_blame() {
    let mut health = suspect();
    health.polled(PollResult::Unreachable);
    health.polled(PollResult::Ready);
    assert_eq!(health.state(), WorkerState::Ready);
}

proptest! {
    #[test]
    fn a_ready_poll_and_a_good_answer_always_make_a_worker_ready(
        history in prop::collection::vec((0..9_u8, 100..600_u16), 0..100)
    ) {
        let mut health = Health::unknown();
        for (kind, status) in history {
            match kind {
                0 => health.polled(PollResult::Ready),
                1 => health.polled(PollResult::NotReady),
                2 => health.polled(PollResult::Unreachable),
                3 => health.polled(PollResult::Slow { answers_flow: false }),
                4 => health.requested(RequestResult::ConnectFailed),
                5 => health.requested(RequestResult::Broken),
                _ => health.requested(RequestResult::Status(status)),
            }
        }
        health.polled(PollResult::Ready);
        prop_assert!(health.state().takes_requests());
        health.requested(RequestResult::Status(200));
        prop_assert_eq!(health.state(), WorkerState::Ready);
    }
}
