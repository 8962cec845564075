use proptest::prelude::*;

use super::{bf16, e8m0, fp4, fp8};

/// The definition of rounding, by search: the nearest finite code, among two the one with the even last bit.
fn nearest(value: f32, codes: std::ops::Range<u8>, decode: fn(u8) -> f32) -> u8 {
    let distance = |code: &u8| (f64::from(decode(*code)) - f64::from(value.abs())).abs();
    codes
        .min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))))
        .expect("the range has codes")
}

#[test]
fn every_fp8_code_decodes_to_its_definition() {
    for code in 0..=255_u8 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2_f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
        };
        let value = fp8::decode(code);
        if code & 0x7F == 0x7F {
            assert!(value.is_nan());
        } else {
            assert_eq!(f64::from(value.abs()), magnitude, "code {code:#x}");
            assert_eq!(value.is_sign_negative(), code & 0x80 != 0);
        }
    }
}

#[test]
fn every_fp8_value_encodes_to_its_own_code() {
    for code in (0..=255_u8).filter(|code| code & 0x7F != 0x7F) {
        assert_eq!(fp8::encode(fp8::decode(code)), code);
    }
}

#[test]
fn fp8_ties_go_to_the_even_code() {
    for code in 0..0x7E_u8 {
        let tie = (fp8::decode(code) + fp8::decode(code + 1)) / 2.0;
        let even = code + (code & 1);
        assert_eq!(fp8::encode(tie), even, "between {code:#x} and the next");
        assert_eq!(fp8::encode(-tie), even | 0x80);
        assert_eq!(fp8::encode(f32::from_bits(tie.to_bits() + 1)), code + 1);
        assert_eq!(fp8::encode(f32::from_bits(tie.to_bits() - 1)), code);
    }
}

#[test]
fn fp8_saturates_and_keeps_nan() {
    for large in [448.0, 464.0, 465.0, 1e9, f32::MAX, f32::INFINITY] {
        assert_eq!(fp8::encode(large), 0x7E);
        assert_eq!(fp8::encode(-large), 0xFE);
    }
    assert!(fp8::decode(fp8::encode(f32::NAN)).is_nan());
}

#[test]
fn every_fp4_code_round_trips_and_ties_go_to_the_even_code() {
    for code in 0..16_u8 {
        assert_eq!(fp4::encode(fp4::decode(code)), code);
    }
    for code in 0..7_u8 {
        let tie = (fp4::decode(code) + fp4::decode(code + 1)) / 2.0;
        assert_eq!(fp4::encode(tie), code + (code & 1), "between {code} and the next");
        assert_eq!(fp4::encode(-tie), (code + (code & 1)) | 8);
    }
    assert_eq!(fp4::encode(1e9), 7);
}

#[test]
fn the_byte_2b_holds_minus_one_and_a_half_then_one() {
    assert_eq!((fp4::decode(0x2B & 15), fp4::decode(0x2B >> 4)), (-1.5, 1.0));
}

#[test]
fn every_e8m0_byte_is_a_power_of_two() {
    for code in 0..255_u8 {
        assert_eq!(f64::from(e8m0::decode(code)), 2_f64.powi(i32::from(code) - 127));
    }
    assert_eq!(e8m0::decode(120), 2_f32.powi(-7));
    assert!(e8m0::decode(e8m0::NAN).is_nan());
}

#[test]
fn a_scale_that_cannot_be_reached_is_nan() {
    for value in [f32::INFINITY, f32::NAN, f32::MAX] {
        assert_eq!(e8m0::at_least(value), e8m0::NAN);
    }
}

#[test]
fn bf16_rounds_to_nearest_even() {
    // 1 + 2^-8 lies between 1 and 1 + 2^-7.
    assert_eq!(bf16::round(1.0 + 2_f32.powi(-8)), 1.0);
    assert_eq!(bf16::round(1.0 + 3.0 * 2_f32.powi(-8)), 1.0 + 2_f32.powi(-6));
    assert!(bf16::round(f32::NAN).is_nan());
    for code in (0..=u16::MAX).filter(|code| code & 0x7FFF <= 0x7F80) {
        assert_eq!(bf16::encode(bf16::decode(code)), code);
    }
}

proptest! {
    #[test]
    fn fp8_encodes_to_the_nearest_value(value in -470_f32..470.0, shift in -20..1_i32) {
        let value = value * 2_f32.powi(shift);
        prop_assert_eq!(fp8::encode(value) & 0x7F, nearest(value, 0..0x7F, fp8::decode));
    }

    #[test]
    fn bf16_equals_the_half_crate(bits in any::<u32>()) {
        let value = f32::from_bits(bits);
        prop_assert_eq!(bf16::encode(value), half::bf16::from_f32(value).to_bits());
    }

    #[test]
    fn fp4_rounds_to_the_value_of_the_nearest_code(value in -7_f32..7.0) {
        prop_assert_eq!(fp4::round(value).to_bits(), fp4::decode(fp4::encode(value)).to_bits());
    }

    #[test]
    fn fp4_encodes_to_the_nearest_value(value in -7_f32..7.0) {
        prop_assert_eq!(fp4::encode(value) & 7, nearest(value, 0..8, fp4::decode));
    }

    #[test]
    fn the_scale_is_the_smallest_power_of_two_that_is_large_enough(value in 1e-37_f32..1e37) {
        let code = e8m0::at_least(value);
        prop_assert!(e8m0::decode(code) >= value);
        prop_assert!(e8m0::decode(code - 1) < value);
    }
}
