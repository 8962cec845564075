//! One thread's share of a product, in blocks that fit the caches.
//! A panel of weight rows (expanded if it was packed) stays in the second-level cache while tiles of activations, small
//! enough for the first level, run over it. With few activations the panel is one register tile high, and the weight is
//! read once, as a stream.

use pulp::{Arch, Simd, WithSimd};

use super::tile::{ROWS, TOKENS, dots};
use super::work::Piece;
use super::{Input, Weight, WeightFormat, expand};
use crate::format::unpack::Unpacker;

/// Columns of a block when few activations share the weight: fewer, longer sums.
const STREAM_COLS: usize = 1024;
/// Columns of a block when many do.
const BLOCK_COLS: usize = 512;
/// Weight rows of a panel when many activations share it: 96 x 512 f32 are 192 KiB.
const PANEL_ROWS: usize = 96;
/// Activation rows that stay in the first-level cache beside one tile of weight rows.
const TILE_TOKENS: usize = 3 * TOKENS;
/// f32 that one piece needs for expanded weights.
pub(super) const PANEL: usize = PANEL_ROWS * BLOCK_COLS;

const _: () = assert!(ROWS * STREAM_COLS <= PANEL);

/// Computes a piece; `panel` is [`PANEL`] long.
pub(super) fn product(piece: Piece<'_>, panel: &mut [f32]) {
    Arch::new().dispatch(Blocked { piece, panel, unpacker: Unpacker::new() });
}

/// The same for whichever instruction set it is dispatched to.
pub(super) struct Blocked<'a> {
    pub(super) piece: Piece<'a>,
    pub(super) panel: &'a mut [f32],
    pub(super) unpacker: Unpacker,
}

impl WithSimd for Blocked<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let tokens = self.piece.x.count();
        let (panel_rows, block_cols) = if tokens <= TOKENS {
            (ROWS, STREAM_COLS)
        } else if tokens <= TILE_TOKENS {
            (ROWS, BLOCK_COLS)
        } else {
            (PANEL_ROWS, BLOCK_COLS)
        };
        let (rows, cols) = (self.piece.rows.clone(), self.piece.weight.cols());
        if cols == 0 {
            return self.zero();
        }
        for first in rows.clone().step_by(panel_rows) {
            let count = panel_rows.min(rows.end - first);
            for from in (0..cols).step_by(block_cols) {
                let width = block_cols.min(cols - from);
                self.block(simd, Block { first, count, from, width });
            }
        }
    }
}

/// Weight rows `first .. first + count`, columns `from .. from + width`.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
    from: usize,
    width: usize,
}

impl Blocked<'_> {
    /// A sum of nothing.
    fn zero(&mut self) {
        for t in 0..self.piece.x.count() {
            self.piece.y.row(t).fill(0.0);
        }
    }

    #[inline(always)]
    fn block<S: Simd>(&mut self, simd: S, block: Block) {
        let Block { first, count, from, width } = block;
        let packed = self.piece.weight.format() != WeightFormat::F32;
        if packed {
            for (o, out) in (first..first + count).zip(self.panel.chunks_exact_mut(width)) {
                expand::part_of_row(self.unpacker, self.piece.weight, o, from, out);
            }
        }
        let tokens = self.piece.x.count();
        for t in (0..tokens).step_by(TILE_TOKENS) {
            let tile = t..tokens.min(t + TILE_TOKENS);
            for r in (0..count).step_by(ROWS) {
                let rows = Rows { packed, panel: self.panel, weight: self.piece.weight, block };
                let step = Step {
                    simd,
                    x: self.piece.x,
                    from,
                    add: from > 0,
                    column: first + r - self.piece.rows.start,
                };
                match count - r {
                    1 => step.tokens::<1>(rows.take(r), tile.clone(), &mut self.piece.y),
                    2 => step.tokens::<2>(rows.take(r), tile.clone(), &mut self.piece.y),
                    3 => step.tokens::<3>(rows.take(r), tile.clone(), &mut self.piece.y),
                    _ => step.tokens::<ROWS>(rows.take(r), tile.clone(), &mut self.piece.y),
                }
            }
        }
    }
}

/// Where the rows of a block are: in the panel, or in place.
struct Rows<'a> {
    packed: bool,
    panel: &'a [f32],
    weight: &'a Weight,
    block: Block,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn take<const R: usize>(&self, r: usize) -> [&'a [f32]; R] {
        let Block { first, from, width, .. } = self.block;
        let mut rows: [&[f32]; R] = [&[]; R];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = if self.packed {
                &self.panel[(r + i) * width..][..width]
            } else {
                &self.weight.f32_rows(first + r + i..first + r + i + 1)[from..][..width]
            };
        }
        rows
    }
}

/// A few weight rows against a tile of activations.
struct Step<'a, S> {
    simd: S,
    x: Input<'a>,
    from: usize,
    /// Later columns add to what earlier ones left in y.
    add: bool,
    column: usize,
}

impl<S: Simd> Step<'_, S> {
    #[inline(always)]
    fn tokens<const R: usize>(
        &self,
        w: [&[f32]; R],
        tile: std::ops::Range<usize>,
        y: &mut super::columns::Columns<'_>,
    ) {
        let mut t = tile.start;
        while t < tile.end {
            // Four are better as two and two than as three and one: a single row does not keep the adders busy.
            t += match tile.end - t {
                1 => self.dots::<R, 1>(w, t, y),
                2 | 4 => self.dots::<R, 2>(w, t, y),
                _ => self.dots::<R, TOKENS>(w, t, y),
            };
        }
    }

    #[inline(always)]
    fn dots<const R: usize, const T: usize>(
        &self,
        w: [&[f32]; R],
        t: usize,
        y: &mut super::columns::Columns<'_>,
    ) -> usize {
        let width = w[0].len();
        let mut x: [&[f32]; T] = [&[]; T];
        for (i, x) in x.iter_mut().enumerate() {
            *x = &self.x.row(t + i)[self.from..][..width];
        }
        let sums = dots::<S, R, T>(self.simd, w, x);
        for (i, sums) in sums.into_iter().enumerate() {
            let y = &mut y.row(t + i)[self.column..][..R];
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = if self.add { *y + sum } else { sum };
            }
        }
        T
    }
}
