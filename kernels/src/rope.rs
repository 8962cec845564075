//! Rotary position embedding on adjacent pairs, and its inverse.
//! In: positions, frequencies, rows whose last values are rotated. Out: rotated rows.
//! Never: the half-split pairing, an amplitude factor, angles from a recurrence or in bf16.
//! The inverse rotation exists because V carries its key's rotation: undoing the query's leaves the distance only.
//! Source: deepseek-ai/DeepSeek-V4 `inference/model.py` (precompute_freqs_cis, apply_rotary_emb); YaRN, arXiv 2309.00071.

pub mod reference;
#[cfg(test)]
mod tests;

use std::f64::consts::PI;

/// YaRN's stretching of long wavelengths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// Positions of the unstretched model.
    pub original_positions: usize,
}

/// Which way to turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Forward,
    Inverse,
}

/// Angle per position of each pair, `θ^(-2i/dim)`, stretched where `yarn` says so.
pub fn frequencies(dim: usize, theta: f64, yarn: Option<&Yarn>) -> Vec<f32> {
    let plain = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64);
    let Some(yarn) = yarn else {
        return (0..dim / 2).map(|i| to_f32(plain(i))).collect();
    };
    let turns_to_pair = |beta: f64| {
        dim as f64 * (yarn.original_positions as f64 / (2.0 * PI * beta)).ln() / (2.0 * theta.ln())
    };
    let low = turns_to_pair(yarn.beta_fast).floor().max(0.0);
    let high = turns_to_pair(yarn.beta_slow).ceil().min(dim as f64 - 1.0);
    let width = if low == high { 0.001 } else { high - low };
    (0..dim / 2)
        .map(|i| {
            let keep = 1.0 - ((i as f64 - low) / width).clamp(0.0, 1.0);
            to_f32(plain(i) * (keep + (1.0 - keep) / yarn.factor))
        })
        .collect()
}

/// cos and sin of `position · f_i`, interleaved, one row of `2 · frequencies.len()` per position; `out` is replaced.
pub fn rotations(frequencies: &[f32], positions: impl Iterator<Item = usize>, out: &mut Vec<f32>) {
    out.clear();
    for position in positions {
        for frequency in frequencies {
            // The product in f32, as the reference tabulates it; positions stay below 2^24.
            let (sin, cos) = (position as f32 * frequency).sin_cos();
            out.extend([cos, sin]);
        }
    }
}

/// Rotates the last values of every row in place. `x` is `[T, rows_per_position, dim]`, `rotations` `[T, rope_dim]` as
/// [`rotations`] writes them.
pub fn rope(
    x: &mut [f32],
    rows_per_position: usize,
    dim: usize,
    rotations: &[f32],
    rope_dim: usize,
    turn: Turn,
) {
    debug_assert_eq!(x.len() / (rows_per_position * dim), rotations.len() / rope_dim);
    let sign = if turn == Turn::Forward { 1.0 } else { -1.0 };
    let positions = x.chunks_exact_mut(rows_per_position * dim).zip(rotations.chunks_exact(rope_dim));
    for (rows, rotation) in positions {
        for row in rows.chunks_exact_mut(dim) {
            rotate(&mut row[dim - rope_dim..], rotation, sign);
        }
    }
}

#[inline]
fn rotate(x: &mut [f32], rotation: &[f32], sign: f32) {
    let (pairs, _) = x.as_chunks_mut::<2>();
    let (turns, _) = rotation.as_chunks::<2>();
    for ([a, b], [cos, sin]) in pairs.iter_mut().zip(turns) {
        let sin = sign * sin;
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "frequencies are tabulated in f32, as the reference does"
)]
fn to_f32(x: f64) -> f32 {
    x as f32
}
