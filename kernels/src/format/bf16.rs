//! bf16: the upper half of an f32.

/// The f32 that `code` stands for.
#[inline(always)]
pub fn decode(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
pub fn encode(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    // Rounding could turn a NaN into an infinity.
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

/// `value` rounded to bf16 and back.
#[inline(always)]
pub fn round(value: f32) -> f32 {
    decode(encode(value))
}
