//! Attention of one layer: every head of a query over its window and its compressed entries, with a sink.
//! In: queries `[T, heads, dim]`, window rows, entries and which of them each query sees. Out: `[T, heads, dim]`, before the
//! inverse rotation.
//! Never: a mask or score matrix of all queries; two copies of K and V (one row is both).
//! The sink is one more logit in the softmax that has no value: it only takes weight away.
//! Source: DeepSeek-V4 reference, `sparse_attn`.

pub mod reference;
mod tiled;

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::Scratch;
use crate::index::Selection;
use crate::parallel::{self, Split};

/// Which compressed entries a query sees.
#[derive(Debug, Clone, Copy)]
pub enum Seen<'a> {
    /// None: the window only.
    Nothing,
    /// `[T]`: query t sees the entries below `prefix[t]`.
    Prefix(&'a [u32]),
    /// Query t sees the entries of its list.
    Selected(&'a Selection),
}

/// Attention of T consecutive tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    pub heads: usize,
    pub dim: usize,
    /// `[T, heads, dim]`.
    pub queries: &'a [f32],
    /// `[heads]`.
    pub sinks: &'a [f32],
    /// `[n, dim]`: raw rows in the order of their positions, those of the queries' own tokens last.
    pub window: &'a [f32],
    /// Raw rows a query sees at most, its own included.
    pub window_len: usize,
    /// `[entries, dim]`; empty when nothing is seen.
    pub entries: &'a [f32],
    pub seen: Seen<'a>,
}

impl Attention<'_> {
    /// How many queries there are.
    pub fn tokens(&self) -> usize {
        self.queries.len() / (self.heads * self.dim).max(1)
    }

    /// The window rows that query `t` sees: up to its own and not more than `window_len`.
    pub(crate) fn window_range(&self, t: usize) -> Range<usize> {
        let end = self.window.len() / self.dim - self.tokens() + t + 1;
        end.saturating_sub(self.window_len)..end
    }

    /// How many entries query `t` sees.
    pub(crate) fn entry_count(&self, t: usize) -> usize {
        match self.seen {
            Seen::Nothing => 0,
            Seen::Prefix(visible) => visible[t] as usize,
            Seen::Selected(selection) => selection.row(t).len(),
        }
    }

    /// The `n`th entry that query `t` sees.
    pub(crate) fn entry(&self, t: usize, n: usize) -> usize {
        match self.seen {
            Seen::Nothing | Seen::Prefix(_) => n,
            Seen::Selected(selection) => selection.row(t)[n] as usize,
        }
    }

    /// Floating-point operations.
    fn cost(&self) -> usize {
        let rows: usize = (0..self.tokens()).map(|t| self.window_range(t).len() + self.entry_count(t)).sum();
        4 * rows * self.heads * self.dim
    }

    fn check(&self, out: usize) {
        let Self { heads, dim, queries, sinks, window, window_len, .. } = *self;
        let tokens = self.tokens();
        assert!(heads > 0 && dim > 0 && window_len > 0, "{heads} heads of {dim}, a window of {window_len}");
        assert_eq!(queries.len(), tokens * heads * dim, "query values of {heads} heads of {dim}");
        assert_eq!(out, queries.len(), "values of the result, values of the queries");
        assert_eq!(sinks.len(), heads, "sinks, heads");
        assert_eq!(window.len() % dim, 0, "values of the window rows of {dim}");
        assert!(window.len() / dim >= tokens, "{} window rows for {tokens} queries", window.len() / dim);
        let (lists, beyond) = match self.seen {
            Seen::Nothing => (tokens, 0),
            Seen::Prefix(visible) => (visible.len(), visible.iter().max().map_or(0, |most| *most as usize)),
            Seen::Selected(selection) => {
                let last = |t| selection.row(t).last().map_or(0, |last| *last as usize + 1);
                (selection.len(), (0..selection.len()).map(last).max().unwrap_or(0))
            }
        };
        assert_eq!(lists, tokens, "queries that see entries, queries");
        assert!(self.entries.len() >= beyond * dim, "{} values for {beyond} entries", self.entries.len());
    }
}

/// `out[t, h] = sum_j softmax_j(q[t, h] . row_j / sqrt(dim), sink_h) row_j` over the window rows and entries that t sees.
///
/// # Panics
/// When the lengths do not fit each other.
pub fn attention(attention: &Attention<'_>, out: &mut [f32], scratch: &mut Scratch) {
    attention.check(out.len());
    let pieces = parallel::pieces(attention.cost());
    let each = tiled::scratch(attention.heads);
    let (scratch, _) = scratch.take(pieces * each, 0);
    let pairs = 0..attention.tokens() * attention.heads;
    let share = Share { pairs, heads: attention.heads, dim: attention.dim, out, scratch, each };
    parallel::run(share, pieces, &|share: Share<'_>| {
        tiled::attention(attention, share.pairs, share.out, share.scratch);
    });
}

/// What one thread computes: heads in a row, across queries.
struct Share<'a> {
    /// Numbers `t * heads + head`.
    pairs: Range<usize>,
    heads: usize,
    dim: usize,
    out: &'a mut [f32],
    scratch: &'a mut [f32],
    each: usize,
}

impl Split for Share<'_> {
    fn split(self, left: usize, pieces: usize) -> (Self, Self) {
        let Self { pairs, heads, dim, out, scratch, each } = self;
        let mut count = pairs.len() * left / pieces;
        // A query's heads share its rows: cut between queries when there are enough of them.
        if pairs.len() >= 2 * pieces * heads {
            count -= (pairs.start + count) % heads;
        }
        let middle = pairs.start + count;
        let (out, rest) = out.split_at_mut(count * dim);
        let (scratch, others) = scratch.split_at_mut(left * each);
        (
            Self { pairs: pairs.start..middle, heads, dim, out, scratch, each },
            Self { pairs: middle..pairs.end, heads, dim, out: rest, scratch: others, each },
        )
    }
}
