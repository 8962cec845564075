//! The compressor's pooling: several tokens become one entry.
//! In: a gate row and a value row per candidate token. Out: one row. Never: a softmax shared by channels.
//! Which rows are candidates (two overlapping halves for ratio 4, one window for ratio 128) is the model's business.
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/model.py` (Compressor).

pub mod reference;
#[cfg(test)]
mod tests;

use crate::vector::exp;

/// Channels pooled together: what stays in registers.
const BLOCK: usize = 64;

/// Gate and value rows of one candidate token, of the entry's width.
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidate<'a> {
    pub gate: &'a [f32],
    pub value: &'a [f32],
}

/// `entry[c] = Σ_t softmax_t(gate_t[c]) · value_t[c]`, the softmax separately in each channel; at least one candidate.
pub fn compress(candidates: &[Candidate<'_>], entry: &mut [f32]) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (i, entry) in entry.chunks_mut(BLOCK).enumerate() {
                pool_block(candidates, i * BLOCK, entry);
            }
        },
    );
}

#[inline(always)]
fn pool_block(candidates: &[Candidate<'_>], from: usize, entry: &mut [f32]) {
    let width = entry.len();
    let mut max = [f32::NEG_INFINITY; BLOCK];
    for candidate in candidates {
        for (max, gate) in max.iter_mut().zip(&candidate.gate[from..][..width]) {
            *max = max.max(*gate);
        }
    }
    let (mut sums, mut values) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    for candidate in candidates {
        let (gate, value) = (&candidate.gate[from..][..width], &candidate.value[from..][..width]);
        for c in 0..width {
            let weight = exp(gate[c] - max[c]);
            sums[c] += weight;
            values[c] += weight * value[c];
        }
    }
    for ((entry, value), sum) in entry.iter_mut().zip(&values).zip(&sums) {
        *entry = value / sum;
    }
}
