//! Matrix products `y[t, o] = sum_i x[t, i] * W[o, i]`: activations f32, weights as published.
//! In: rows of x, a [`Weight`] of any format or a range of its rows. Out: rows of y, overwritten.
//! Never: an allocation once the scratch is warm; a thread outside the current rayon pool; rounding of activations.
//! Packed weights stay packed in memory: a block is expanded next to the core that uses it, exactly, so the format changes
//! speed and never a result beyond the order of additions.
//! Source: DeepSeek-V4 reference, `fp8_gemm`, `fp4_gemm`, `linear`.

mod blocked;
mod columns;
mod expand;
mod large;
pub mod reference;
#[cfg(target_arch = "x86_64")]
mod stream;
pub(crate) mod tile;
mod weight;
mod work;

#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

use crate::Scratch;

pub use weight::{Weight, WeightError, WeightFormat};

/// Rows of x: all rows of a matrix, or the ones that a list names.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    values: &'a [f32],
    stride: usize,
    width: usize,
    count: usize,
    rows: Option<&'a [u32]>,
}

impl<'a> Input<'a> {
    /// Rows of `width` values, one after another.
    pub fn new(values: &'a [f32], width: usize) -> Self {
        Self::strided(values, width, width)
    }

    /// Rows that start every `stride` values, of which the first `width` count.
    pub fn strided(values: &'a [f32], stride: usize, width: usize) -> Self {
        assert!(width <= stride, "rows of {width} values cannot start every {stride}");
        let count = if values.len() < width { 0 } else { (values.len() - width) / stride.max(1) + 1 };
        Self { values, stride, width, count, rows: None }
    }

    /// Rows of `width` values, taken in the order of `rows`.
    pub fn gathered(values: &'a [f32], width: usize, rows: &'a [u32]) -> Self {
        Self { values, stride: width, width, count: rows.len(), rows: Some(rows) }
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Values of one row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Row `t`.
    pub(crate) fn row(&self, t: usize) -> &'a [f32] {
        let row = self.rows.map_or(t, |rows| rows[t] as usize);
        &self.values[row * self.stride..][..self.width]
    }
}

/// One product: `y[t, o - rows.start] = x[t] . weight[o]` for every row t of x and every o in `rows`.
#[derive(Debug)]
pub struct Product<'a> {
    pub x: Input<'a>,
    pub weight: &'a Weight,
    /// Rows of the weight, so columns of y.
    pub rows: Range<usize>,
    /// Row t of y starts at `t * y_stride`.
    pub y: &'a mut [f32],
    pub y_stride: usize,
}

impl<'a> Product<'a> {
    /// The product with every row of the weight, y without gaps.
    pub fn new(x: Input<'a>, weight: &'a Weight, y: &'a mut [f32]) -> Self {
        Self { x, weight, rows: 0..weight.rows(), y, y_stride: weight.rows() }
    }

    fn check(&self) {
        let Self { x, weight, rows, y, y_stride } = self;
        assert_eq!(x.width, weight.cols(), "values of a row of x, columns of the weight");
        assert!(rows.start <= rows.end && rows.end <= weight.rows(), "rows {rows:?} of {}", weight.rows());
        assert!(rows.len() <= *y_stride, "{} columns do not fit a stride of {y_stride}", rows.len());
        let needed = x.count.checked_sub(1).map_or(0, |last| last * y_stride + rows.len());
        assert!(y.len() >= needed, "y holds {} values, the product needs {needed}", y.len());
    }
}

/// `y[T, o] = x[T, i] . W[o, i]^T`; T follows from the length of x.
///
/// # Panics
/// When the lengths of x and y do not fit the weight.
pub fn linear(x: &[f32], weight: &Weight, y: &mut [f32], scratch: &mut Scratch) {
    products(&mut [Product::new(Input::new(x, weight.cols()), weight, y)], scratch);
}

/// Block-diagonal product: x `[T, groups, i]`, weight `[groups * r, i]`, y `[T, groups, r]`.
///
/// # Panics
/// When the lengths do not fit, or `groups` does not divide the rows of the weight.
pub fn linear_grouped(x: &[f32], weight: &Weight, groups: usize, y: &mut [f32], scratch: &mut Scratch) {
    assert!(groups > 0 && weight.rows().is_multiple_of(groups), "{} rows in {groups} groups", weight.rows());
    let width = groups * weight.cols();
    assert!(x.len().is_multiple_of(width.max(1)), "{} values of x in rows of {width}", x.len());
    let tokens = x.len() / width.max(1);
    assert_eq!(y.len(), tokens * weight.rows(), "values of y for {tokens} tokens");
    work::run_grouped(x, weight, groups, y, scratch);
}

/// `y[n, o] = x[tokens[n], i] . W[o, i]^T`: the rows of x that `tokens` names, as an expert needs them.
///
/// # Panics
/// When the lengths do not fit or a token is beyond x.
pub fn linear_gathered(x: &[f32], tokens: &[u32], weight: &Weight, y: &mut [f32], scratch: &mut Scratch) {
    products(&mut [Product::new(Input::gathered(x, weight.cols(), tokens), weight, y)], scratch);
}

/// Several independent products at once. Small ones share one hand-over to other threads, which alone would cost more
/// than it gives: pass all products that read the same activations together.
///
/// # Panics
/// When the lengths of a product do not fit.
pub fn products(products: &mut [Product<'_>], scratch: &mut Scratch) {
    products.iter().for_each(Product::check);
    let pieces = work::pieces(products);
    let (memory, _) = scratch.take(pieces * work::scratch(products), 0);
    work::run(products, memory, pieces);
}
