//! FP4 e2m1: sign, two exponent bits, one mantissa bit; sixteen values, no NaN.

/// The largest value.
pub const MAX: f32 = 6.0;

/// What the sixteen codes stand for.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of the lower four bits of `code`.
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code & 15)]
}

/// The nearest code, ties to the even mantissa, magnitudes above 6 to 6. NaN gives 6: callers pass scaled values.
pub fn encode(value: f32) -> u8 {
    let magnitude = value.abs();
    let sign = u8::from(value.is_sign_negative()) << 3;
    // Each bound is the midpoint of two neighbours; it belongs to the one whose mantissa bit is 0.
    let code = if magnitude <= 0.25 {
        0
    } else if magnitude < 0.75 {
        1
    } else if magnitude <= 1.25 {
        2
    } else if magnitude < 1.75 {
        3
    } else if magnitude <= 2.5 {
        4
    } else if magnitude < 3.5 {
        5
    } else if magnitude <= 5.0 {
        6
    } else {
        7
    };
    sign | code
}
