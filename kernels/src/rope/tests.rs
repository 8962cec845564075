use proptest::prelude::*;

use super::{Turn, Yarn, frequencies, reference, rope, rotations};

fn published() -> Vec<f32> {
    let yarn = Yarn { factor: 16.0, beta_fast: 32.0, beta_slow: 1.0, original_positions: 65_536 };
    frequencies(64, 160_000.0, Some(&yarn))
}

#[test]
fn frequencies_are_those_of_the_specification() {
    let stretched = published();
    for (i, expected) in [
        (1, 6.876_56e-1),
        (15, 3.635_539e-3),
        (16, 2.265_625e-3),
        (20, 2.969_778e-4),
        (24, 1.953_125e-5),
        (25, 5.372_313e-6),
        (31, 5.680_529e-7),
    ] {
        assert!((stretched[i] / expected - 1.0).abs() < 1e-6, "f_{i} is {}", stretched[i]);
    }
    let plain = frequencies(64, 10_000.0, None);
    for (i, expected) in [(1, 7.498_942e-1), (15, 1.333_521e-2), (31, 1.333_521e-4)] {
        assert!((plain[i] / expected - 1.0f32).abs() < 1e-6, "f_{i} is {}", plain[i]);
    }
}

#[test]
fn a_ramp_of_no_width_does_not_divide_by_zero() {
    let yarn = Yarn { factor: 16.0, beta_fast: 1.0, beta_slow: 1.0, original_positions: 6 };
    assert!(frequencies(64, 10_000.0, Some(&yarn)).iter().all(|f| f.is_finite()));
}

proptest! {
    #[test]
    fn rotates_adjacent_pairs_of_the_last_values_only(
        x in proptest::collection::vec(-4.0f32..4.0, 2 * 3 * 70),
        start in 0usize..20_000,
    ) {
        let f = published();
        let (mut table, mut y) = (Vec::new(), x.clone());
        rotations(&f, start..start + 2, &mut table);
        rope(&mut y, 3, 70, &table, 64, Turn::Forward);
        for (i, (before, after)) in x.chunks(70).zip(y.chunks(70)).enumerate() {
            prop_assert_eq!(&before[..6], &after[..6]);
            let expected = reference::rope(&before[6..], &f, start + i / 3, Turn::Forward);
            for (a, e) in after[6..].iter().zip(expected) {
                // The f32 angle itself is off by half a unit in its last place.
                prop_assert!((f64::from(*a) - e).abs() < 1e-5 + 6e-7 * start as f64, "{a} {e}");
            }
        }
        rope(&mut y, 3, 70, &table, 64, Turn::Inverse);
        for (a, e) in y.iter().zip(&x) {
            prop_assert!((a - e).abs() < 1e-5);
        }
    }
}
