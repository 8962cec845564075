//! One thread's share of attention: query by query, rows in tiles that stay in cache between scoring and summing.
//! The softmax is computed on the way: when a tile holds a larger score than all before, what was summed so far is scaled
//! down. Nothing longer than a tile is kept, whatever the context.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::Attention;
use crate::linear::tile::{ROWS, TOKENS, dots};
use crate::vector::exp;

/// Rows of a tile at most.
const TILE: usize = 64;
/// f32 of a tile's rows: as much as a first-level cache holds, so that summing finds what scoring has read.
const TILE_VALUES: usize = 8 * 1024;
/// Query heads and vectors of the tile that sums rows: twelve sums in registers.
const SUM_HEADS: usize = 4;
const SUM_VECTORS: usize = 3;

/// f32 of scratch that a piece of `heads` heads needs: scores of a tile, and maximum, sum and correction per head.
pub(super) fn scratch(heads: usize) -> usize {
    heads * (TILE + 3)
}

/// Computes the heads `pairs` (numbered `t * heads + head`) into `out`, `[pairs.len(), dim]`.
pub(super) fn attention(
    attention: &Attention<'_>,
    pairs: Range<usize>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    Arch::new().dispatch(Tiled { attention, pairs, out, scratch });
}

/// The same for whichever instruction set it is dispatched to.
pub(super) struct Tiled<'a> {
    pub(super) attention: &'a Attention<'a>,
    pub(super) pairs: Range<usize>,
    pub(super) out: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
}

impl WithSimd for Tiled<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { attention, pairs, out, scratch } = self;
        let Attention { heads, dim, .. } = *attention;
        let mut pair = pairs.start;
        let mut out = out;
        while pair < pairs.end {
            let (t, first) = (pair / heads, pair % heads);
            let count = (heads - first).min(pairs.end - pair);
            let (these, rest) = out.split_at_mut(count * dim);
            let query = Query { attention, t, heads: first..first + count };
            query.attend(simd, these, scratch);
            (pair, out) = (pair + count, rest);
        }
    }
}

/// Some heads of one query.
struct Query<'a> {
    attention: &'a Attention<'a>,
    t: usize,
    heads: Range<usize>,
}

impl<'a> Query<'a> {
    #[inline(always)]
    fn attend<S: Simd>(&self, simd: S, out: &mut [f32], scratch: &mut [f32]) {
        let Attention { dim, sinks, .. } = *self.attention;
        let count = self.heads.len();
        let (scores, state) = scratch.split_at_mut(count * TILE);
        let (most, state) = state.split_at_mut(count);
        let (total, state) = state.split_at_mut(count);
        let correction = &mut state[..count];
        // The sink is the first logit; it has no value.
        most.copy_from_slice(&sinks[self.heads.clone()]);
        total.fill(1.0);
        out.fill(0.0);
        let window = self.attention.window_range(self.t);
        let seen = window.len() + self.attention.entry_count(self.t);
        let tile = (TILE_VALUES / dim).clamp(ROWS, TILE);
        let mut rows: [&[f32]; TILE] = [&[]; TILE];
        for from in (0..seen).step_by(tile) {
            let rows = &mut rows[..tile.min(seen - from)];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = self.row(&window, from + i);
            }
            self.score(simd, rows, scores);
            for head in 0..count {
                let scores = &mut scores[head * TILE..][..rows.len()];
                correction[head] = soften(scores, &mut most[head], &mut total[head]);
            }
            sum(simd, rows, scores, correction, out, dim);
        }
        for (head, total) in out.chunks_exact_mut(dim).zip(total) {
            let norm = 1.0 / *total;
            for value in head {
                *value *= norm;
            }
        }
    }

    /// The `n`th row that the query sees: its window first, then its entries.
    #[inline(always)]
    fn row(&self, window: &Range<usize>, n: usize) -> &'a [f32] {
        let Attention { dim, window: raw, entries, .. } = *self.attention;
        match n.checked_sub(window.len()) {
            None => &raw[(window.start + n) * dim..][..dim],
            Some(n) => &entries[self.attention.entry(self.t, n) * dim..][..dim],
        }
    }

    /// `scores[head][i] = q[head] . rows[i] / sqrt(dim)`.
    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, rows: &[&[f32]], scores: &mut [f32]) {
        let (tiles, rest) = rows.as_chunks::<ROWS>();
        for (i, tile) in tiles.iter().enumerate() {
            self.score_rows(simd, *tile, ROWS * i, scores);
        }
        for (i, row) in rest.iter().enumerate() {
            self.score_rows(simd, [*row], ROWS * tiles.len() + i, scores);
        }
    }

    #[inline(always)]
    fn score_rows<S: Simd, const R: usize>(&self, simd: S, rows: [&[f32]; R], at: usize, scores: &mut [f32]) {
        let count = self.heads.len();
        let mut head = 0;
        while head < count {
            head += match count - head {
                1 => self.score_heads::<S, R, 1>(simd, rows, head, at, scores),
                2 | 4 => self.score_heads::<S, R, 2>(simd, rows, head, at, scores),
                _ => self.score_heads::<S, R, TOKENS>(simd, rows, head, at, scores),
            };
        }
    }

    #[inline(always)]
    fn score_heads<S: Simd, const R: usize, const H: usize>(
        &self,
        simd: S,
        rows: [&[f32]; R],
        head: usize,
        at: usize,
        scores: &mut [f32],
    ) -> usize {
        let Attention { heads, dim, queries, .. } = *self.attention;
        let mut q: [&[f32]; H] = [&[]; H];
        for (i, q) in q.iter_mut().enumerate() {
            *q = &queries[(self.t * heads + self.heads.start + head + i) * dim..][..dim];
        }
        let scale = 1.0 / (dim as f32).sqrt();
        let sums = dots::<S, R, H>(simd, rows, q);
        for i in 0..H {
            let scores = &mut scores[(head + i) * TILE + at..][..R];
            for r in 0..R {
                scores[r] = sums[i][r] * scale;
            }
        }
        H
    }
}

/// Turns scores into weights relative to the largest score so far, adds them to `total`, and returns what earlier weights
/// must be multiplied with.
#[inline(always)]
fn soften(scores: &mut [f32], most: &mut f32, total: &mut f32) -> f32 {
    let mut larger = *most;
    for score in scores.iter() {
        larger = larger.max(*score);
    }
    let correction = if larger > *most { exp(*most - larger) } else { 1.0 };
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = exp(*score - larger);
    }
    for score in scores.iter() {
        sum += *score;
    }
    *most = larger;
    *total = *total * correction + sum;
    correction
}

/// `out[head] = out[head] * correction[head] + sum_i weights[head][i] * rows[i]`.
#[inline(always)]
fn sum<S: Simd>(simd: S, rows: &[&[f32]], weights: &[f32], correction: &[f32], out: &mut [f32], dim: usize) {
    let vectors = dim / S::F32_LANES;
    for (block, correction) in correction.chunks(SUM_HEADS).enumerate() {
        let weights = &weights[block * SUM_HEADS * TILE..];
        let out = &mut out[block * SUM_HEADS * dim..];
        let mut v = 0;
        while v < vectors {
            v += match (correction.len(), vectors - v) {
                (SUM_HEADS, SUM_VECTORS..) => {
                    sum_block::<S, SUM_HEADS, SUM_VECTORS>(simd, rows, weights, correction, out, v)
                }
                (SUM_HEADS, _) => sum_block::<S, SUM_HEADS, 1>(simd, rows, weights, correction, out, v),
                (3, SUM_VECTORS..) => sum_block::<S, 3, SUM_VECTORS>(simd, rows, weights, correction, out, v),
                (3, _) => sum_block::<S, 3, 1>(simd, rows, weights, correction, out, v),
                (2, SUM_VECTORS..) => sum_block::<S, 2, SUM_VECTORS>(simd, rows, weights, correction, out, v),
                (2, _) => sum_block::<S, 2, 1>(simd, rows, weights, correction, out, v),
                (_, SUM_VECTORS..) => sum_block::<S, 1, SUM_VECTORS>(simd, rows, weights, correction, out, v),
                _ => sum_block::<S, 1, 1>(simd, rows, weights, correction, out, v),
            };
        }
        for (head, correction) in correction.iter().enumerate() {
            for d in vectors * S::F32_LANES..dim {
                let mut value = out[head * dim + d] * correction;
                for (row, weight) in rows.iter().zip(&weights[head * TILE..]) {
                    value += weight * row[d];
                }
                out[head * dim + d] = value;
            }
        }
    }
}

/// `H` heads times `V` vectors of the result in registers while all rows of the tile go by.
#[inline(always)]
fn sum_block<S: Simd, const H: usize, const V: usize>(
    simd: S,
    rows: &[&[f32]],
    weights: &[f32],
    correction: &[f32],
    out: &mut [f32],
    v: usize,
) -> usize {
    let dim = rows[0].len();
    let lanes = v * S::F32_LANES..(v + V) * S::F32_LANES;
    let mut weights_of: [&[f32]; H] = [&[]; H];
    for (head, of) in weights_of.iter_mut().enumerate() {
        *of = &weights[head * TILE..][..rows.len()];
    }
    let mut sums = [[simd.splat_f32s(0.0); V]; H];
    for head in 0..H {
        let old = S::as_simd_f32s(&out[head * dim..][lanes.clone()]).0;
        let correction = simd.splat_f32s(correction[head]);
        for i in 0..V {
            sums[head][i] = simd.mul_f32s(old[i], correction);
        }
    }
    for (n, row) in rows.iter().enumerate() {
        let row = S::as_simd_f32s(&row[lanes.clone()]).0;
        let mut values = [simd.splat_f32s(0.0); V];
        values.copy_from_slice(row);
        for head in 0..H {
            let weight = simd.splat_f32s(weights_of[head][n]);
            for i in 0..V {
                sums[head][i] = simd.mul_add_f32s(weight, values[i], sums[head][i]);
            }
        }
    }
    for head in 0..H {
        let new = S::as_mut_simd_f32s(&mut out[head * dim..][lanes.clone()]).0;
        new.copy_from_slice(&sums[head]);
    }
    V
}
