//! How long to wait before another try: twice as long after each failure, up to a limit, never all at one moment.
//! In: the number of failures, a seed. Out: a duration. Never: a clock, a random source (the seed spreads the waiters).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

/// Delays that double.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// Delay after so many failures in a row; nothing before the first. Between 75 % and 100 % of the doubled time, the
    /// same for the same seed, so that a thousand waiters of one outage do not come back together.
    pub fn delay(&self, failures: u32, seed: &str) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let whole = self.first.saturating_mul(1u32.checked_shl(doublings.min(31)).unwrap_or(u32::MAX));
        let whole = whole.min(self.most);
        let mut hasher = DefaultHasher::new();
        (seed, failures).hash(&mut hasher);
        let quarter = whole / 4;
        let part = u32::try_from(hasher.finish() % 1024).unwrap_or(0);
        whole - quarter * part / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(300));

    #[test]
    fn delays_double_up_to_the_limit_and_stay_within_a_quarter() {
        assert_eq!(B.delay(0, "a"), Duration::ZERO);
        let mut whole = Duration::from_millis(500);
        for failures in 1..40 {
            let delay = B.delay(failures, "a");
            assert!(delay <= whole && delay >= whole * 3 / 4, "{failures}: {delay:?} of {whole:?}");
            whole = (whole * 2).min(Duration::from_secs(300));
        }
        assert!(B.delay(u32::MAX, "a") <= Duration::from_secs(300));
    }

    #[test]
    fn different_seeds_wait_differently() {
        let delays: std::collections::BTreeSet<_> = (0..20).map(|i| B.delay(8, &i.to_string())).collect();
        assert!(delays.len() > 15);
    }
}
