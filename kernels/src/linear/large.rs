//! Many activations: the library's matrix product, on weight rows that are expanded a panel at a time.
//! The library packs both operands into its own layout, which pays from about [`TOKENS`] activations on; below that the
//! register tiles of this crate are faster.

#![expect(unsafe_code, reason = "the library takes pointers and strides")]

use super::columns::Columns;
use super::expand;
use super::work::Piece;
use super::{Product, WeightFormat};

/// From so many activations on.
pub(super) const TOKENS: usize = 80;
/// Weight rows that are expanded at once, if they are not too long: the activations are packed anew for every panel.
const PANEL_ROWS: usize = 256;
/// f32 of a panel.
const PANEL_VALUES: usize = 512 * 1024;

/// f32 of scratch that a piece of `product` needs: copies of scattered activations, and a panel.
pub(super) fn scratch(product: &Product<'_>) -> usize {
    let cols = product.weight.cols();
    let activations = if product.x.rows.is_some() { product.x.count() * cols } else { 0 };
    let packed = product.weight.format() != WeightFormat::F32;
    activations + if packed { panel_rows(cols).min(product.rows.len()) * cols } else { 0 }
}

fn panel_rows(cols: usize) -> usize {
    (PANEL_VALUES / cols.max(1)).clamp(1, PANEL_ROWS)
}

/// Computes a piece; `memory` is as long as [`scratch`] says.
pub(super) fn product(mut piece: Piece<'_>, memory: &mut [f32]) {
    let (tokens, cols) = (piece.x.count(), piece.weight.cols());
    let (copies, panel) = memory.split_at_mut(if piece.x.rows.is_some() { tokens * cols } else { 0 });
    let x = if piece.x.rows.is_some() {
        for (t, copy) in copies.chunks_exact_mut(cols).enumerate() {
            copy.copy_from_slice(piece.x.row(t));
        }
        Rows { values: copies, stride: cols, count: tokens, width: cols }
    } else {
        Rows { values: piece.x.values, stride: piece.x.stride, count: tokens, width: cols }
    };
    if piece.weight.format() == WeightFormat::F32 {
        let values = piece.weight.f32_rows(piece.rows.clone());
        return multiply(
            x,
            Rows { values, stride: cols, count: piece.rows.len(), width: cols },
            &mut piece.y,
            0,
        );
    }
    let step = panel_rows(cols);
    for first in piece.rows.clone().step_by(step) {
        let count = step.min(piece.rows.end - first);
        let panel = &mut panel[..count * cols];
        expand::rows(piece.weight, first..first + count, panel);
        let w = Rows { values: panel, stride: cols, count, width: cols };
        multiply(x, w, &mut piece.y, first - piece.rows.start);
    }
}

/// Rows of `width` values that start every `stride` values.
#[derive(Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
    count: usize,
    width: usize,
}

impl Rows<'_> {
    /// The stride as the library counts it.
    fn step(&self) -> isize {
        let last = self.count.saturating_sub(1) * self.stride;
        assert!(self.count == 0 || last + self.width <= self.values.len(), "rows lie within their values");
        isize::try_from(self.stride).expect("a slice is shorter than isize::MAX")
    }
}

/// `y[t, column + o] = x[t] . w[o]`.
fn multiply(x: Rows<'_>, w: Rows<'_>, y: &mut Columns<'_>, column: usize) {
    assert_eq!(x.width, w.width, "values of a row of x and of the weight");
    let (x_step, w_step) = (x.step(), w.step());
    let (y_start, y_step) = y.block(x.count, column, w.count);
    // SAFETY: `step` checked that every row of x and w lies within its slice, `block` that `x.count` rows of `w.count` columns
    // lie within this view of y, which nothing else can reach while it is borrowed. `y` is written only: alpha is 0 and
    // `read_dst` false.
    unsafe {
        gemm::gemm(
            x.count,
            w.count,
            x.width,
            y_start,
            1,
            y_step,
            false,
            x.values.as_ptr(),
            1,
            x_step,
            w.values.as_ptr(),
            w_step,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
