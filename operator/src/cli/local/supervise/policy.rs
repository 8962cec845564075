//! When a process that died is started again, and when that is given up.
//! In: the times of starts and exits. Out: a [`Verdict`].
//! Never: clocks, sleeping, I/O.
//! Two rules with two purposes: the delay doubles while exits follow each other, so that a broken start does not burn
//! the machine; the count in a window ends what will not heal by itself, so that a person looks at it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(super) struct RestartPolicy {
    pub(super) first_delay: Duration,
    pub(super) max_delay: Duration,
    /// Restarts allowed in any `window`.
    pub(super) limit: usize,
    /// A process that ran this long is healthy: the next delay is the first one again.
    pub(super) window: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(30),
            limit: 5,
            window: Duration::from_secs(600),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    RestartAfter(Duration),
    GiveUp,
}

/// The restarts of one process.
#[derive(Debug, Clone, Default)]
pub(super) struct Restarts {
    /// At most `limit` of them, the oldest first.
    recent: VecDeque<Instant>,
    in_a_row: u32,
}

impl Restarts {
    /// A process started at `started` has exited `now`.
    pub(super) fn after_exit(&mut self, policy: &RestartPolicy, started: Instant, now: Instant) -> Verdict {
        self.recent.retain(|earlier| now.duration_since(*earlier) < policy.window);
        if self.recent.len() >= policy.limit {
            return Verdict::GiveUp;
        }
        if now.duration_since(started) >= policy.window {
            self.in_a_row = 0;
        }
        let factor = 1_u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX);
        let delay = policy.first_delay.saturating_mul(factor).min(policy.max_delay);
        self.in_a_row += 1;
        self.recent.push_back(now);
        Verdict::RestartAfter(delay)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a process that lives `lives` seconds each time; the delays until it is given up.
    fn delays(lives: &[u64]) -> Vec<f64> {
        let policy = RestartPolicy::default();
        let (mut restarts, mut now) = (Restarts::default(), Instant::now());
        let mut delays = Vec::new();
        for life in lives {
            let started = now;
            now += Duration::from_secs(*life);
            match restarts.after_exit(&policy, started, now) {
                Verdict::RestartAfter(delay) => {
                    delays.push(delay.as_secs_f64());
                    now += delay;
                }
                Verdict::GiveUp => break,
            }
        }
        delays
    }

    #[test]
    fn a_process_that_cannot_start_is_given_up_after_five_restarts() {
        assert_eq!(delays(&[0; 20]), [0.5, 1.0, 2.0, 4.0, 8.0]);
    }

    #[test]
    fn a_process_that_dies_now_and_then_is_restarted_for_ever_with_at_most_30_s_between() {
        assert_eq!(delays(&[180; 9]), [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]);
    }

    #[test]
    fn ten_good_minutes_make_the_delay_short_again() {
        assert_eq!(delays(&[0, 0, 600, 0]), [0.5, 1.0, 0.5, 1.0]);
    }

    proptest! {
        #[test]
        fn no_window_of_ten_minutes_holds_more_than_five_restarts(lives in prop::collection::vec(0..700u64, 1..60)) {
            let policy = RestartPolicy::default();
            let (mut restarts, mut now) = (Restarts::default(), Instant::now());
            let mut times: Vec<Instant> = Vec::new();
            for life in lives {
                let started = now;
                now += Duration::from_secs(life);
                match restarts.after_exit(&policy, started, now) {
                    Verdict::RestartAfter(delay) => {
                        prop_assert!(policy.first_delay <= delay && delay <= policy.max_delay);
                        times.push(now);
                        now += delay;
                    }
                    // Given up only where a sixth would have broken the rule.
                    Verdict::GiveUp => {
                        let recent = times.iter().filter(|t| now.duration_since(**t) < policy.window).count();
                        prop_assert_eq!(recent, policy.limit);
                    }
                }
            }
            for six in times.windows(policy.limit + 1) {
                prop_assert!(six[policy.limit].duration_since(six[0]) >= policy.window);
            }
        }
    }
}
