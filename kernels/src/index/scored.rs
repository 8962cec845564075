//! One query: scores of the entries it sees, in memory for one query only, and the best of them without a sort.

use pulp::{Arch, Simd, WithSimd};

use super::Index;
use crate::linear::tile::{ROWS, TOKENS, dots};

/// Writes the `out.len()` best entries of query `t` in ascending order.
pub(super) fn select_one(
    index: &Index<'_>,
    t: usize,
    scores: &mut [f32],
    ranks: &mut [u64],
    out: &mut [u32],
) {
    let seen = index.visible[t] as usize;
    if out.is_empty() {
        return;
    }
    if out.len() == seen {
        for (entry, w) in out.iter_mut().zip(0..) {
            *entry = w;
        }
        return;
    }
    let scores = &mut scores[..seen];
    Arch::new().dispatch(Score { index, t, scores });
    let ranks = &mut ranks[..seen];
    for ((w, rank), score) in (0..).zip(ranks.iter_mut()).zip(scores.iter()) {
        *rank = rank_of(*score, w);
    }
    let (_, last, _) = ranks.select_nth_unstable(out.len() - 1);
    let last = *last;
    let mut kept = out.iter_mut();
    for (w, score) in (0..).zip(scores.iter()) {
        if rank_of(*score, w) <= last
            && let Some(entry) = kept.next()
        {
            *entry = w;
        }
    }
}

/// Orders by score, largest first, then by entry; no two ranks are equal. The bits of a float order like integers once the
/// negative ones are turned around. A score is a sum that starts at +0, so there is no -0 to tell from it.
#[inline(always)]
fn rank_of(score: f32, w: u32) -> u64 {
    let bits = score.to_bits();
    let descending = if bits >> 31 == 1 { bits } else { bits ^ 0x7FFF_FFFF };
    u64::from(descending) << 32 | u64::from(w)
}

/// Scores of the entries that one query sees, for whichever instruction set it is dispatched to.
pub(super) struct Score<'a> {
    pub(super) index: &'a Index<'a>,
    pub(super) t: usize,
    pub(super) scores: &'a mut [f32],
}

impl WithSimd for Score<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let full = self.scores.len() / ROWS * ROWS;
        for w in (0..full).step_by(ROWS) {
            self.entries::<S, ROWS>(simd, w);
        }
        for w in full..self.scores.len() {
            self.entries::<S, 1>(simd, w);
        }
    }
}

impl Score<'_> {
    #[inline(always)]
    fn entries<S: Simd, const R: usize>(&mut self, simd: S, w: usize) {
        let Index { heads, dim, keys, .. } = *self.index;
        let mut rows: [&[f32]; R] = [&[]; R];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &keys[(w + i) * dim..][..dim];
        }
        let mut scores = [0.0; R];
        let mut head = 0;
        while head < heads {
            head += match heads - head {
                1 => self.heads::<S, R, 1>(simd, rows, head, &mut scores),
                2 | 4 => self.heads::<S, R, 2>(simd, rows, head, &mut scores),
                _ => self.heads::<S, R, TOKENS>(simd, rows, head, &mut scores),
            };
        }
        self.scores[w..w + R].copy_from_slice(&scores);
    }

    /// Adds `H` heads to the scores of `R` entries.
    #[inline(always)]
    fn heads<S: Simd, const R: usize, const H: usize>(
        &self,
        simd: S,
        rows: [&[f32]; R],
        head: usize,
        scores: &mut [f32; R],
    ) -> usize {
        let Index { heads, dim, queries, weights, .. } = *self.index;
        let at = self.t * heads + head;
        let mut q: [&[f32]; H] = [&[]; H];
        for (i, q) in q.iter_mut().enumerate() {
            *q = &queries[(at + i) * dim..][..dim];
        }
        let sums = dots::<S, R, H>(simd, rows, q);
        for i in 0..H {
            for r in 0..R {
                scores[r] += weights[at + i] * sums[i][r].max(0.0);
            }
        }
        H
    }
}
