//! How much may wait at a prefill replica.
//! In: the user's numbers, the GPUs that were planned. Out: [`QueueLimit`] with its derivation.
//! Never: a measurement; what is not known before the start is left to the engine, and said so.

use engine_spec::Role;
use std::collections::BTreeMap;

use engine_spec::admission::{
    DEFAULT_MAX_QUEUED_REQUESTS, DEFAULT_TIME_TO_FIRST_TOKEN_S, FIXED_PART_S, QUEUE_SAFETY, SpeedSource,
    UNKNOWN_GPU_TOKENS_PER_S, prefill_speed, queue_limit_tokens,
};
use node_facts::NodeFacts;

use crate::plan::{ComputeDevice, PlanInput, QueueLimit, ReplicaPlan};
use crate::report::thousands;

/// The limit for the slowest prefill (or unified) replica, so that it holds for each.
pub(crate) fn queue_limit(input: &PlanInput<'_>, replicas: &[ReplicaPlan]) -> QueueLimit {
    let asked = &input.spec.admission;
    let objective_s = asked.time_to_first_token.map_or(DEFAULT_TIME_TO_FIRST_TOKEN_S, |time| {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of days are far below 2^52")]
        let seconds = time.millis() as f64 / 1000.0;
        seconds
    });
    let (speed, source) = speed(input, replicas);
    let derived = speed.map(|speed| queue_limit_tokens(speed, objective_s, FIXED_PART_S));
    let given = asked.queue_limit_tokens.and_then(|tokens| u64::try_from(tokens).ok());
    let derivation = match given {
        Some(_) => "the object's own number".to_owned(),
        None => derivation(speed, &source, objective_s),
    };
    QueueLimit {
        tokens: given.or(derived),
        given: given.is_some(),
        requests: asked
            .max_queued_requests
            .and_then(|requests| u32::try_from(requests).ok())
            .unwrap_or(DEFAULT_MAX_QUEUED_REQUESTS),
        time_to_first_token_ms: milliseconds(objective_s),
        prefill_tokens_per_second: speed,
        source,
        derivation,
    }
}

fn milliseconds(seconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; `as` saturates")]
    let milliseconds = (seconds * 1000.0).round() as u64;
    milliseconds
}

fn speed(input: &PlanInput<'_>, replicas: &[ReplicaPlan]) -> (Option<f64>, SpeedSource) {
    if let Some(speed) = input.spec.admission.prefill_tokens_per_second {
        return (Some(speed), SpeedSource::Given);
    }
    let on_gpus = |replica: &&ReplicaPlan| {
        replica.device == ComputeDevice::Cuda && matches!(replica.role, Role::Prefill | Role::Unified)
    };
    let nodes: BTreeMap<&str, &NodeFacts> =
        input.nodes.iter().map(|facts| (facts.node.as_str(), facts)).collect();
    let slowest = replicas
        .iter()
        .filter(on_gpus)
        .map(|replica| {
            let ranks = u32::try_from(replica.gpus.len()).unwrap_or(u32::MAX);
            prefill_speed(&gpu_name(nodes.get(replica.node.as_str()).copied(), replica), ranks)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0));
    match slowest {
        Some((speed, source)) => (Some(speed), source),
        None => (None, SpeedSource::WarmUp),
    }
}

/// Name of the replica's first GPU; `unknown GPU` where the facts have none.
fn gpu_name(facts: Option<&NodeFacts>, replica: &ReplicaPlan) -> String {
    let gpus = facts.and_then(|facts| facts.gpus.value());
    let first = replica.gpus.first();
    let gpu = gpus.into_iter().flatten().find(|gpu| first.is_some_and(|first| first.uuid == gpu.uuid));
    gpu.and_then(|gpu| gpu.name.value()).cloned().unwrap_or_else(|| "unknown GPU".to_owned())
}

fn derivation(speed: Option<f64>, source: &SpeedSource, objective_s: f64) -> String {
    let Some(speed) = speed else {
        return "from the prefill speed, which is measured at start: one chunk is timed before readiness"
            .to_owned();
    };
    let from = match source {
        SpeedSource::Given => "the object's own speed".to_owned(),
        SpeedSource::Table { gpu, gpus } => format!("measured on {gpus} x {gpu}"),
        SpeedSource::Assumed { gpu, gpus } => {
            format!("assumed, {UNKNOWN_GPU_TOKENS_PER_S} for each of {gpus} x {gpu}, until it is measured")
        }
        SpeedSource::WarmUp => "measured at start".to_owned(),
    };
    let speed = thousands(milliseconds(speed / 1000.0));
    format!(
        "{QUEUE_SAFETY} x {speed} tokens/s ({from}) x ({objective_s} s to the first token - {FIXED_PART_S} s fixed part)"
    )
}
