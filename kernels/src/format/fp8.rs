//! FP8 e4m3fn: sign, four exponent bits (bias 7), three mantissa bits.

/// The largest value.
pub const MAX: f32 = 448.0;

/// The value of `code`; NaN for 0x7F and 0xFF.
pub fn decode(code: u8) -> f32 {
    let sign = u32::from(code & 0x80) << 24;
    let magnitude = u32::from(code & 0x7F);
    let value = match magnitude {
        0x7F => f32::NAN,
        // Subnormal: multiples of 2^-9.
        0..8 => magnitude as f32 * (1.0 / 512.0),
        _ => f32::from_bits((magnitude << 20) + ((127 - 7) << 23)),
    };
    f32::from_bits(value.to_bits() | sign)
}

/// The nearest code, ties to even; magnitudes above 448 saturate at 448, NaN gives NaN.
#[expect(clippy::cast_possible_truncation, reason = "every branch yields at most 7 bits")]
pub fn encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7F;
    }
    let code = if magnitude < 1.0 / 64.0 {
        (magnitude * 512.0).round_ties_even() as u8
    } else {
        let bits = magnitude.to_bits();
        // Half of the last kept bit, a little less where the kept part is even: round to nearest, ties to even.
        let rounded = bits.saturating_add(0x7_FFFF + ((bits >> 20) & 1));
        ((rounded >> 20) - ((127 - 7) << 3)).min(0x7E) as u8
    };
    sign | code
}
