//! The router of the experts, and the experts' activation.
//! In: router logits or token ids; gate and up projections. Out: expert ids, weights; the activated product.
//! Never: the selection bias inside a weight, a clamp on only one of the two projections.
//! Ties go to the lowest expert id, so that every rank and every batch chooses alike.
//! Source: deepseek-ai/DeepSeek-V4 `inference/model.py` (Gate, Expert), July version (shared expert clamped too).

pub mod reference;
#[cfg(test)]
mod tests;

use crate::vector::sigmoid;

/// In place: `s = sqrt(ln(1 + e^logit))`, without overflow at either end.
pub fn gate_scores(logits: &mut [f32]) {
    for logit in logits {
        *logit = (logit.max(0.0) + (-logit.abs()).exp().ln_1p()).sqrt();
    }
}

/// The `k` experts of the largest `scores + bias` per token, by descending value; `scores` is `[T, E]`, `ids` `[T, k]`.
pub fn gate_select(scores: &[f32], bias: &[f32], k: usize, ids: &mut [u32]) {
    for (scores, ids) in scores.chunks_exact(bias.len()).zip(ids.chunks_exact_mut(k)) {
        let key = |e: u32| scores[e as usize] + bias[e as usize];
        let mut count = 0;
        for e in 0..u32::try_from(bias.len()).unwrap_or(u32::MAX) {
            // Insertion into a short sorted list; strict, so that an equal later expert stays behind.
            let mut at = count;
            while at > 0 && key(e) > key(ids[at - 1]) {
                at -= 1;
            }
            if at < k {
                count = (count + 1).min(k);
                ids.copy_within(at..count - 1, at + 1);
                ids[at] = e;
            }
        }
    }
}

/// `w = s_e / Σ_{chosen} s · scaling`; an expert chosen twice counts twice. `weights` is `[T, k]` like `ids`.
pub fn gate_weights(
    scores: &[f32],
    experts: usize,
    ids: &[u32],
    k: usize,
    scaling: f32,
    weights: &mut [f32],
) {
    let tokens = scores.chunks_exact(experts).zip(ids.chunks_exact(k));
    for ((scores, ids), weights) in tokens.zip(weights.chunks_exact_mut(k)) {
        let sum: f32 = ids.iter().map(|e| scores[*e as usize]).sum();
        for (weight, e) in weights.iter_mut().zip(ids) {
            *weight = scores[*e as usize] / sum * scaling;
        }
    }
}

/// In place of `gate`: `silu(min(gate, limit)) · clamp(up, ±limit) · weight of the row`. `gate` and `up` are
/// `[rows, width]`; `weights` has one value per row, or is empty for the shared expert, whose weight is 1.
pub fn swiglu(gate: &mut [f32], up: &[f32], width: usize, limit: f32, weights: &[f32]) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (row, (gate, up)) in gate.chunks_exact_mut(width).zip(up.chunks_exact(width)).enumerate() {
                let weight = weights.get(row).copied().unwrap_or(1.0);
                for (gate, up) in gate.iter_mut().zip(up) {
                    // Comparisons instead of min and clamp: NaN stays NaN, and the loop stays free of branches.
                    let a = if *gate > limit { limit } else { *gate };
                    let b = if *up > limit { limit } else { *up };
                    let b = if b < -limit { -limit } else { b };
                    *gate = weight * (a * sigmoid(a)) * b;
                }
            }
        },
    );
}
