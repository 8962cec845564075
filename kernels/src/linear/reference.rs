//! The definition, with f64 sums.

#![expect(clippy::cast_possible_truncation, reason = "sums are f64, results f32")]

use super::{Product, Weight, WeightFormat};
use crate::format::{bf16, e8m0, fp4, fp8};

/// One product.
pub fn product(product: &mut Product<'_>) {
    let Product { x, weight, rows, y, y_stride } = product;
    for (column, o) in rows.clone().enumerate() {
        for t in 0..x.count() {
            let row = x.row(t).iter().enumerate();
            let sum: f64 = row.map(|(i, value)| f64::from(*value) * f64::from(element(weight, o, i))).sum();
            y[t * *y_stride + column] = sum as f32;
        }
    }
}

/// The value of `weight[o, i]`.
pub fn element(weight: &Weight, o: usize, i: usize) -> f32 {
    let (data, scales, cols) = (weight.data(), weight.scales(), weight.cols());
    let at = o * cols + i;
    match weight.format() {
        WeightFormat::F32 => f32::from_le_bytes(data[4 * at..].first_chunk().copied().unwrap_or_default()),
        WeightFormat::Bf16 => bf16::decode(u16::from_le_bytes([data[2 * at], data[2 * at + 1]])),
        WeightFormat::Fp8 => {
            let scale = scales[o / 128 * cols.div_ceil(128) + i / 128];
            fp8::decode(data[at]) * e8m0::decode(scale)
        }
        WeightFormat::Fp4 => {
            let nibble = data[at / 2] >> (4 * (at % 2));
            fp4::decode(nibble & 15) * e8m0::decode(scales[at / 32])
        }
    }
}
