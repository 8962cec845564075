//! Packed weight rows to f32, exactly, into memory next to the core that multiplies them.

use std::ops::Range;

use super::weight::{FP4_GROUP, FP8_BLOCK, Weight, WeightFormat};
use crate::format::{e8m0, fp4, fp8};

/// Scales up to here let 2^120 be folded into them without overflow.
const LARGEST_FOLDED_SCALE: u8 = 127 + 7;

/// The rows `rows` of `weight`, one after another.
pub(super) fn rows(weight: &Weight, rows: Range<usize>, out: &mut [f32]) {
    let expander = Expander::new();
    pulp::Arch::new().dispatch(|| {
        for (o, out) in rows.zip(out.chunks_exact_mut(weight.cols().max(1))) {
            expander.row(weight, o, 0, out);
        }
    });
}

/// Row `o` of `weight`.
pub(super) fn one_row(weight: &Weight, o: usize, out: &mut [f32]) {
    let expander = Expander::new();
    pulp::Arch::new().dispatch(|| expander.row(weight, o, 0, out));
}

/// What the machine offers for unpacking, looked up once per piece of work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expander {
    #[cfg(target_arch = "x86_64")]
    avx2: Option<pulp::x86::V3>,
}

impl Expander {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            avx2: pulp::x86::V3::try_new(),
        }
    }

    /// Writes `weight[o, from .. from + out.len()]` to `out`; `from` is a multiple of 128. Called inside a dispatch.
    #[inline(always)]
    pub(super) fn row(self, weight: &Weight, o: usize, from: usize, out: &mut [f32]) {
        let at = o * weight.cols() + from;
        match weight.format() {
            WeightFormat::F32 => out.copy_from_slice(&weight.f32_rows(o..o + 1)[from..][..out.len()]),
            WeightFormat::Bf16 => bf16_values(&weight.data()[2 * at..], out),
            WeightFormat::Fp8 => {
                let scales = o / FP8_BLOCK * weight.cols().div_ceil(FP8_BLOCK) + from / FP8_BLOCK;
                let blocks = out.chunks_mut(FP8_BLOCK).zip(weight.data()[at..].chunks(FP8_BLOCK));
                for ((out, codes), scale) in blocks.zip(&weight.scales()[scales..]) {
                    fp8_values(codes, *scale, out);
                }
            }
            WeightFormat::Fp4 => {
                let codes = &weight.data()[at / 2..][..out.len() / 2];
                let scales = &weight.scales()[at / FP4_GROUP..][..out.len() / FP4_GROUP];
                self.fp4_values(codes, scales, out);
            }
        }
    }

    #[inline(always)]
    fn fp4_values(self, codes: &[u8], scales: &[u8], out: &mut [f32]) {
        let groups = out.as_chunks_mut::<FP4_GROUP>().0.iter_mut().zip(codes.as_chunks().0).zip(scales);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = self.avx2 {
            for ((out, codes), scale) in groups {
                *out = pulp::cast(super::stream::fp4_values(simd, *codes, 0.5 * e8m0::decode(*scale)));
            }
            return;
        }
        for ((out, codes), scale) in groups {
            let scale = e8m0::decode(*scale);
            for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *pair = [fp4::decode(byte & 15) * scale, fp4::decode(byte >> 4) * scale];
            }
        }
    }
}

#[inline(always)]
fn bf16_values(bytes: &[u8], out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*code)) << 16);
    }
}

/// The code's exponent and mantissa, put where f32 has them, are 2^-120 times the value, subnormals included; so one
/// multiplication decodes and scales.
#[inline(always)]
fn fp8_values(codes: &[u8], scale: u8, out: &mut [f32]) {
    if scale <= LARGEST_FOLDED_SCALE {
        let scale = e8m0::decode(scale) * f32::from_bits((127 + 120) << 23);
        for (out, code) in out.iter_mut().zip(codes) {
            let bits = (i32::from(code.cast_signed()) << 20).cast_unsigned() & 0x87F0_0000;
            *out = f32::from_bits(bits) * scale;
        }
    } else {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = fp8::decode(*code) * e8m0::decode(scale);
        }
    }
}
