//! Few activations: each stored code is unpacked in registers, multiplied with every activation and forgotten.
//! The weight is read once, as a stream, and nothing is written but the result. AVX2; other machines, more activations and
//! scales beyond f32's exponent take the way over a panel.

#![expect(
    clippy::needless_range_loop,
    reason = "register tiles: constant bounds, several arrays by one index"
)]

use std::ops::Range;

use pulp::x86::V3;
use pulp::{Simd, WithSimd, cast, f32x8};

use super::reference::element;
use super::weight::FP8_BLOCK;
use super::work::Piece;
use super::{Weight, WeightFormat};
use crate::format::unpack::{FP4_GROUP, fp4_group};

/// Columns that one step unpacks: four registers of f32.
const STEP: usize = 32;
/// Activations at most.
pub(super) const TOKENS: usize = 4;

/// 2^120 times the scale of an FP8 block, see `format::fp8`. Scales that do not fit are not streamed.
const FP8_FACTORS: [f32; 256] = {
    let mut factors = [0.0; 256];
    let mut scale = 0;
    while scale <= 134 {
        factors[scale as usize] = f32::from_bits((scale + 120) << 23);
        scale += 1;
    }
    factors
};

/// Half of the scale of an FP4 group: codes unpack to doubled values.
const FP4_FACTORS: [f32; 256] = {
    let mut factors = [0.0; 256];
    let mut scale = 2;
    while scale <= 254 {
        factors[scale as usize] = f32::from_bits((scale - 1) << 23);
        scale += 1;
    }
    factors
};

/// Whether every scale of a weight in `format` has a factor above.
pub(super) fn fits(format: WeightFormat, scales: &[u8]) -> bool {
    match format {
        WeightFormat::F32 | WeightFormat::Bf16 => true,
        WeightFormat::Fp8 => scales.iter().all(|scale| *scale <= 134),
        WeightFormat::Fp4 => scales.iter().all(|scale| (2..255).contains(scale)),
    }
}

/// Computes a piece with at most [`TOKENS`] activations.
pub(super) fn product(avx2: V3, piece: Piece<'_>) {
    Simd::vectorize(avx2, Stream { avx2, piece });
}

struct Stream<'a> {
    avx2: V3,
    piece: Piece<'a>,
}

impl WithSimd for Stream<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { avx2, piece } = self;
        match piece.weight.format() {
            WeightFormat::F32 => Rows { avx2, piece, unpack: F32 }.product(),
            WeightFormat::Bf16 => Rows { avx2, piece, unpack: Bf16 }.product(),
            WeightFormat::Fp8 => Rows { avx2, piece, unpack: Fp8 }.product(),
            WeightFormat::Fp4 => Rows { avx2, piece, unpack: Fp4 }.product(),
        }
    }
}

struct Rows<'a, U> {
    avx2: V3,
    piece: Piece<'a>,
    unpack: U,
}

impl<U: Unpack> Rows<'_, U> {
    /// Rows at a time and partial sums, by activations: enough sums to hide the latency of an addition, and not more than
    /// registers hold beside what unpacking needs.
    #[inline(always)]
    fn product(mut self) {
        match self.piece.x.count() {
            1 => self.tiles::<4, 1, 2>(),
            2 => self.tiles::<4, 2, 1>(),
            3 => self.tiles::<2, 3, 1>(),
            TOKENS => self.tiles::<2, TOKENS, 1>(),
            _ => {}
        }
    }

    #[inline(always)]
    fn tiles<const R: usize, const T: usize, const P: usize>(&mut self) {
        let whole = self.piece.weight.cols() / STEP;
        let mut x: [&[[f32x8; 4]]; T] = [&[]; T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = &V3::as_simd_f32s(self.piece.x.row(t)).0.as_chunks().0[..whole];
        }
        let Range { start, end } = self.piece.rows;
        let full = start + (end - start) / R * R;
        for o in (start..full).step_by(R) {
            let sums = self.tile::<R, T, P>(o, x);
            self.store(o, sums);
        }
        for o in full..end {
            let sums = self.tile::<1, T, P>(o, x);
            self.store(o, sums);
        }
    }

    /// The whole steps of `R` rows from `o` on with all `T` activations, in `P` partial sums each.
    #[inline(always)]
    fn tile<const R: usize, const T: usize, const P: usize>(
        &self,
        o: usize,
        x: [&[[f32x8; 4]]; T],
    ) -> [[f32; R]; T] {
        let Self { avx2, ref piece, unpack } = *self;
        let whole = x[0].len();
        let mut codes: [&[U::Codes]; R] = [&[]; R];
        let mut scales: [&[u8]; R] = [&[]; R];
        for r in 0..R {
            let (row, row_scales) = unpack.row(piece.weight, o + r);
            (codes[r], scales[r]) = (&row[..whole], row_scales);
        }
        let mut sums = [[[avx2.splat_f32x8(0.0); P]; R]; T];
        for i in 0..whole {
            for r in 0..R {
                let (values, factor) = unpack.step(avx2, codes[r][i], scales[r], i);
                for t in 0..T {
                    let x = x[t][i];
                    if U::SCALED_AFTER {
                        let mut part = avx2.mul_f32x8(values[0], x[0]);
                        for j in 1..4 {
                            part = avx2.mul_add_f32x8(values[j], x[j], part);
                        }
                        sums[t][r][0] = avx2.mul_add_f32x8(part, factor, sums[t][r][0]);
                    } else {
                        for j in 0..4 {
                            let sum = &mut sums[t][r][j % P];
                            *sum = avx2.mul_add_f32x8(values[j], x[j], *sum);
                        }
                    }
                }
            }
        }
        add_all_lanes(avx2, sums)
    }

    /// Writes the sums of rows from `o` on, and adds what the columns after the last whole step give.
    #[inline(always)]
    fn store<const R: usize, const T: usize>(&mut self, o: usize, mut sums: [[f32; R]; T]) {
        let cols = self.piece.weight.cols();
        for t in 0..T {
            if !cols.is_multiple_of(STEP) {
                for r in 0..R {
                    for i in cols / STEP * STEP..cols {
                        sums[t][r] += element(self.piece.weight, o + r, i) * self.piece.x.row(t)[i];
                    }
                }
            }
            let column = o - self.piece.rows.start;
            self.piece.y.row(t)[column..][..R].copy_from_slice(&sums[t]);
        }
    }
}

/// The sum of the partial sums and lanes of each vector, four vectors at a time.
#[inline(always)]
fn add_all_lanes<const R: usize, const T: usize, const P: usize>(
    avx2: V3,
    sums: [[[f32x8; P]; R]; T],
) -> [[f32; R]; T] {
    let mut out = [[0.0; R]; T];
    let mut first = 0;
    while first < R * T {
        let mut four = [avx2.splat_f32x8(0.0); 4];
        for k in first..R * T {
            if k - first < 4 {
                let parts = sums[k / R][k % R];
                four[k - first] = parts[0];
                for part in 1..P {
                    four[k - first] = avx2.add_f32x8(four[k - first], parts[part]);
                }
            }
        }
        let lanes = add_lanes(avx2, four);
        for k in first..R * T {
            if k - first < 4 {
                out[k / R][k % R] = lanes[k - first];
            }
        }
        first += 4;
    }
    out
}

/// The sum of the lanes of each of four vectors.
#[inline(always)]
fn add_lanes(avx2: V3, v: [f32x8; 4]) -> [f32; 4] {
    let [a, b, c, d] = v;
    let ab = avx2.avx._mm256_hadd_ps(cast(a), cast(b));
    let cd = avx2.avx._mm256_hadd_ps(cast(c), cast(d));
    let halves = avx2.avx._mm256_hadd_ps(ab, cd);
    let (low, high) = (avx2.avx._mm256_castps256_ps128(halves), avx2.avx._mm256_extractf128_ps::<1>(halves));
    cast(avx2.sse._mm_add_ps(low, high))
}

/// How a format is unpacked.
trait Unpack: Copy {
    /// The bytes of 32 columns.
    type Codes: Copy;
    /// Values of a step come without their common factor, which is applied to the sum of the step.
    const SCALED_AFTER: bool;

    /// The whole steps of row `o`, and its scales.
    fn row(self, weight: &Weight, o: usize) -> (&[Self::Codes], &[u8]);

    /// The values of one step, and the factor that is still missing if [`Self::SCALED_AFTER`]; `i` numbers the step within
    /// the row.
    fn step(self, avx2: V3, codes: Self::Codes, scales: &[u8], i: usize) -> ([f32x8; 4], f32x8);
}

#[derive(Clone, Copy)]
struct F32;

impl Unpack for F32 {
    type Codes = [[u8; 32]; 4];
    const SCALED_AFTER: bool = false;

    #[inline(always)]
    fn row(self, weight: &Weight, o: usize) -> (&[Self::Codes], &[u8]) {
        let bytes = 4 * weight.cols();
        (weight.data()[o * bytes..][..bytes].as_chunks().0.as_chunks().0, &[])
    }

    #[inline(always)]
    fn step(self, avx2: V3, codes: Self::Codes, _: &[u8], _: usize) -> ([f32x8; 4], f32x8) {
        (cast(codes), avx2.splat_f32x8(1.0))
    }
}

#[derive(Clone, Copy)]
struct Bf16;

impl Unpack for Bf16 {
    type Codes = [[u8; 16]; 4];
    const SCALED_AFTER: bool = false;

    #[inline(always)]
    fn row(self, weight: &Weight, o: usize) -> (&[Self::Codes], &[u8]) {
        let bytes = 2 * weight.cols();
        (weight.data()[o * bytes..][..bytes].as_chunks().0.as_chunks().0, &[])
    }

    #[inline(always)]
    fn step(self, avx2: V3, codes: Self::Codes, _: &[u8], _: usize) -> ([f32x8; 4], f32x8) {
        let mut values = [avx2.splat_f32x8(0.0); 4];
        for j in 0..4 {
            let words = avx2.avx2._mm256_cvtepu16_epi32(cast(codes[j]));
            values[j] = cast(avx2.avx2._mm256_slli_epi32::<16>(words));
        }
        (values, avx2.splat_f32x8(1.0))
    }
}

#[derive(Clone, Copy)]
struct Fp8;

impl Unpack for Fp8 {
    type Codes = [[u8; 8]; 4];
    /// Unscaled values are so small that products with them would lose bits.
    const SCALED_AFTER: bool = false;

    #[inline(always)]
    fn row(self, weight: &Weight, o: usize) -> (&[Self::Codes], &[u8]) {
        let (cols, blocks) = (weight.cols(), weight.cols().div_ceil(FP8_BLOCK));
        let codes = &weight.data()[o * cols..][..cols];
        (codes.as_chunks().0.as_chunks().0, &weight.scales()[o / FP8_BLOCK * blocks..][..blocks])
    }

    /// As in `format::unpack`: the code's bits, put where f32 has them, are 2^-120 times the value.
    #[inline(always)]
    fn step(self, avx2: V3, codes: Self::Codes, scales: &[u8], i: usize) -> ([f32x8; 4], f32x8) {
        let factor = avx2.splat_f32x8(FP8_FACTORS[usize::from(scales[i / (FP8_BLOCK / STEP)])]);
        let kept = avx2.avx._mm256_set1_epi32(0x87F0_0000_u32.cast_signed());
        let mut values = [factor; 4];
        for j in 0..4 {
            let codes = avx2.sse2._mm_set_epi64x(0, i64::from_le_bytes(codes[j]));
            let shifted = avx2.avx2._mm256_slli_epi32::<20>(avx2.avx2._mm256_cvtepi8_epi32(codes));
            let raw = cast(avx2.avx2._mm256_and_si256(shifted, kept));
            values[j] = avx2.mul_f32x8(raw, factor);
        }
        (values, factor)
    }
}

#[derive(Clone, Copy)]
struct Fp4;

impl Unpack for Fp4 {
    type Codes = [u8; 16];
    const SCALED_AFTER: bool = true;

    #[inline(always)]
    fn row(self, weight: &Weight, o: usize) -> (&[Self::Codes], &[u8]) {
        let cols = weight.cols();
        let codes = &weight.data()[o * (cols / 2)..][..cols / 2];
        (codes.as_chunks().0, &weight.scales()[o * (cols / FP4_GROUP)..][..cols / FP4_GROUP])
    }

    #[inline(always)]
    fn step(self, avx2: V3, codes: Self::Codes, scales: &[u8], i: usize) -> ([f32x8; 4], f32x8) {
        (fp4_group(avx2, codes), avx2.splat_f32x8(FP4_FACTORS[usize::from(scales[i])]))
    }
}
