use proptest::prelude::*;

use super::{fp4_groups, fp8_rows, fp8_tiles, hadamard};

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
fn the_rotation_is_in_sylvester_order() {
    for (a, b) in [(0, 0), (1, 1), (3, 5), (7, 7), (6, 3)] {
        let mut row = [0.0; 8];
        row[b] = 1.0;
        hadamard(&mut row, 8);
        let sign = if (a & b).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
        assert!((row[a] - sign / 8_f32.sqrt()).abs() < 1e-7, "row {a}, column {b}");
    }
}

proptest! {
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
