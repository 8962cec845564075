use proptest::prelude::*;

use super::*;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 1 };
const PLAIN: Sampling = Sampling { temperature: 1.0, ..GREEDY };

fn ids(logits: &[f32], sampling: &Sampling, draws: u64) -> Vec<u32> {
    (0..draws).map(|position| sample(logits, sampling, 0, position, 0).id).collect()
}

#[test]
fn temperature_zero_takes_the_lowest_of_the_largest() {
    let sampled = sample(&[1.0, 3.0, 3.0, -1.0], &GREEDY, 0, 0, 3);
    assert_eq!(sampled.id, 1);
    assert_eq!(sampled.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!(sampled.top[0].1, sampled.logprob);
}

#[test]
fn log_probabilities_are_those_of_the_softmax_before_temperature_and_filters() {
    let logits: [f32; 3] = [0.5, 1.5, -0.25];
    let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
    let narrow = Sampling { temperature: 0.1, top_k: 1, ..PLAIN };
    let sampled = sample(&logits, &narrow, 0, 0, 20);
    assert_eq!(sampled.top.len(), 3, "no more alternatives than tokens");
    for (id, logprob) in sampled.top {
        assert!((logprob - (logits[id as usize].exp() / sum).ln()).abs() < 1e-6);
    }
}

#[test]
fn draws_follow_the_distribution() {
    // Probabilities 0.1, 0.2, 0.3, 0.4.
    let logits: Vec<f32> = [0.1f32, 0.2, 0.3, 0.4].iter().map(|share| share.ln()).collect();
    let mut counts = [0u32; 4];
    for id in ids(&logits, &PLAIN, 20_000) {
        counts[id as usize] += 1;
    }
    for (count, share) in counts.into_iter().zip([0.1, 0.2, 0.3, 0.4]) {
        // 5 standard deviations of a binomial of 20,000.
        let allowed = 5.0 * (20_000.0f64 * share * (1.0 - share)).sqrt();
        assert!((f64::from(count) - 20_000.0 * share).abs() < allowed, "{counts:?}");
    }
}

#[test]
fn the_same_seed_choice_and_position_draw_the_same_token_and_others_do_not() {
    let logits = [0.0; 64];
    let other_seed = Sampling { seed: 2, ..PLAIN };
    let drawn = ids(&logits, &PLAIN, 64);
    assert_eq!(drawn, ids(&logits, &PLAIN, 64));
    assert_ne!(drawn, ids(&logits, &other_seed, 64));
    let other_choice: Vec<u32> = (0..64).map(|position| sample(&logits, &PLAIN, 1, position, 0).id).collect();
    assert_ne!(drawn, other_choice);
}

#[test]
fn top_k_keeps_the_likeliest_and_the_lower_id_of_equals() {
    let top_k = Sampling { top_k: 2, ..PLAIN };
    let drawn = ids(&[0.0, 1.0, 1.0, 1.0], &top_k, 500);
    assert!(drawn.iter().all(|id| [1, 2].contains(id)));
    assert!(drawn.contains(&1) && drawn.contains(&2));
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_its_share() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|share| share.ln()).collect();
    for (top_p, kept) in [(0.4, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4)] {
        let drawn = ids(&logits, &Sampling { top_p, ..PLAIN }, 2_000);
        let mut seen = drawn.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..kept).collect::<Vec<u32>>(), "top_p {top_p}");
    }
}

#[test]
fn top_p_finds_a_nucleus_that_is_larger_than_a_block() {
    // 2,000 equal tokens: half of the mass is the 1,000 with the lowest ids.
    let drawn = ids(&[0.0; 2_000], &Sampling { top_p: 0.5, ..PLAIN }, 5_000);
    assert!(drawn.iter().all(|&id| id < 1_000));
    assert!(drawn.iter().any(|&id| id > 900));
}

#[test]
fn min_p_is_measured_against_the_likeliest() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|share| share.ln()).collect();
    let drawn = ids(&logits, &Sampling { min_p: 0.25, ..PLAIN }, 2_000);
    assert!(drawn.iter().all(|&id| id < 3) && drawn.contains(&2));
}

#[test]
fn impossible_rows_give_an_id_and_finite_log_probabilities() {
    for logits in [vec![], vec![f32::NAN; 3], vec![f32::NEG_INFINITY; 3]] {
        let sampled = sample(&logits, &PLAIN, 0, 0, 2);
        assert_eq!((sampled.id, sampled.logprob), (0, LEAST_LOGPROB));
    }
    assert_eq!(sample(&[f32::NAN, f32::INFINITY, 0.0], &PLAIN, 0, 0, 0).id, 1);
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -30.0f32..30.0,
        1 => any::<f32>(),
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_row_and_no_setting_panics_or_gives_a_number_that_json_lacks(
        logits in prop::collection::vec(logit(), 0..600),
        temperature in prop_oneof![Just(0.0f32), Just(f32::MIN_POSITIVE), 0.0f32..2.0, Just(1e30)],
        top_p in prop_oneof![Just(1.0f32), Just(f32::MIN_POSITIVE), 0.001f32..1.0],
        top_k in prop_oneof![Just(0u32), 1u32..700],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..=1.0],
        seed: u64, choice: u32, position: u64, top in 0u32..25,
    ) {
        let sampling = Sampling { temperature, top_p, top_k, min_p, seed };
        let sampled = sample(&logits, &sampling, choice, position, top);
        prop_assert!((sampled.id as usize) < logits.len().max(1));
        prop_assert!(sampled.logprob.is_finite());
        prop_assert_eq!(sampled.top.len(), (top as usize).min(logits.len()));
        prop_assert!(sampled.top.iter().all(|top| top.1.is_finite()));
        prop_assert!(sampled.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        if let Some(&(_, most)) = sampled.top.first() {
            prop_assert!(sampled.logprob <= most);
            if temperature == 0.0 || top_k == 1 {
                prop_assert_eq!(sampled.id, sampled.top[0].0);
            }
        }
    }
}
