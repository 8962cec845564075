use proptest::prelude::*;

use super::{Candidate, compress, reference};

proptest! {
    #[test]
    fn agrees_with_the_formula(
        tokens in 1usize..12, width in 1usize..140, data in proptest::collection::vec(-20.0f32..20.0, 12 * 2 * 140),
    ) {
        let rows: Vec<&[f32]> = data.chunks(width).collect();
        let candidates: Vec<Candidate<'_>> =
            (0..tokens).map(|t| Candidate { gate: rows[2 * t], value: rows[2 * t + 1] }).collect();
        let mut entry = vec![0.0; width];
        compress(&candidates, &mut entry);
        for (e, expected) in entry.iter().zip(reference::compress(&candidates, width)) {
            prop_assert!((f64::from(*e) - expected).abs() < 2e-4, "{e} {expected}");
        }
    }
}

#[test]
fn a_single_candidate_is_the_entry() {
    let mut entry = [0.0; 2];
    compress(&[Candidate { gate: &[-300.0, 300.0], value: &[1.5, -2.0] }], &mut entry);
    assert_eq!(entry, [1.5, -2.0]);
}
