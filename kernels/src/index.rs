//! The lightning indexer: score compressed entries, keep the best.
//! In: query heads, head weights, index keys, how many entries each query may see. Out: per query the entries it attends to,
//! ascending.
//! Never: the scores of all queries at once: [tokens, entries] in f32 is what runs out of memory in long prompts.
//! Negative products are cut before the head's weight is applied, the weight itself may be negative. Equal scores go to the
//! lowest entry, so that every rank selects the same.
//! Source: DeepSeek-V4 reference, `Indexer.forward`.

pub mod reference;
mod scored;
mod selection;

#[cfg(test)]
mod tests;

use crate::Scratch;
use crate::parallel::{self, Split};

use selection::RowsMut;

pub use selection::Selection;

/// What the indexer of one layer looks at for T consecutive tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Index<'a> {
    pub heads: usize,
    pub dim: usize,
    /// `[T, heads, dim]`, rotated and rounded like the keys.
    pub queries: &'a [f32],
    /// `[T, heads]`, with every constant factor already in it.
    pub weights: &'a [f32],
    /// `[entries, dim]`.
    pub keys: &'a [f32],
    /// `[T]`: query t sees the entries below `visible[t]`.
    pub visible: &'a [u32],
    /// Entries to keep at most.
    pub top_k: usize,
}

impl Index<'_> {
    /// Floating-point operations, and what ranking a score costs.
    fn cost(&self) -> usize {
        let scored = self.visible.iter().map(|seen| *seen as usize).filter(|seen| *seen > self.top_k);
        scored.sum::<usize>() * (2 * self.heads * self.dim + 100)
    }

    fn check(&self) {
        let Self { heads, dim, queries, weights, keys, visible, .. } = *self;
        let tokens = visible.len();
        assert_eq!(
            queries.len(),
            tokens * heads * dim,
            "query values of {tokens} tokens, {heads} heads of {dim}"
        );
        assert_eq!(weights.len(), tokens * heads, "head weights of {tokens} tokens, {heads} heads");
        let entries = visible.iter().max().map_or(0, |most| *most as usize);
        assert!(
            keys.len() >= entries * dim,
            "{} key values for {entries} visible entries of {dim}",
            keys.len()
        );
    }
}

/// Fills `selection` with min(top_k, visible) entries per query: those with the highest
/// `score(w) = sum_h weights[h] * max(0, queries[h] . keys[w])`. A query that sees at most top_k entries is not scored.
///
/// # Panics
/// When the lengths do not fit each other.
pub fn select(index: &Index<'_>, selection: &mut Selection, scratch: &mut Scratch) {
    index.check();
    selection.reset(index.visible, index.top_k);
    let most = index.visible.iter().max().map_or(0, |most| *most as usize);
    if most <= index.top_k {
        selection.take_all(index.visible);
        return;
    }
    let pieces = parallel::pieces(index.cost());
    let (scores, ranks) = scratch.take(pieces * most, pieces * most);
    let queries = selection.rows_mut();
    parallel::run(Share { queries, scores, ranks, each: most }, pieces, &|share: Share<'_>| {
        let Share { queries, scores, ranks, .. } = share;
        queries.for_each(|t, out| scored::select_one(index, t, scores, ranks, out));
    });
}

/// What one thread selects: the lists of queries in a row, and memory for the scores of one.
struct Share<'a> {
    queries: RowsMut<'a>,
    scores: &'a mut [f32],
    ranks: &'a mut [u64],
    each: usize,
}

impl Split for Share<'_> {
    fn split(self, left: usize, pieces: usize) -> (Self, Self) {
        let Self { queries, scores, ranks, each } = self;
        let count = queries.len() * left / pieces;
        let (queries, rest) = queries.split_at(count);
        let (scores, other_scores) = scores.split_at_mut(left * each);
        let (ranks, other_ranks) = ranks.split_at_mut(left * each);
        (
            Self { queries, scores, ranks, each },
            Self { queries: rest, scores: other_scores, ranks: other_ranks, each },
        )
    }
}
