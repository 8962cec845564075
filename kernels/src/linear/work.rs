//! How products are spread over threads: between products first, then between the rows of one.

use std::ops::Range;

use super::columns::Columns;
use super::tile::ROWS;
use super::{Input, Product, Weight, blocked};
use crate::parallel::{self, Split};

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

/// Computes `products` in `pieces` pieces, each with its own part of `panels`.
pub(super) fn run(products: &mut [Product<'_>], panels: &mut [f32], pieces: usize) {
    match products {
        [one] => {
            let f = |(piece, panel): (Piece<'_>, &mut [f32])| blocked::product(piece, panel);
            parallel::run((whole(one), panels), pieces, &f);
        }
        some if pieces <= 1 => some.iter_mut().for_each(|product| blocked::product(whole(product), panels)),
        many => {
            let (middle, left) = halve(many, pieces);
            let (first, second) = many.split_at_mut(middle);
            let (first_panels, second_panels) = panels.split_at_mut(left * blocked::PANEL);
            rayon::join(|| run(first, first_panels, left), || run(second, second_panels, pieces - left));
        }
    }
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
        let (Piece { x, weight, rows, y }, panels) = self;
        let count = (rows.len() * left / pieces).next_multiple_of(ROWS).min(rows.len());
        let (y, rest) = y.split_at(count);
        let (panel, panels) = panels.split_at_mut(left * blocked::PANEL);
        let middle = rows.start + count;
        let first = Piece { x, weight, rows: rows.start..middle, y };
        ((first, panel), (Piece { x, weight, rows: middle..rows.end, y: rest }, panels))
    }
}
