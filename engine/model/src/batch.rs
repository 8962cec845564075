//! What one step computes: a ragged batch of sequences, prompt chunks and single decode tokens alike.

/// A request slot: window rows and compressor state of one sequence. Index below the pool's `request_slots`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A page of [`engine_spec::PAGE_TOKENS`] full-history tokens. Index below the pool's `kv_pages`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u32);

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    pub slot: Slot,
    /// Page table: `pages[i]` holds positions `256 * i ..`; it covers at least `start + tokens.len()` positions.
    pub pages: &'a [Page],
    /// Position of `tokens[0]`: the number of this sequence's tokens that earlier steps computed.
    pub start: usize,
    pub tokens: &'a [u32],
    pub want: Want,
}

/// Which rows of logits a segment needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: a chunk inside a prompt.
    Nothing,
    /// Of the last token: the next one is sampled.
    Last,
    /// Of every token: tests.
    All,
}

/// Rows of logits in the order of the segments that wanted them: `[rows, vocab]`, f32.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Logits {
    pub vocab: usize,
    pub values: Vec<f32>,
}

impl Logits {
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        // An empty vocabulary has no rows; chunks(0) would panic.
        self.values.chunks(self.vocab.max(1))
    }
}
