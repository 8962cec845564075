//! How products are spread over threads: between products first, then between the rows of one.

use std::ops::Range;

use super::columns::Columns;
#[cfg(target_arch = "x86_64")]
use super::stream;
use super::tile::ROWS;
use super::{Input, Product, Weight, blocked, large};
use crate::parallel::{self, Split};
use crate::scratch::{CACHE_LINE, Scratch};

/// Rows of one product, as one thread computes them.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) x: Input<'a>,
    pub(super) weight: &'a Weight,
    pub(super) rows: Range<usize>,
    pub(super) y: Columns<'a>,
}

/// How many pieces to cut `products` into. Several products are cut finer, because their sizes differ.
pub(super) fn pieces(products: &[Product<'_>]) -> usize {
    match parallel::pieces(products.iter().map(cost).sum()) {
        1 => 1,
        pieces if products.len() == 1 => pieces,
        pieces => 2 * pieces,
    }
}

/// Computes `products` in `pieces` pieces, each with its own part of `memory`, `pieces` times what [`scratch`] says.
pub(super) fn run(products: &mut [Product<'_>], memory: &mut [f32], pieces: usize) {
    match products {
        [one] => parallel::run((whole(one), memory), pieces, &|(piece, memory)| compute(piece, memory)),
        some if pieces <= 1 => some.iter_mut().for_each(|product| compute(whole(product), memory)),
        many => {
            let (middle, left) = halve(many, pieces);
            let (first, second) = many.split_at_mut(middle);
            let (first_memory, second_memory) = memory.split_at_mut(memory.len() / pieces * left);
            rayon::join(|| run(first, first_memory, left), || run(second, second_memory, pieces - left));
        }
    }
}

/// f32 of scratch that a piece of any of `products` needs, in whole cache lines.
pub(super) fn scratch(products: &[Product<'_>]) -> usize {
    let each = |product: &Product<'_>| {
        if product.x.count() >= large::TOKENS { large::scratch(product) } else { blocked::PANEL }
    };
    products.iter().map(each).max().unwrap_or(0).next_multiple_of(CACHE_LINE)
}

/// The way over a piece depends on how many activations share the weight.
fn compute(piece: Piece<'_>, memory: &mut [f32]) {
    if piece.x.count() >= large::TOKENS {
        return large::product(piece, memory);
    }
    #[cfg(target_arch = "x86_64")]
    if piece.x.count() <= stream::TOKENS
        && piece.weight.is_streamable()
        && let Some(avx2) = pulp::x86::V3::try_new()
    {
        return stream::product(avx2, piece);
    }
    blocked::product(piece, memory);
}

/// Floating-point operations of a product, and ten per value for fetching and expanding the weight.
fn cost(product: &Product<'_>) -> usize {
    let values = product.rows.len().saturating_mul(product.weight.cols());
    values.saturating_mul(2 * product.x.count() + 10)
}

/// Where to cut two or more products so that each side has about half of the cost, and the pieces of the first side.
fn halve(products: &[Product<'_>], pieces: usize) -> (usize, usize) {
    let total: usize = products.iter().map(cost).sum();
    let mut before = cost(&products[0]);
    let mut middle = 1;
    while middle + 1 < products.len() && 2 * before < total {
        before += cost(&products[middle]);
        middle += 1;
    }
    let left = (before * pieces + total / 2) / total.max(1);
    (middle, left.clamp(1, pieces - 1))
}

fn whole<'p>(product: &'p mut Product<'_>) -> Piece<'p> {
    let Product { x, weight, rows, y, y_stride } = product;
    let y = Columns::new(y, x.count(), rows.len(), *y_stride);
    Piece { x: *x, weight, rows: rows.clone(), y }
}

impl Split for (Piece<'_>, &mut [f32]) {
    fn split(self, left: usize, pieces: usize) -> (Self, Self) {
        let (Piece { x, weight, rows, y }, memory) = self;
        let count = (rows.len() * left / pieces).next_multiple_of(ROWS).min(rows.len());
        let (y, rest) = y.split_at(count);
        let (memory, others) = memory.split_at_mut(memory.len() / pieces * left);
        let middle = rows.start + count;
        let first = Piece { x, weight, rows: rows.start..middle, y };
        ((first, memory), (Piece { x, weight, rows: middle..rows.end, y: rest }, others))
    }
}

/// Computes every group of a block-diagonal product, groups spread over threads.
pub(super) fn run_grouped(x: &[f32], weight: &Weight, groups: usize, y: &mut [f32], scratch: &mut Scratch) {
    let (rows, cols) = (weight.rows() / groups, weight.cols());
    let stride = groups * cols;
    let tokens = x.len() / stride.max(1);
    if tokens == 0 || rows == 0 {
        return;
    }
    let cost = weight.rows().saturating_mul(cols).saturating_mul(2 * tokens + 10);
    let pieces = parallel::pieces(cost).min(groups);
    // One group says what all of them need: they differ in nothing but where they are.
    let one =
        Product { x: Input::strided(x, stride, cols), weight, rows: 0..rows, y: &mut [], y_stride: rows };
    let each = self::scratch(&[one]);
    let (memory, _) = scratch.take(pieces * each, 0);
    let y = Columns::new(y, tokens, weight.rows(), weight.rows());
    let share = Grouped { x, stride, weight, rows, groups: 0..groups, y };
    parallel::run((share, memory), pieces, &|(share, memory): (Grouped<'_>, &mut [f32])| {
        let Grouped { x, stride, weight, rows, groups, mut y } = share;
        for group in groups {
            let (these, rest) = y.split_at(rows);
            let x = Input::strided(&x[group * weight.cols()..], stride, weight.cols());
            compute(Piece { x, weight, rows: group * rows..(group + 1) * rows, y: these }, memory);
            y = rest;
        }
    });
}

/// Some groups of a block-diagonal product.
#[derive(Debug)]
struct Grouped<'a> {
    x: &'a [f32],
    stride: usize,
    weight: &'a Weight,
    /// Rows of one group.
    rows: usize,
    groups: Range<usize>,
    y: Columns<'a>,
}

impl Split for (Grouped<'_>, &mut [f32]) {
    fn split(self, left: usize, pieces: usize) -> (Self, Self) {
        let (Grouped { x, stride, weight, rows, groups, y }, memory) = self;
        let count = groups.len() * left / pieces;
        let middle = groups.start + count;
        let (y, rest) = y.split_at(count * rows);
        let (memory, others) = memory.split_at_mut(memory.len() / pieces * left);
        (
            (Grouped { x, stride, weight, rows, groups: groups.start..middle, y }, memory),
            (Grouped { x, stride, weight, rows, groups: middle..groups.end, y: rest }, others),
        )
    }
}
