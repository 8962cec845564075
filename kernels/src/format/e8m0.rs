//! e8m0: a scale that is a power of two, stored as its biased exponent.
//! The byte is neither an integer nor an FP8 number: 120 means 2^-7, 255 means NaN.

/// The byte that stands for NaN.
pub const NAN: u8 = 255;

/// 2^(code - 127); NaN for 255.
pub fn decode(code: u8) -> f32 {
    match code {
        NAN => f32::NAN,
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The smallest power of two that is at least `value` (positive and normal in f32), on the bits, so without a logarithm's
/// rounding. Infinity, NaN and what no power of two can reach give [`NAN`].
pub fn at_least(value: f32) -> u8 {
    let bits = value.to_bits() & 0x7FFF_FFFF;
    let exponent = (bits >> 23) + u32::from(bits & 0x007F_FFFF != 0);
    u8::try_from(exponent).unwrap_or(NAN)
}
