use proptest::prelude::*;

use super::*;
use crate::linear::tests::{noise, on_threads};

struct Case {
    heads: usize,
    dim: usize,
    queries: Vec<f32>,
    weights: Vec<f32>,
    keys: Vec<f32>,
    visible: Vec<u32>,
}

impl Case {
    /// Small integers, so that every score is exact and ties are common.
    fn integers(heads: usize, dim: usize, visible: Vec<u32>, seed: u64) -> Self {
        let integers = |count, seed| noise(count, seed).iter().map(|v| (v * 2.5).round()).collect::<Vec<_>>();
        let entries = visible.iter().max().map_or(0, |most| *most as usize);
        Self {
            heads,
            dim,
            queries: integers(visible.len() * heads * dim, seed),
            weights: integers(visible.len() * heads, seed + 1),
            keys: integers(entries * dim, seed + 2),
            visible,
        }
    }

    fn index(&self, top_k: usize) -> Index<'_> {
        let Self { heads, dim, ref queries, ref weights, ref keys, ref visible } = *self;
        Index { heads, dim, queries, weights, keys, visible, top_k }
    }

    fn check(&self, top_k: usize) {
        let index = self.index(top_k);
        let mut selection = Selection::new();
        on_threads(3, || select(&index, &mut selection, &mut Scratch::new()));
        assert_eq!(selection.len(), self.visible.len());
        for (t, seen) in self.visible.iter().enumerate() {
            let mut expected = vec![0; top_k.min(*seen as usize)];
            reference::select_one(&index, t, &mut expected);
            assert_eq!(selection.row(t), expected, "query {t}, {seen} visible, top {top_k}");
        }
    }
}

fn scores_with<S: pulp::Simd>(simd: S, index: &Index<'_>) -> Vec<f32> {
    let mut scores = vec![7.0; index.visible[0] as usize];
    simd.vectorize(scored::Score { index, t: 0, scores: &mut scores });
    scores
}

#[test]
fn vectors_of_every_length_score_alike() {
    for (heads, dim) in [(1, 32), (4, 128), (7, 40), (8, 12)] {
        let case = Case::integers(heads, dim, vec![27], 6);
        let index = case.index(5);
        let expected: Vec<f32> = (0..27).map(|w| reference::score(&index, 0, w)).collect();
        assert_eq!(scores_with(pulp::Scalar, &index), expected);
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = pulp::x86::V3::try_new() {
            assert_eq!(scores_with(avx2, &index), expected);
            assert_eq!(scores_with(pulp::x86::V3_128b(avx2), &index), expected);
            assert_eq!(scores_with(pulp::x86::V3_512b(avx2), &index), expected);
        }
    }
}

#[test]
fn everything_visible_is_selected_when_it_fits() {
    let case = Case::integers(2, 32, vec![0, 1, 5, 8], 1);
    let mut selection = Selection::new();
    select(&case.index(8), &mut selection, &mut Scratch::new());
    for (t, seen) in case.visible.iter().enumerate() {
        assert_eq!(selection.row(t), (0..*seen).collect::<Vec<_>>());
    }
}

#[test]
fn equal_scores_go_to_the_lowest_entries() {
    let (queries, weights, keys) = (vec![1.0; 32], vec![1.0], vec![1.0; 100 * 32]);
    let index = Index {
        heads: 1,
        dim: 32,
        queries: &queries,
        weights: &weights,
        keys: &keys,
        visible: &[100],
        top_k: 7,
    };
    let mut selection = Selection::new();
    select(&index, &mut selection, &mut Scratch::new());
    assert_eq!(selection.row(0), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn products_are_cut_before_a_negative_weight_is_applied() {
    // Entry 0 has a negative product: cut to 0 and then weighted it beats entry 1, whose product is positive.
    let keys = [[-1.0; 32], [1.0; 32]].concat();
    let index = Index {
        heads: 1,
        dim: 32,
        queries: &[1.0; 32],
        weights: &[-1.0],
        keys: &keys,
        visible: &[2],
        top_k: 1,
    };
    let mut selection = Selection::new();
    select(&index, &mut selection, &mut Scratch::new());
    assert_eq!(selection.row(0), [0]);
}

#[test]
fn scores_that_are_not_numbers_neither_panic_nor_repeat_an_entry() {
    let mut case = Case::integers(2, 32, vec![40; 5], 2);
    case.keys[3 * 32] = f32::NAN;
    case.keys[9 * 32] = f32::INFINITY;
    case.weights[0] = f32::NAN;
    let mut selection = Selection::new();
    select(&case.index(16), &mut selection, &mut Scratch::new());
    for t in 0..5 {
        assert!(selection.row(t).is_sorted_by(|a, b| a < b) && selection.row(t).iter().all(|w| *w < 40));
    }
}

#[test]
fn a_long_prompt_selects_what_the_reference_selects() {
    Case::integers(8, 128, (0..150).map(|t| 900 + t / 4).collect(), 3).check(512);
    Case::integers(4, 128, (0..70).map(|t| t * 9).collect(), 4).check(64);
    Case::integers(8, 128, vec![3000], 5).check(512);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_case_selects_what_the_reference_selects(
        heads in 1..10_usize, width in 0..3_u32, visible in prop::collection::vec(0..120_u32, 0..12), top_k in 0..40_usize,
        seed in 1..1000_u64,
    ) {
        Case::integers(heads, 32 << width, visible, seed).check(top_k);
    }
}
