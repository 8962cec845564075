use proptest::prelude::*;

use super::*;
use crate::linear::tests::{noise, on_threads};

fn check(attention_: &Attention<'_>) {
    let mut fast = vec![7.0; attention_.queries.len()];
    let mut expected = fast.clone();
    on_threads(3, || attention(attention_, &mut fast, &mut Scratch::new()));
    reference::attention(attention_, &mut expected);
    close(&fast, &expected);
    // Other instruction sets have vectors of other lengths.
    close(&with(pulp::Scalar, attention_), &expected);
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = pulp::x86::V3::try_new() {
        close(&with(pulp::x86::V3_128b(avx2), attention_), &expected);
        close(&with(pulp::x86::V3_512b(avx2), attention_), &expected);
    }
}

fn close(fast: &[f32], expected: &[f32]) {
    for (at, (fast, expected)) in fast.iter().zip(expected).enumerate() {
        assert!((fast - expected).abs() < 3e-6, "value {at}: {fast}, expected {expected}");
    }
}

fn with<S: pulp::Simd>(simd: S, attention: &Attention<'_>) -> Vec<f32> {
    let mut out = vec![7.0; attention.queries.len()];
    let mut scratch = vec![0.0; tiled::scratch(attention.heads)];
    let pairs = 0..attention.tokens() * attention.heads;
    simd.vectorize(tiled::Tiled { attention, pairs, out: &mut out, scratch: &mut scratch });
    out
}

/// `tokens` queries with `earlier` rows before their own, seeing `seen` of 4 * `tokens` + 40 entries.
fn case(heads: usize, dim: usize, tokens: u32, earlier: usize, window_len: usize, kind: usize, seed: u32) {
    let (count, seeds) = (tokens as usize, u64::from(seed));
    let all = 4 * tokens + 40;
    let queries: Vec<f32> = noise(count * heads * dim, seeds).iter().map(|q| q * 4.0).collect();
    let sinks = noise(heads, seeds + 1);
    let window = noise((earlier + count) * dim, seeds + 2);
    let entries = noise(all as usize * dim, seeds + 3);
    let prefix: Vec<u32> = (0..tokens).map(|t| (t * 3 + seed) % all).collect();
    let mut selection = Selection::new();
    for t in 0..tokens {
        let step = 1 + (t + seed) % 5;
        selection.push(&(0..all).filter(|w| w % step == 0).collect::<Vec<_>>());
    }
    let seen = match kind {
        0 => Seen::Nothing,
        1 => Seen::Prefix(&prefix),
        _ => Seen::Selected(&selection),
    };
    check(&Attention {
        heads,
        dim,
        queries: &queries,
        sinks: &sinks,
        window: &window,
        window_len,
        entries: &entries,
        seen,
    });
}

#[test]
fn attention_equals_the_reference_at_real_widths() {
    for kind in 0..3 {
        case(8, 512, 1, 127, 128, kind, 1);
        case(8, 512, 5, 127, 128, kind, 2);
        case(4, 128, 70, 31, 32, kind, 3);
        case(4, 128, 33, 0, 32, kind, 4);
    }
}

#[test]
fn a_sink_takes_weight_away() {
    let (queries, window) = (vec![0.0; 128], vec![1.0; 128]);
    let attention_ = |sink: &'static [f32; 1], out: &mut [f32]| {
        let seen = Seen::Nothing;
        let case = Attention {
            heads: 1,
            dim: 128,
            queries: &queries,
            sinks: sink,
            window: &window,
            window_len: 4,
            entries: &[],
            seen,
        };
        attention(&case, out, &mut Scratch::new());
    };
    let mut out = vec![0.0; 128];
    // One row with logit 0 against a sink with logit 0, then against none.
    attention_(&[0.0], &mut out);
    assert!(out.iter().all(|v| (v - 0.5).abs() < 1e-6));
    attention_(&[f32::NEG_INFINITY], &mut out);
    assert!(out.iter().all(|v| (v - 1.0).abs() < 1e-6));
}

#[test]
fn large_logits_do_not_overflow() {
    let (queries, window, entries) = (vec![100.0; 2 * 128], vec![100.0; 5 * 128], vec![-100.0; 3 * 128]);
    let seen = Seen::Prefix(&[3]);
    let case = Attention {
        heads: 2,
        dim: 128,
        queries: &queries,
        sinks: &[500.0, -500.0],
        window: &window,
        window_len: 4,
        entries: &entries,
        seen,
    };
    let mut out = vec![0.0; 256];
    attention(&case, &mut out, &mut Scratch::new());
    assert!(out.iter().all(|v| (v - 100.0).abs() < 1e-3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_case_equals_the_reference(
        heads in 1..10_usize, width in 1..5_usize, tokens in 1..12_u32, earlier in 0..20_usize,
        window_len in 1..24_usize, kind in 0..3_usize, seed in 1..1000_u32,
    ) {
        case(heads, 24 * width, tokens, earlier, window_len, kind, seed);
    }
}
