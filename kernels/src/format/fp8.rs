//! FP8 e4m3fn: sign, four exponent bits (bias 7), three mantissa bits.
//! Both directions are free of branches, so that loops over them become vector instructions.

/// The largest value.
pub const MAX: f32 = 448.0;

/// The value of `code`; NaN for 0x7F and 0xFF.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    let value = f32::from_bits(raw(code)) * RAW_FACTOR;
    if code & 0x7F == 0x7F { f32::NAN } else { value }
}

/// The bits of `code` where f32 has sign, exponent and mantissa: 2^-120 times the value, subnormals included, if the code
/// is no NaN.
#[inline(always)]
pub(crate) fn raw(code: u8) -> u32 {
    (i32::from(code.cast_signed()) << 20).cast_unsigned() & 0x87F0_0000
}

/// What [`raw`] is to be multiplied with: 2^120.
pub(crate) const RAW_FACTOR: f32 = f32::from_bits((127 + 120) << 23);

/// The nearest code, ties to even; magnitudes above 448 saturate at 448, NaN gives NaN.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "sign and code are 8 bits")]
pub fn encode(value: f32) -> u8 {
    const SMALLEST_NORMAL: u32 = (127 - 6) << 23;
    // Between 2^14 and 2^15 neighbours are 2^-9 apart, as e4m3's subnormals are.
    const SUBNORMAL: f32 = 16_384.0;
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    // Half of the last kept bit, a little less where the kept part is even: round to nearest, ties to even.
    let rounded = magnitude.wrapping_add(0x7_FFFF + (magnitude >> 20 & 1));
    let normal = (rounded >> 20).wrapping_sub((127 - 7) << 3);
    let subnormal = (f32::from_bits(magnitude) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let code = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    let code = code.min(0x7E);
    let code = if magnitude > f32::INFINITY.to_bits() { 0x7F } else { code };
    (bits >> 24 & 0x80 | code) as u8
}
