use proptest::prelude::*;

use super::{gate_scores, gate_select, gate_weights, reference, swiglu};

#[test]
fn scores_are_those_of_the_specification() {
    let mut s = [0.0, 3.0, -10.0, 100.0, -100.0];
    gate_scores(&mut s);
    for (s, expected) in s.iter().zip([0.832_555, 1.746_02, 0.006_737_87, 10.0, 0.0]) {
        assert!((s - expected).abs() < 1e-6 * expected.max(1.0), "{s} {expected}");
    }
}

#[test]
fn ties_go_to_the_lowest_expert() {
    let mut ids = [9; 2];
    gate_select(&[0.5, 1.0, 1.0, 1.0], &[0.0; 4], 2, &mut ids);
    assert_eq!(ids, [1, 2]);
}

#[test]
fn the_bias_selects_but_does_not_weigh() {
    let (scores, mut ids, mut weights) = ([3.0, 1.0, 2.0], [0; 2], [0.0; 2]);
    gate_select(&scores, &[-10.0, 0.0, 0.0], 2, &mut ids);
    gate_weights(&scores, 3, &ids, 2, 1.5, &mut weights);
    assert_eq!(ids, [2, 1]);
    assert_eq!(weights, [1.0, 0.5]);
}

#[test]
fn an_expert_chosen_twice_counts_twice() {
    let mut weights = [0.0; 2];
    gate_weights(&[1.0, 4.0], 2, &[1, 1], 2, 1.5, &mut weights);
    assert_eq!(weights, [0.75, 0.75]);
}

#[test]
fn the_gate_is_clamped_from_above_only_and_the_up_projection_on_both_sides() {
    let mut gate = [100.0, -100.0, 1.0];
    swiglu(&mut gate, &[100.0, 1.0, -100.0], 3, 10.0, &[2.0]);
    for (g, expected) in gate.iter().zip([
        reference::swiglu(10.0, 10.0, 10.0, 2.0),
        reference::swiglu(-100.0, 1.0, 10.0, 2.0),
        reference::swiglu(1.0, -10.0, 10.0, 2.0),
    ]) {
        assert!((f64::from(*g) - expected).abs() < 1e-4, "{g} {expected}");
    }
}

proptest! {
    #[test]
    fn selection_agrees_with_a_sort(
        scores in proptest::collection::vec((0u8..6).prop_map(f32::from), 3 * 9),
        bias in proptest::collection::vec((0u8..4).prop_map(f32::from), 9),
        k in 1usize..=9,
    ) {
        let mut ids = vec![0; 3 * k];
        gate_select(&scores, &bias, k, &mut ids);
        for (scores, ids) in scores.chunks(9).zip(ids.chunks(k)) {
            let keys: Vec<f32> = scores.iter().zip(&bias).map(|(s, b)| s + b).collect();
            prop_assert_eq!(ids, reference::select(&keys, k));
        }
    }

    #[test]
    fn the_activation_agrees_with_its_formula(a in -30.0f32..30.0, b in -30.0f32..30.0, w in 0.1f32..3.0) {
        let mut gate = [a];
        swiglu(&mut gate, &[b], 1, 10.0, &[w]);
        let expected = reference::swiglu(a.into(), b.into(), 10.0, w.into());
        prop_assert!((f64::from(gate[0]) - expected).abs() < 1e-4);
    }
}
