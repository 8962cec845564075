//! How many uncached prompt tokens may wait, and who is sent away.
//! In: prompt lengths, computed chunks, measured speed. Out: a [`Permit`], or the refusal with its `Retry-After`.
//! Never: the rule itself (`engine_spec::admission` has it), a clock.
//! A permit holds the tokens of one request that are not computed yet. Dropping it, for whatever reason, gives them back.
//! The verdict's figures are of one moment: ledger and limit are read under one lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_spec::admission::{FIXED_PART_S, admits, queue_limit_tokens, retry_after_s};
use engine_spec::config::AdmissionConfig;

use crate::ApiError;

/// Tokens after which a measurement of the prefill speed counts half.
const SPEED_HALF_LIFE_TOKENS: f64 = 16_384.0;

/// A queue that has not moved for long tells clients to come back within a minute all the same.
const MAX_RETRY_AFTER_S: f64 = 60.0;

/// The ledger of one engine. Clones share it.
#[derive(Debug, Clone)]
pub struct Admission {
    ledger: Arc<Mutex<Ledger>>,
    config: AdmissionConfig,
}

#[derive(Debug, Default)]
struct Ledger {
    backlog_tokens: u64,
    queued: u32,
    /// Decayed sums over busy time: their quotient is the speed.
    tokens: f64,
    seconds: f64,
}

/// What the ledger says at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmissionState {
    pub backlog_tokens: u64,
    pub queued: u32,
    pub limit_tokens: u64,
    /// mu.
    pub prefill_tokens_per_second: f64,
}

impl Admission {
    pub fn new(config: AdmissionConfig) -> Self {
        Self { ledger: Arc::new(Mutex::new(Ledger::default())), config }
    }

    /// Lets a request of `tokens` uncached prompt tokens in.
    ///
    /// # Errors
    /// 429: the backlog is over the limit, or too many requests wait.
    pub fn admit(&self, tokens: u64) -> Result<Permit, ApiError> {
        let mut ledger = self.lock();
        let state = self.state_of(&ledger);
        let (backlog, limit) = (state.backlog_tokens, state.limit_tokens);
        let retry_after = |excess_of: u64| {
            retry_after_s(backlog, excess_of, limit, state.prefill_tokens_per_second).min(MAX_RETRY_AFTER_S)
        };
        if state.queued >= self.config.max_queued_requests {
            let message = format!(
                "{} requests wait already, {} may (maxQueuedRequests). Please retry later.",
                state.queued, self.config.max_queued_requests
            );
            return Err(ApiError::queue_full(message, retry_after(tokens)));
        }
        if !admits(backlog, tokens, limit) {
            let message = format!(
                "{backlog} prompt tokens wait already and this request has {tokens}; {limit} may wait, so that the \
                 first token comes in time. Please retry later."
            );
            return Err(ApiError::queue_full(message, retry_after(tokens)));
        }
        ledger.backlog_tokens = ledger.backlog_tokens.saturating_add(tokens);
        ledger.queued += 1;
        Ok(Permit { ledger: Arc::clone(&self.ledger), tokens })
    }

    /// `tokens` prompt tokens took `seconds` of busy time.
    pub fn measured(&self, tokens: usize, seconds: f64) {
        if tokens == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "tokens of one step")]
        let tokens = tokens as f64;
        let keep = 0.5_f64.powf(tokens / SPEED_HALF_LIFE_TOKENS);
        let mut ledger = self.lock();
        ledger.tokens = ledger.tokens.mul_add(keep, tokens);
        ledger.seconds = ledger.seconds.mul_add(keep, seconds);
    }

    /// A peer computes prompts for this engine, so fast: its word replaces what was measured here.
    pub fn told(&self, tokens_per_second: f64) {
        if tokens_per_second.is_finite() && tokens_per_second > 0.0 {
            let mut ledger = self.lock();
            (ledger.tokens, ledger.seconds) = (tokens_per_second, 1.0);
        }
    }

    pub fn state(&self) -> AdmissionState {
        self.state_of(&self.lock())
    }

    fn state_of(&self, ledger: &Ledger) -> AdmissionState {
        let measured = if ledger.seconds > 0.0 { ledger.tokens / ledger.seconds } else { 0.0 };
        let mu = self.config.prefill_tokens_per_second.unwrap_or(measured);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of an objective")]
        let objective_s = self.config.time_to_first_token_ms as f64 / 1000.0;
        let limit = self
            .config
            .queue_limit_tokens
            .unwrap_or_else(|| queue_limit_tokens(mu, objective_s, FIXED_PART_S));
        AdmissionState {
            backlog_tokens: ledger.backlog_tokens,
            queued: ledger.queued,
            limit_tokens: limit,
            prefill_tokens_per_second: mu,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    // Plain numbers: whole at every point where a holder could have panicked.
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One admitted request's share of the backlog.
#[derive(Debug)]
pub struct Permit {
    ledger: Arc<Mutex<Ledger>>,
    tokens: u64,
}

impl Permit {
    /// So many of the request's tokens have been computed.
    pub fn computed(&mut self, tokens: u64) {
        let done = tokens.min(self.tokens);
        self.tokens -= done;
        lock(&self.ledger).backlog_tokens -= done;
    }

    /// At most `tokens` of the request's tokens are still to compute.
    pub fn remaining(&mut self, tokens: u64) {
        self.computed(self.tokens.saturating_sub(tokens));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut ledger = lock(&self.ledger);
        ledger.backlog_tokens -= self.tokens;
        ledger.queued -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn admission(limit: u64, count: u32) -> Admission {
        Admission::new(AdmissionConfig {
            queue_limit_tokens: Some(limit),
            max_queued_requests: count,
            prefill_tokens_per_second: Some(100.0),
            ..AdmissionConfig::default()
        })
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let admission = admission(1000, 8);
        let _big = admission.admit(5000).expect("an idle server admits any request");
        let refusal = admission.admit(500).unwrap_err();
        assert_eq!((refusal.status, refusal.code), (429, "queue_full"));
        // 4,500 tokens have to go at 100 a second.
        assert!((refusal.retry_after_s.unwrap() - 45.0).abs() < 1e-9);
    }

    #[test]
    fn the_backlog_shrinks_as_chunks_are_computed() {
        let admission = admission(1000, 8);
        let mut permit = admission.admit(900).unwrap();
        assert!(admission.admit(200).is_err());
        permit.computed(512);
        assert_eq!(admission.state().backlog_tokens, 388);
        assert!(admission.admit(200).is_ok());
        permit.computed(10_000);
        drop(permit);
        assert_eq!((admission.state().backlog_tokens, admission.state().queued), (0, 0));
    }

    #[test]
    fn the_count_limit_holds_whatever_the_size() {
        let admission = admission(1_000_000, 2);
        let _held = [admission.admit(1).unwrap(), admission.admit(1).unwrap()];
        assert_eq!(admission.admit(1).unwrap_err().status, 429);
    }

    #[test]
    fn the_speed_follows_what_is_measured_and_nonsense_is_ignored() {
        let admission = Admission::new(AdmissionConfig::default());
        assert_eq!(admission.state().limit_tokens, 1, "nothing is known yet");
        admission.measured(512, 0.5);
        admission.measured(0, 1.0);
        admission.measured(512, f64::NAN);
        let mu = admission.state().prefill_tokens_per_second;
        assert!((mu - 1024.0).abs() < 1e-6, "{mu}");
        for _ in 0..1000 {
            admission.measured(512, 0.25);
        }
        let mu = admission.state().prefill_tokens_per_second;
        assert!((mu - 2048.0).abs() < 1.0, "{mu}");
        assert_eq!(admission.state().limit_tokens, queue_limit_tokens(mu, 10.0, FIXED_PART_S));
    }

    proptest! {
        #[test]
        fn all_tokens_come_back(requests in prop::collection::vec((1_u64..5000, 0_u64..6000), 1..50)) {
            let admission = admission(20_000, 16);
            let mut permits = Vec::new();
            for (tokens, computed) in requests {
                if let Ok(mut permit) = admission.admit(tokens) {
                    permit.computed(computed);
                    permits.push(permit);
                }
            }
            drop(permits);
            let state = admission.state();
            prop_assert_eq!((state.backlog_tokens, state.queued), (0, 0));
        }
    }
}
