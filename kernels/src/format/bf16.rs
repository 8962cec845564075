//! bf16: the upper half of an f32.

/// The f32 that `code` stands for.
pub fn decode(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The nearest bf16, ties to even; NaN stays NaN.
pub fn encode(value: f32) -> u16 {
    half::bf16::from_f32(value).to_bits()
}

/// `value` rounded to bf16 and back.
pub fn round(value: f32) -> f32 {
    decode(encode(value))
}
