use proptest::prelude::*;

use super::{bf16, fp4_groups, fp8_rows, fp8_tiles, hadamard, reference};

fn values(count: usize) -> impl Strategy<Value = Vec<f32>> {
    (prop::collection::vec(-1_f32..1.0, count), -30..30_i32)
        .prop_map(|(values, shift)| values.iter().map(|value| value * 2_f32.powi(shift)).collect())
}

#[test]
fn fp8_rounding_gives_the_published_numbers() {
    let mut tile = [0.0; 64];
    tile[..4].copy_from_slice(&[1.1, -0.02, 0.001, 3.0]);
    fp8_tiles(&mut tile, 64);
    assert_eq!(tile[..4], [1.125, -0.019_531_25, 0.000_976_562_5, 3.0]);
}

#[test]
fn fp4_rounding_gives_the_published_numbers() {
    let mut group = [0.0; 32];
    group[..4].copy_from_slice(&[3.0, 1.1, -0.2, 0.06]);
    fp4_groups(&mut group);
    assert_eq!(group[..4], [3.0, 1.0, -0.25, 0.0]);
}

#[test]
fn zeros_stay_zeros() {
    let mut zeros = [0.0; 128];
    fp8_tiles(&mut zeros, 128);
    fp4_groups(&mut zeros);
    fp8_rows(&mut zeros, 128);
    hadamard(&mut zeros, 128);
    assert_eq!(zeros, [0.0; 128]);
}

#[test]
fn rows_of_any_power_of_two_rotate_like_the_reference() {
    for dim in [1, 2, 4, 8, 16, 64] {
        let values: Vec<f32> = (0..64_u8).map(f32::from).collect();
        let (mut rotated, mut expected) = (values.clone(), values);
        hadamard(&mut rotated, dim);
        reference::hadamard(&mut expected, dim);
        assert!(rotated.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "rows of {dim}");
    }
}

#[test]
fn the_rotation_is_in_sylvester_order() {
    for (a, b) in [(0, 0), (1, 1), (3, 5), (7, 7), (6, 3)] {
        let mut row = [0.0; 8];
        row[b] = 1.0;
        hadamard(&mut row, 8);
        let sign = if (a & b).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
        assert!((row[a] - sign / 8_f32.sqrt()).abs() < 1e-7, "row {a}, column {b}");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Zeros of either sign are equal.
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn a_value_that_is_no_number_spoils_its_own_tile_only() {
    let mut values = [1.0; 128];
    values[5] = f32::NAN;
    fp8_tiles(&mut values, 64);
    assert!(values[..64].iter().all(|value| value.is_nan()));
    assert_eq!(values[64..], [1.0; 64]);
}

proptest! {
    #[test]
    fn rounding_equals_the_reference(values in values(384)) {
        type Round = fn(&mut [f32]);
        let pairs: [(Round, Round); 5] = [
            (bf16, reference::bf16),
            (|v| fp8_tiles(v, 64), |v| reference::fp8_tiles(v, 64)),
            (|v| fp8_tiles(v, 128), |v| reference::fp8_tiles(v, 128)),
            (fp4_groups, reference::fp4_groups),
            (|v| fp8_rows(v, 128), |v| reference::fp8_rows(v, 128)),
        ];
        for (fast, reference) in pairs {
            let (mut rounded, mut expected) = (values.clone(), values.clone());
            fast(&mut rounded);
            reference(&mut expected);
            prop_assert_eq!(bits(&rounded), bits(&expected));
        }
    }

    #[test]
    fn rotating_equals_the_reference(values in values(256)) {
        let (mut rotated, mut expected) = (values.clone(), values.clone());
        hadamard(&mut rotated, 128);
        reference::hadamard(&mut expected, 128);
        let largest = values.iter().fold(0_f32, |m, v| m.max(v.abs()));
        for (rotated, expected) in rotated.iter().zip(expected) {
            prop_assert!((rotated - expected).abs() <= 1e-5 * largest);
        }
    }

    #[test]
    fn power_of_two_rounding_twice_is_rounding_once(values in values(128)) {
        for round in [|v: &mut [f32]| fp8_tiles(v, 64), |v: &mut [f32]| fp8_tiles(v, 128), fp4_groups] {
            let mut once = values.clone();
            round(&mut once);
            let mut twice = once.clone();
            round(&mut twice);
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn fp8_rounding_errs_by_a_sixteenth_at_most(values in values(128)) {
        let mut rounded = values.clone();
        fp8_tiles(&mut rounded, 64);
        for (tile, rounded) in values.chunks(64).zip(rounded.chunks(64)) {
            let largest = tile.iter().fold(1e-4_f32, |m, v| m.max(v.abs()));
            for (value, rounded) in tile.iter().zip(rounded) {
                // Relative half step of three mantissa bits, or half of the subnormal step of the tile's scale.
                prop_assert!((value - rounded).abs() <= (value.abs() / 16.0).max(largest / 224.0 / 1024.0));
            }
        }
    }

    #[test]
    fn rotating_twice_gives_the_row_back(values in values(128)) {
        let mut rotated = values.clone();
        hadamard(&mut rotated, 128);
        hadamard(&mut rotated, 128);
        let largest = values.iter().fold(0_f32, |m, v| m.max(v.abs()));
        for (value, rotated) in values.iter().zip(rotated) {
            prop_assert!((value - rotated).abs() <= 1e-5 * largest);
        }
    }
}
