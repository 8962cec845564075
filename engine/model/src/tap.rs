//! Looking into a step: what tests record, and replace.
//! In: a layer's intermediate results, in rows of the step. Out: nothing, or other values in their place.
//! Never: a cost when unused: the unit type is the tap of programs and compiles to nothing.

use std::ops::Range;

pub(crate) trait Tap: Sync {
    /// Attention's output `[rows, d]` before it enters the streams.
    fn attention_out(&self, _layer: usize, _rows: Range<usize>, _y: &mut [f32]) {}

    /// The experts' output `[rows, d]` before it enters the streams.
    fn moe_out(&self, _layer: usize, _rows: Range<usize>, _y: &mut [f32]) {}

    /// The experts of each row, `[rows, k]`.
    fn experts(&self, _layer: usize, _rows: Range<usize>, _ids: &[u32]) {}

    /// The entries that a row of a ratio-4 layer attends to.
    fn entries(&self, _layer: usize, _row: usize, _entries: impl Iterator<Item = u32>) {}
}

impl Tap for () {}
