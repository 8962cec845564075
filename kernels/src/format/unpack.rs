//! Runs of codes to f32, exactly. Called inside a dispatch, where plain loops become vector instructions.

use super::{e8m0, fp4, fp8};

/// Columns that one FP4 scale covers.
pub(crate) const FP4_GROUP: usize = 32;

/// Scales up to here let 2^120 be folded into them without overflow.
const LARGEST_FOLDED_SCALE: u8 = 127 + 7;

/// What the machine offers beyond plain loops, looked up once per piece of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacker {
    #[cfg(target_arch = "x86_64")]
    avx2: Option<pulp::x86::V3>,
}

impl Unpacker {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            avx2: pulp::x86::V3::try_new(),
        }
    }

    /// As on a machine that offers nothing.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            avx2: None,
        }
    }

    /// Groups of 32 codes, two a byte, with one scale each.
    #[inline(always)]
    pub(crate) fn fp4(self, codes: &[u8], scales: &[u8], out: &mut [f32]) {
        let groups = out.as_chunks_mut::<FP4_GROUP>().0.iter_mut().zip(codes.as_chunks().0).zip(scales);
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = self.avx2 {
            for ((out, codes), scale) in groups {
                let factor = avx2.splat_f32x8(0.5 * e8m0::decode(*scale));
                let doubled = fp4_group(avx2, *codes);
                for (out, doubled) in out.as_chunks_mut::<8>().0.iter_mut().zip(doubled) {
                    *out = pulp::cast(avx2.mul_f32x8(doubled, factor));
                }
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

/// 32 values from 16 bytes, doubled. A byte shuffle is the table: it turns sixteen codes into sixteen
/// doubled values, which are small integers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn fp4_group(avx2: pulp::x86::V3, codes: [u8; 16]) -> [pulp::f32x8; 4] {
    use pulp::cast;
    const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    let (table, codes) = (cast(DOUBLED), cast(codes));
    let low_bits = avx2.sse2._mm_set1_epi8(15);
    let even = avx2.sse2._mm_and_si128(codes, low_bits);
    let odd = avx2.sse2._mm_and_si128(avx2.sse2._mm_srli_epi16::<4>(codes), low_bits);
    let halves = [avx2.sse2._mm_unpacklo_epi8(even, odd), avx2.sse2._mm_unpackhi_epi8(even, odd)];
    let mut values = [avx2.splat_f32x8(0.0); 4];
    for (j, codes) in halves.into_iter().enumerate() {
        let doubled = avx2.ssse3._mm_shuffle_epi8(table, codes);
        let low = avx2.avx2._mm256_cvtepi8_epi32(doubled);
        let high = avx2.avx2._mm256_cvtepi8_epi32(avx2.sse2._mm_srli_si128::<8>(doubled));
        values[2 * j] = cast(avx2.avx._mm256_cvtepi32_ps(low));
        values[2 * j + 1] = cast(avx2.avx._mm256_cvtepi32_ps(high));
    }
    values
}

/// bf16 values, two bytes each.
#[inline(always)]
pub(crate) fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*code)) << 16);
    }
}

/// e4m3 codes that are no NaN, with one e8m0 scale. One multiplication decodes and scales.
#[inline(always)]
pub(crate) fn fp8(codes: &[u8], scale: u8, out: &mut [f32]) {
    if scale <= LARGEST_FOLDED_SCALE {
        let factor = e8m0::decode(scale) * fp8::RAW_FACTOR;
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from_bits(fp8::raw(*code)) * factor;
        }
    } else {
        fp8_scaled(codes, e8m0::decode(scale), out);
    }
}

/// e4m3 codes of any kind with one f32 scale.
#[inline(always)]
pub(crate) fn fp8_scaled(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = fp8::decode(*code) * scale;
    }
}
