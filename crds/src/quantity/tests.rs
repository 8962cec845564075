use proptest::prelude::*;

use super::*;

fn bytes(text: &str) -> u64 {
    text.parse::<Quantity>().unwrap().bytes()
}

/// A05.
#[test]
fn kubernetes_spellings_are_exact() {
    for (text, expected) in [
        ("0.5Gi", 1 << 29),
        ("1.5Ti", 3 << 39),
        ("1Pi", 1 << 50),
        ("1Ei", 1 << 60),
        (".5", 1),
        ("5.", 5),
        ("128M", 128_000_000),
        ("1e3", 1000),
        ("1E", 1_000_000_000_000_000_000),
        ("1E3", 1000),
        ("12e-1", 2),
        ("100m", 1),
        ("+1Gi", 1 << 30),
        ("0", 0),
        ("0.000Ei", 0),
        ("300Gi", 300 << 30),
    ] {
        assert_eq!(bytes(text), expected, "{text}");
    }
}

/// A05.
#[test]
fn what_is_no_byte_count_is_refused_and_never_zero() {
    for text in
        ["", "1 Gi", "Gi", ".", "1.2.3", "-1Gi", "1gi", "1e", "1e+", "0x10", "1KiB", "٣", "1e9999", "++1"]
    {
        assert!(matches!(text.parse::<Quantity>(), Err(QuantityError::Syntax(_))), "{text:?}");
    }
    for text in ["9223372036854775807Ki", "17Ei", "1e20", "9e999"] {
        assert!(matches!(text.parse::<Quantity>(), Err(QuantityError::TooLarge(_))), "{text:?}");
    }
    let precise = "18446744073709551615";
    assert!(matches!(precise.parse::<Quantity>(), Err(QuantityError::TooPrecise(_))));
    assert!("1".repeat(100).parse::<Quantity>().is_err());
}

/// Decimal digits, least significant first: slow, obvious arithmetic to compare with.
fn times(digits: &mut Vec<u32>, factor: u32) {
    let mut carry = 0;
    for digit in digits.iter_mut() {
        let value = *digit * factor + carry;
        *digit = value % 10;
        carry = value / 10;
    }
    while carry > 0 {
        digits.push(carry % 10);
        carry /= 10;
    }
}

fn model(whole: &str, fraction: &str, twos: u32, tens: u32) -> Option<u64> {
    let mut digits: Vec<u32> = format!("{whole}{fraction}").chars().rev().map(|c| c as u32 - 48).collect();
    (0..twos).for_each(|_| times(&mut digits, 2));
    (0..tens).for_each(|_| times(&mut digits, 10));
    let (cut, kept) = digits.split_at(fraction.len().min(digits.len()));
    let text: String = kept.iter().rev().map(|d| char::from_digit(*d, 10).unwrap()).collect();
    let value: u128 = if text.is_empty() { 0 } else { text.parse().ok()? };
    u64::try_from(value + u128::from(cut.iter().any(|d| *d > 0))).ok()
}

proptest! {
    /// A05.
    #[test]
    fn values_equal_those_of_slow_decimal_arithmetic(
        whole in "[0-9]{1,9}", fraction in "[0-9]{0,9}", suffix in 0usize..13,
    ) {
        let (text, twos, tens) = [
            ("", 0, 0), ("Ki", 10, 0), ("Mi", 20, 0), ("Gi", 30, 0), ("Ti", 40, 0), ("Pi", 50, 0), ("Ei", 60, 0),
            ("k", 0, 3), ("M", 0, 6), ("G", 0, 9), ("T", 0, 12), ("P", 0, 15), ("E", 0, 18),
        ][suffix];
        let parsed = format!("{whole}.{fraction}{text}").parse::<Quantity>().ok().map(Quantity::bytes);
        prop_assert_eq!(parsed, model(&whole, &fraction, twos, tens));
    }

    #[test]
    fn shown_and_read_again_is_the_same(bytes in any::<u64>(), shift in 0u32..60) {
        // Below 10^19, the most digits that are read.
        let bytes = (bytes % 10_000_000_000_000_000_000) >> shift << shift;
        let quantity = Quantity::from_bytes(bytes);
        prop_assert_eq!(quantity.to_string().parse::<Quantity>(), Ok(quantity));
    }

    #[test]
    fn no_text_panics(text in ".{0,80}") {
        let _ = text.parse::<Quantity>();
    }
}
