use proptest::prelude::*;

use super::{reference, rms_norm, rms_norm_rows};

const EPS: f32 = 1e-6;

proptest! {
    #[test]
    fn agrees_with_the_formula(rows in 1usize..4, width in 1usize..70, seed in proptest::collection::vec(-9.0f32..9.0, 280)) {
        let x = &seed[..rows * width];
        let weight = &seed[210..210 + width];
        let mut y = vec![0.0; x.len()];
        rms_norm(x, weight, EPS, &mut y);
        for (y, expected) in y.iter().zip(reference::rms_norm(x, weight, EPS)) {
            prop_assert!((y - expected).abs() <= 1e-5 * expected.abs().max(1.0));
        }
        let mut unweighted = x.to_vec();
        rms_norm_rows(&mut unweighted, width, EPS);
        for (y, expected) in unweighted.iter().zip(reference::rms_norm(x, &vec![1.0; width], EPS)) {
            prop_assert!((y - expected).abs() <= 1e-5 * expected.abs().max(1.0));
        }
    }
}

#[test]
fn a_row_of_zeros_stays_zero() {
    let mut y = [1.0; 4];
    rms_norm(&[0.0; 4], &[2.0; 4], EPS, &mut y);
    assert_eq!(y, [0.0; 4]);
}
