//! The definitions, value by value.

#![expect(clippy::cast_possible_truncation, reason = "sums are f64, results f32")]

use crate::format::{self, e8m0, fp4, fp8};

/// See [`super::bf16`].
pub fn bf16(values: &mut [f32]) {
    for value in values {
        *value = format::bf16::round(*value);
    }
}

/// See [`super::fp8_tiles`].
pub fn fp8_tiles(values: &mut [f32], tile: usize) {
    for tile in values.chunks_mut(tile) {
        let scale = e8m0::decode(e8m0::at_least(largest(tile).max(1e-4) / 448.0));
        for value in tile {
            *value = fp8::decode(fp8::encode((*value / scale).clamp(-448.0, 448.0))) * scale;
        }
    }
}

/// See [`super::fp4_groups`].
pub fn fp4_groups(values: &mut [f32]) {
    for group in values.chunks_mut(32) {
        let scale = e8m0::decode(e8m0::at_least(largest(group).max(6.0 * f32::MIN_POSITIVE) / 6.0));
        for value in group {
            *value = fp4::decode(fp4::encode(*value / scale)) * scale;
        }
    }
}

/// See [`super::fp8_rows`].
pub fn fp8_rows(values: &mut [f32], dim: usize) {
    for row in values.chunks_mut(dim) {
        let scale = largest(row).max(1e-4) / 448.0;
        for value in row {
            *value = fp8::decode(fp8::encode((*value / scale).clamp(-448.0, 448.0))) * scale;
        }
    }
}

/// See [`super::hadamard`].
pub fn hadamard(values: &mut [f32], dim: usize) {
    for row in values.chunks_exact_mut(dim) {
        let x = row.to_vec();
        for (a, y) in row.iter_mut().enumerate() {
            let signed = x.iter().enumerate().map(|(b, x)| {
                let odd = (a & b).count_ones() % 2 == 1;
                f64::from(if odd { -x } else { *x })
            });
            *y = (signed.sum::<f64>() / (dim as f64).sqrt()) as f32;
        }
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}
