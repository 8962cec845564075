//! Rounding in place: what storing a value in a small format and reading it back would give, and the rotation that goes
//! before it.
//! In: f32 values. Out: the same slice, rounded.
//! Never: bytes (those are in [`crate::row`], built on the same scales).
//! The scale of FP8 tiles and FP4 groups is the smallest power of two that brings the largest magnitude into range; the
//! floor keeps an all-zero tile finite.
//! Source: DeepSeek-V4 reference, `act_quant`, `fp4_act_quant`, `hadamard_transform`.

pub mod reference;

#[cfg(test)]
mod tests;

use pulp::{Arch, Simd, WithSimd};

use crate::format::unpack::FP4_GROUP;
use crate::format::{self, e8m0, fp4, fp8};

/// Smallest largest magnitude of an FP8 tile.
const FP8_FLOOR: f32 = 1e-4;

/// Smallest largest magnitude of an FP4 group: 6 * 2^-126, so that the scale stays normal.
const FP4_FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;

/// Rounds every value to bf16, ties to even.
pub fn bf16(values: &mut [f32]) {
    Arch::new().dispatch(Rounding { values, how: How::Bf16 });
}

/// Rounds tiles of `tile` consecutive values to e4m3 with one power-of-two scale each.
/// A shorter last tile is a tile of its own.
pub fn fp8_tiles(values: &mut [f32], tile: usize) {
    Arch::new().dispatch(Rounding { values, how: How::Fp8Tiles(tile) });
}

/// Rounds groups of 32 consecutive values to e2m1 with one power-of-two scale each.
pub fn fp4_groups(values: &mut [f32]) {
    Arch::new().dispatch(Rounding { values, how: How::Fp4Groups });
}

/// Rounds rows of `dim` values to e4m3 with one f32 scale, max(1e-4, largest magnitude) / 448, each.
pub fn fp8_rows(values: &mut [f32], dim: usize) {
    Arch::new().dispatch(Rounding { values, how: How::Fp8Rows(dim) });
}

/// Rotates rows of `dim` values, a power of two: `y_a = dim^-1/2 * sum_b (-1)^popcount(a & b) x_b`.
///
/// # Panics
/// When `dim` is no power of two.
pub fn hadamard(values: &mut [f32], dim: usize) {
    assert!(dim.is_power_of_two(), "a Hadamard rotation of {dim} values: the width must be a power of two");
    Arch::new().dispatch(Rounding { values, how: How::Hadamard(dim) });
}

/// The reference's loops, compiled for the machine at hand.
struct Rounding<'a> {
    values: &'a mut [f32],
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    Bf16,
    Fp8Tiles(usize),
    Fp4Groups,
    Fp8Rows(usize),
    Hadamard(usize),
}

impl WithSimd for Rounding<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { values, how } = self;
        match how {
            How::Bf16 => values.iter_mut().for_each(|value| *value = format::bf16::round(*value)),
            How::Fp8Tiles(tile) => {
                for tile in values.chunks_mut(tile) {
                    // The inverse of a power of two is exact.
                    let scale = e8m0::decode(fp8_tile_scale(tile));
                    round_fp8(tile, 1.0 / scale, scale);
                }
            }
            How::Fp4Groups => {
                for group in values.chunks_mut(FP4_GROUP) {
                    let scale = e8m0::decode(fp4_group_scale(group));
                    let inverse = 1.0 / scale;
                    for value in group {
                        *value = fp4::round(*value * inverse) * scale;
                    }
                }
            }
            How::Fp8Rows(dim) => {
                for row in values.chunks_mut(dim) {
                    let scale = fp8_row_scale(row);
                    for value in row {
                        *value = fp8::decode(fp8::encode(*value / scale)) * scale;
                    }
                }
            }
            How::Hadamard(dim) => values.chunks_exact_mut(dim).for_each(rotate),
        }
    }
}

#[inline(always)]
fn round_fp8(tile: &mut [f32], inverse: f32, scale: f32) {
    for value in tile {
        *value = fp8::decode(fp8::encode(*value * inverse)) * scale;
    }
}

/// The factors of the rotation commute: those between vectors first, those inside a vector of eight last.
#[inline(always)]
fn rotate(row: &mut [f32]) {
    const VECTOR: usize = 8;
    let norm = 1.0 / (row.len() as f32).sqrt();
    let mut half = if row.len() < VECTOR { 1 } else { VECTOR };
    while half < row.len() {
        for pair in row.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    for vector in row.as_chunks_mut::<VECTOR>().0 {
        butterfly::<1>(vector);
        butterfly::<2>(vector);
        butterfly::<4>(vector);
    }
    for value in row {
        *value *= norm;
    }
}

/// `(a, b)` becomes `(a + b, a - b)` for values `HALF` apart, written as one expression per value.
#[inline(always)]
fn butterfly<const HALF: usize>(vector: &mut [f32; 8]) {
    let x = *vector;
    let mut signed = x;
    for i in 0..8 {
        signed[i] = if i & HALF == 0 { x[i] } else { -x[i] };
    }
    for i in 0..8 {
        vector[i] = x[i ^ HALF] + signed[i];
    }
}

/// The e8m0 byte of one FP8 tile; NaN when a value is.
#[inline(always)]
pub(crate) fn fp8_tile_scale(tile: &[f32]) -> u8 {
    e8m0::at_least(largest(tile, FP8_FLOOR) / fp8::MAX)
}

/// The e8m0 byte of one FP4 group; NaN when a value is.
#[inline(always)]
pub(crate) fn fp4_group_scale(group: &[f32]) -> u8 {
    e8m0::at_least(largest(group, FP4_FLOOR) / fp4::MAX)
}

/// The f32 scale of one FP8 row, not a power of two; NaN when a value is.
#[inline(always)]
pub(crate) fn fp8_row_scale(row: &[f32]) -> f32 {
    largest(row, FP8_FLOOR) / fp8::MAX
}

/// The largest magnitude, at least `floor`. Magnitudes order like their bits, and NaN is above all of them.
#[inline(always)]
fn largest(values: &[f32], floor: f32) -> f32 {
    let bits = values.iter().fold(floor.to_bits(), |most, value| most.max(value.to_bits() & 0x7FFF_FFFF));
    f32::from_bits(bits)
}
