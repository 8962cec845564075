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

pub use reference::{bf16, fp4_groups, fp8_rows, fp8_tiles, hadamard};

use crate::format::{e8m0, fp4, fp8};

/// Smallest largest magnitude of an FP8 tile.
const FP8_FLOOR: f32 = 1e-4;

/// Smallest largest magnitude of an FP4 group: 6 * 2^-126, so that the scale stays normal.
const FP4_FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;

/// Values of one FP4 group.
pub const FP4_GROUP: usize = 32;

/// The e8m0 byte of one FP8 tile.
pub(crate) fn fp8_tile_scale(tile: &[f32]) -> u8 {
    e8m0::at_least(largest(tile).max(FP8_FLOOR) / fp8::MAX)
}

/// The e8m0 byte of one FP4 group.
pub(crate) fn fp4_group_scale(group: &[f32]) -> u8 {
    e8m0::at_least(largest(group).max(FP4_FLOOR) / fp4::MAX)
}

/// The f32 scale of one FP8 row, not a power of two.
pub(crate) fn fp8_row_scale(row: &[f32]) -> f32 {
    largest(row).max(FP8_FLOOR) / fp8::MAX
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}
