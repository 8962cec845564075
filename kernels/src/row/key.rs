//! Index keys: what the lightning indexer scores queries against.
//! A query is treated like a key: [`KeyRow::rotate`], then [`KeyRow::round`] for the query, [`KeyRow::encode`] for the key.

use pulp::{Arch, Simd, WithSimd};

use super::RowError;
use crate::format::unpack::{self, FP4_GROUP, Unpacker};
use crate::format::{bf16, e8m0, fp4, fp8};
use crate::round::{self, fp4_group_scale, fp8_row_scale};

/// How index keys are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// Unrounded, not rotated.
    F32,
    /// bf16, not rotated.
    Bf16,
    /// Rotated, e4m3 with one f32 scale a row.
    Fp8,
    /// Rotated, e2m1 with one power-of-two scale per 32 values.
    Fp4,
}

/// The layout of one index key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRow {
    format: KeyFormat,
    dim: usize,
}

impl KeyRow {
    /// Keys of `dim` values.
    pub fn new(format: KeyFormat, dim: usize) -> Result<Self, RowError> {
        let fits = dim.is_power_of_two() && dim >= FP4_GROUP;
        if fits { Ok(Self { format, dim }) } else { Err(RowError::KeyWidth { dim }) }
    }

    pub fn format(&self) -> KeyFormat {
        self.format
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of one key.
    pub fn bytes(&self) -> usize {
        match self.format {
            KeyFormat::F32 => 4 * self.dim,
            KeyFormat::Bf16 => 2 * self.dim,
            KeyFormat::Fp8 => self.dim + 4,
            KeyFormat::Fp4 => self.dim / 2 + self.dim / FP4_GROUP,
        }
    }

    /// Rotates rows (keys or query heads) in place where the format asks for it.
    pub fn rotate(&self, rows: &mut [f32]) {
        if matches!(self.format, KeyFormat::Fp8 | KeyFormat::Fp4) {
            round::hadamard(rows, self.dim);
        }
    }

    /// Rounds rotated rows in place to what the cache can hold.
    pub fn round(&self, rows: &mut [f32]) {
        match self.format {
            KeyFormat::F32 => {}
            KeyFormat::Bf16 => round::bf16(rows),
            KeyFormat::Fp8 => round::fp8_rows(rows, self.dim),
            KeyFormat::Fp4 => round::fp4_groups(rows),
        }
    }

    /// Stores rotated keys in `bytes`: one key, or several one after another.
    ///
    /// # Panics
    /// When a slice has another length than the layout.
    pub fn encode(&self, keys: &[f32], bytes: &mut [u8]) {
        self.check(keys.len(), bytes.len());
        Arch::new().dispatch(Encode { layout: *self, keys, bytes });
    }

    /// Reads stored keys: one, or several one after another.
    ///
    /// # Panics
    /// When a slice has another length than the layout.
    pub fn decode(&self, bytes: &[u8], keys: &mut [f32]) {
        self.check(keys.len(), bytes.len());
        Arch::new().dispatch(Decode { layout: *self, unpacker: Unpacker::new(), bytes, keys });
    }

    fn check(&self, values: usize, bytes: usize) {
        let keys = values / self.dim;
        let expected = (keys * self.dim, keys * self.bytes());
        assert_eq!((values, bytes), expected, "values and bytes of {keys} index keys, {self:?}");
    }
}

struct Encode<'a> {
    layout: KeyRow,
    keys: &'a [f32],
    bytes: &'a mut [u8],
}

impl WithSimd for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { layout, keys, bytes } = self;
        for (key, bytes) in keys.chunks_exact(layout.dim).zip(bytes.chunks_exact_mut(layout.bytes())) {
            match layout.format {
                KeyFormat::F32 => {
                    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(key) {
                        *bytes = value.to_le_bytes();
                    }
                }
                KeyFormat::Bf16 => {
                    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(key) {
                        *bytes = bf16::encode(*value).to_le_bytes();
                    }
                }
                KeyFormat::Fp8 => encode_fp8(key, bytes),
                KeyFormat::Fp4 => encode_fp4(key, bytes),
            }
        }
    }
}

struct Decode<'a> {
    layout: KeyRow,
    unpacker: Unpacker,
    bytes: &'a [u8],
    keys: &'a mut [f32],
}

impl WithSimd for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { layout, unpacker, bytes, keys } = self;
        for (key, bytes) in keys.chunks_exact_mut(layout.dim).zip(bytes.chunks_exact(layout.bytes())) {
            match layout.format {
                KeyFormat::F32 => {
                    for (value, bytes) in key.iter_mut().zip(bytes.as_chunks().0) {
                        *value = f32::from_le_bytes(*bytes);
                    }
                }
                KeyFormat::Bf16 => unpack::bf16(bytes, key),
                KeyFormat::Fp8 => decode_fp8(bytes, key),
                KeyFormat::Fp4 => {
                    let (codes, scales) = bytes.split_at(layout.dim / 2);
                    unpacker.fp4(codes, scales, key);
                }
            }
        }
    }
}

#[inline(always)]
fn encode_fp8(key: &[f32], bytes: &mut [u8]) {
    let (codes, scale_bytes) = bytes.split_at_mut(key.len());
    let scale = fp8_row_scale(key);
    for (code, value) in codes.iter_mut().zip(key) {
        *code = fp8::encode(value / scale);
    }
    scale_bytes.copy_from_slice(&scale.to_le_bytes());
}

#[inline(always)]
fn decode_fp8(bytes: &[u8], key: &mut [f32]) {
    let (codes, scale) = bytes.split_at(key.len());
    let scale = scale.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
    unpack::fp8_scaled(codes, scale, key);
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "two codes of four bits")]
fn encode_fp4(key: &[f32], bytes: &mut [u8]) {
    let (codes, scales) = bytes.split_at_mut(key.len() / 2);
    for ((group, codes), scale_code) in key.chunks(FP4_GROUP).zip(codes.chunks_mut(FP4_GROUP / 2)).zip(scales)
    {
        *scale_code = fp4_group_scale(group);
        // The inverse of a power of two is exact.
        let inverse = 1.0 / e8m0::decode(*scale_code);
        // Codes first, pairs second: the first loop becomes vector instructions.
        let mut ranks = [0; FP4_GROUP];
        for (rank, value) in ranks.iter_mut().zip(group) {
            *rank = fp4::code(value * inverse);
        }
        for (byte, pair) in codes.iter_mut().zip(ranks.as_chunks::<2>().0) {
            *byte = (pair[0] | pair[1] << 4) as u8;
        }
    }
}
