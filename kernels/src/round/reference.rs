//! The definitions.

use super::{FP4_GROUP, fp4_group_scale, fp8_row_scale, fp8_tile_scale};
use crate::format::{self, e8m0, fp4, fp8};

/// Rounds every value to bf16, ties to even.
pub fn bf16(values: &mut [f32]) {
    for value in values {
        *value = format::bf16::round(*value);
    }
}

/// Rounds tiles of `tile` consecutive values to e4m3 with one power-of-two scale each.
/// A shorter last tile is a tile of its own.
pub fn fp8_tiles(values: &mut [f32], tile: usize) {
    for tile in values.chunks_mut(tile) {
        let scale = e8m0::decode(fp8_tile_scale(tile));
        for value in tile {
            *value = fp8::decode(fp8::encode(*value / scale)) * scale;
        }
    }
}

/// Rounds groups of 32 consecutive values to e2m1 with one power-of-two scale each.
pub fn fp4_groups(values: &mut [f32]) {
    for group in values.chunks_mut(FP4_GROUP) {
        let scale = e8m0::decode(fp4_group_scale(group));
        for value in group {
            *value = fp4::decode(fp4::encode(*value / scale)) * scale;
        }
    }
}

/// Rounds rows of `dim` values to e4m3 with one f32 scale, max(1e-4, largest magnitude) / 448, each.
pub fn fp8_rows(values: &mut [f32], dim: usize) {
    for row in values.chunks_mut(dim) {
        let scale = fp8_row_scale(row);
        for value in row {
            *value = fp8::decode(fp8::encode(*value / scale)) * scale;
        }
    }
}

/// Rotates rows of `dim` values, a power of two: `y_a = dim^-1/2 * sum_b (-1)^popcount(a & b) x_b`.
///
/// # Panics
/// When `dim` is no power of two.
pub fn hadamard(values: &mut [f32], dim: usize) {
    assert!(dim.is_power_of_two(), "a Hadamard rotation of {dim} values: the width must be a power of two");
    let norm = 1.0 / (dim as f32).sqrt();
    for row in values.chunks_exact_mut(dim) {
        let mut half = 1;
        while half < dim {
            for pair in row.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        for value in row {
            *value *= norm;
        }
    }
}
