//! How many prompt tokens may wait: one rule for planner, router and engine.
//! In: measured prefill speed, the objective, the fixed part. Out: a limit in uncached prompt tokens.
//! Never: a clock or a measurement of its own.

/// Time to first token that an object asks for when it says nothing, in seconds.
pub const DEFAULT_TIME_TO_FIRST_TOKEN_S: f64 = 10.0;

/// The part of the time to first token that does not grow with the backlog (HTTP, hand-over, first decode step), until
/// it has been measured, in seconds.
pub const FIXED_PART_S: f64 = 0.4;

/// Share of the objective that may be spent waiting: the rest absorbs the error of the speed estimate.
pub const QUEUE_SAFETY: f64 = 0.8;

/// Requests that may wait whatever their size, when the object says nothing.
pub const DEFAULT_MAX_QUEUED_REQUESTS: u32 = 256;

/// `Q = 0.8 * mu * (T - t0)`: the backlog, in uncached prompt tokens, beyond which a new request would miss the
/// objective. `mu` is in tokens per second, `objective_s` and `fixed_s` in seconds. Never below one token, so that an
/// idle server is never closed.
pub fn queue_limit_tokens(mu: f64, objective_s: f64, fixed_s: f64) -> u64 {
    let limit = QUEUE_SAFETY * mu * (objective_s - fixed_s);
    if limit.is_nan() || limit < 1.0 {
        return 1;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; `as` saturates")]
    let tokens = limit as u64;
    tokens
}

/// Whether a request of `own` uncached tokens may join a backlog of `backlog`: it fits the limit, or nothing waits.
pub fn admits(backlog: u64, own: u64, limit: u64) -> bool {
    backlog == 0 || backlog.saturating_add(own) <= limit
}

/// Seconds until `backlog` has shrunk so that `own` more tokens fit under `limit`; at least one, for `Retry-After`.
pub fn retry_after_s(backlog: u64, own: u64, limit: u64, mu: f64) -> f64 {
    // A request larger than the limit is admitted only when nothing waits.
    let target = limit.saturating_sub(own);
    let excess = backlog.saturating_sub(target);
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    let seconds = excess as f64 / mu.max(1.0);
    seconds.max(1.0)
}

/// Prefill speed of a replica before the first measurement, in uncached tokens per second, by a part of the GPU's name
/// and the number of GPUs. The figure is the measured one of the deployment that the product comes from.
const PREFILL_SPEED: &[(&str, u32, f64)] = &[("RTX PRO 6000", 4, 3300.0)];

/// Assumed tokens per second and GPU where the table has no row: a low figure gives short queues, the safe side.
pub const UNKNOWN_GPU_TOKENS_PER_S: f64 = 500.0;

/// Where a prefill speed comes from; the report names it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum SpeedSource {
    /// The object's own figure.
    Given,
    /// A row of the table for this GPU and this number of ranks.
    Table { gpu: String, gpus: u32 },
    /// No row for this GPU: [`UNKNOWN_GPU_TOKENS_PER_S`] for each.
    Assumed { gpu: String, gpus: u32 },
    /// On the CPU: one chunk is timed before the server is ready.
    WarmUp,
}

/// The prefill speed to plan with for `gpus` GPUs called `gpu`.
pub fn prefill_speed(gpu: &str, gpus: u32) -> (f64, SpeedSource) {
    for &(name, ranks, speed) in PREFILL_SPEED {
        if gpu.contains(name) && ranks == gpus {
            return (speed, SpeedSource::Table { gpu: gpu.to_owned(), gpus });
        }
    }
    (UNKNOWN_GPU_TOKENS_PER_S * f64::from(gpus), SpeedSource::Assumed { gpu: gpu.to_owned(), gpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_story_gets_78_144_tokens() {
        let (mu, _) = prefill_speed("NVIDIA RTX PRO 6000 Blackwell Server Edition", 4);
        assert_eq!(queue_limit_tokens(mu, 30.0, FIXED_PART_S), 78_144);
    }

    #[test]
    fn an_idle_server_admits_any_request() {
        assert!(admits(0, 1_000_000, 10));
        assert!(!admits(1, 10, 10));
        assert!(admits(5, 5, 10));
    }

    #[test]
    fn nonsense_never_closes_the_queue() {
        assert_eq!(queue_limit_tokens(f64::NAN, 30.0, 0.4), 1);
        assert_eq!(queue_limit_tokens(100.0, 0.1, 0.4), 1);
        assert_eq!(queue_limit_tokens(f64::INFINITY, 30.0, 0.4), u64::MAX);
    }

    #[test]
    fn retry_after_is_the_time_to_shrink_and_at_least_a_second() {
        assert!((retry_after_s(9000, 1000, 4000, 1000.0) - 6.0).abs() < 1e-9);
        assert!((retry_after_s(10, 10, 4000, 1000.0) - 1.0).abs() < 1e-9);
    }
}
