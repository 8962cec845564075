//! FP4 e2m1: sign, two exponent bits, one mantissa bit; sixteen values, no NaN.

/// The largest value.
pub const MAX: f32 = 6.0;

/// What the sixteen codes stand for.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of the lower four bits of `code`.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code & 15)]
}

/// The nearest code, ties to the even mantissa, magnitudes above 6 to 6. NaN gives zero: callers pass scaled values.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a code has four bits")]
pub fn encode(value: f32) -> u8 {
    code(value) as u8
}

/// The code of `value`, as wide as an f32, so that loops over it become vector instructions.
#[inline(always)]
pub(crate) fn code(value: f32) -> u32 {
    let magnitude = value.abs();
    // Each bound is the midpoint of two neighbours; it belongs to the one whose mantissa bit is 0.
    let code = u32::from(magnitude > 0.25)
        + u32::from(magnitude >= 0.75)
        + u32::from(magnitude > 1.25)
        + u32::from(magnitude >= 1.75)
        + u32::from(magnitude > 2.5)
        + u32::from(magnitude >= 3.5)
        + u32::from(magnitude > 5.0);
    value.to_bits() >> 28 & 8 | code
}

/// `value` rounded to the nearest FP4 value, without a table.
#[inline(always)]
pub(crate) fn round(value: f32) -> f32 {
    let code = code(value);
    // Exponent and mantissa where f32 has them. Without an exponent, f is 1/2 or 3/4 and stands for 0 or 1/2.
    let f = f32::from_bits(((code & 7) << 22) + (126 << 23));
    let doubled = 2.0 * f - 1.0;
    let magnitude = if doubled < f { doubled } else { f };
    f32::from_bits(magnitude.to_bits() | (code & 8) << 28)
}
