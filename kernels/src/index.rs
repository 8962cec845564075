//! The lightning indexer: score compressed entries, keep the best.
//! In: query heads, head weights, index keys, how many entries each query may see. Out: per query the entries it attends to,
//! ascending.
//! Never: the scores of all queries at once: [tokens, entries] in f32 is what runs out of memory in long prompts.
//! Negative products are cut before the head's weight is applied, the weight itself may be negative. Equal scores go to the
//! lowest entry, so that every rank selects the same.
//! Source: DeepSeek-V4 reference, `Indexer.forward`.

pub mod reference;
mod selection;

#[cfg(test)]
mod tests;

use crate::Scratch;

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
pub fn select(index: &Index<'_>, selection: &mut Selection, _scratch: &mut Scratch) {
    index.check();
    selection.reset(index.visible, index.top_k);
    for t in 0..index.visible.len() {
        reference::select_one(index, t, selection.row_mut(t));
    }
}
