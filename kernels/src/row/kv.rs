//! KV rows.

use pulp::{Arch, Simd, WithSimd};

use super::RowError;
use crate::format::{bf16, e8m0, fp8, unpack};
use crate::round::{self, fp8_tile_scale};

/// Unrotated values that share a scale.
const TILE: usize = 64;

/// How KV rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvFormat {
    F32,
    /// e4m3 with a power-of-two scale per 64 values, the rotated part in bf16.
    Fp8,
}

/// The layout of one KV row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRow {
    format: KvFormat,
    dim: usize,
    rope: usize,
}

impl KvRow {
    /// Rows of `dim` values, the last `rope` of which are rotated.
    pub fn new(format: KvFormat, dim: usize, rope: usize) -> Result<Self, RowError> {
        let fits = rope <= dim && (dim - rope).is_multiple_of(TILE);
        if fits { Ok(Self { format, dim, rope }) } else { Err(RowError::KvWidth { dim, rope }) }
    }

    pub fn format(&self) -> KvFormat {
        self.format
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of one row.
    pub fn bytes(&self) -> usize {
        let nope = self.dim - self.rope;
        match self.format {
            KvFormat::F32 => 4 * self.dim,
            KvFormat::Fp8 => (nope + 2 * self.rope + nope / TILE).next_multiple_of(8),
        }
    }

    /// Rounds `row` in place to what the cache can hold.
    pub fn round(&self, row: &mut [f32]) {
        if self.format == KvFormat::Fp8 {
            let (nope, rope) = row.split_at_mut(self.dim - self.rope);
            round::fp8_tiles(nope, TILE);
            round::bf16(rope);
        }
    }

    /// Stores rows in `bytes`, every byte of them: one row, or several one after another.
    ///
    /// # Panics
    /// When a slice has another length than the layout.
    pub fn encode(&self, rows: &[f32], bytes: &mut [u8]) {
        self.check(rows.len(), bytes.len());
        match self.format {
            KvFormat::F32 => {
                for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(rows) {
                    *bytes = value.to_le_bytes();
                }
            }
            KvFormat::Fp8 => Arch::new().dispatch(Encode { layout: *self, rows, bytes }),
        }
    }

    /// Reads stored rows: one, or several one after another.
    ///
    /// # Panics
    /// When a slice has another length than the layout.
    pub fn decode(&self, bytes: &[u8], rows: &mut [f32]) {
        self.check(rows.len(), bytes.len());
        match self.format {
            KvFormat::F32 => {
                for (value, bytes) in rows.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            KvFormat::Fp8 => Arch::new().dispatch(Decode { layout: *self, bytes, rows }),
        }
    }

    fn check(&self, values: usize, bytes: usize) {
        let rows = values / self.dim.max(1);
        let expected = (rows * self.dim, rows * self.bytes());
        assert_eq!((values, bytes), expected, "values and bytes of {rows} KV rows, {self:?}");
    }
}

struct Encode<'a> {
    layout: KvRow,
    rows: &'a [f32],
    bytes: &'a mut [u8],
}

impl WithSimd for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { layout, rows, bytes } = self;
        for (row, bytes) in rows.chunks_exact(layout.dim).zip(bytes.chunks_exact_mut(layout.bytes())) {
            layout.encode_fp8(row, bytes);
        }
    }
}

struct Decode<'a> {
    layout: KvRow,
    bytes: &'a [u8],
    rows: &'a mut [f32],
}

impl WithSimd for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { layout, bytes, rows } = self;
        for (row, bytes) in rows.chunks_exact_mut(layout.dim).zip(bytes.chunks_exact(layout.bytes())) {
            layout.decode_fp8(bytes, row);
        }
    }
}

impl KvRow {
    #[inline(always)]
    fn encode_fp8(&self, row: &[f32], bytes: &mut [u8]) {
        let nope = self.dim - self.rope;
        let (codes, rest) = bytes.split_at_mut(nope);
        let (rope, scales) = rest.split_at_mut(2 * self.rope);
        scales.fill(0);
        for ((tile, codes), scale_code) in row[..nope].chunks(TILE).zip(codes.chunks_mut(TILE)).zip(scales) {
            *scale_code = fp8_tile_scale(tile);
            // The inverse of a power of two is exact.
            let inverse = 1.0 / e8m0::decode(*scale_code);
            for (code, value) in codes.iter_mut().zip(tile) {
                *code = fp8::encode(value * inverse);
            }
        }
        for (bytes, value) in rope.as_chunks_mut().0.iter_mut().zip(&row[nope..]) {
            *bytes = bf16::encode(*value).to_le_bytes();
        }
    }

    #[inline(always)]
    fn decode_fp8(&self, bytes: &[u8], row: &mut [f32]) {
        let nope = self.dim - self.rope;
        let (codes, rest) = bytes.split_at(nope);
        let (rope, scales) = rest.split_at(2 * self.rope);
        let (unrotated, rotated) = row.split_at_mut(nope);
        for ((tile, codes), scale) in unrotated.chunks_mut(TILE).zip(codes.chunks(TILE)).zip(scales) {
            unpack::fp8_scaled(codes, e8m0::decode(*scale), tile);
        }
        unpack::bf16(rope, rotated);
    }
}
