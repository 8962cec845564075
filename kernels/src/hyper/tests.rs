use proptest::prelude::*;

use super::{GATES, MIXES, Mixing, STREAMS, hyper_head, hyper_post, hyper_pre, reference};

const SCALE: [f32; 3] = [0.7, 1.3, 1.1];

fn mixing<'a>(scale: &'a [f32], base: &'a [f32]) -> Mixing<'a> {
    Mixing { scale, base, norm_eps: 1e-6, eps: 1e-6, iterations: 20 }
}

/// The specification's example of 20 rounds.
const EXPECTED: [[f32; 4]; 4] = [
    [0.384_210, 0.111_965, 0.286_075, 0.217_749],
    [0.095_990, 0.561_847, 0.194_282, 0.147_880],
    [0.245_260, 0.194_282, 0.182_617, 0.377_840],
    [0.274_539, 0.131_905, 0.337_025, 0.256_530],
];

#[test]
fn sinkhorn_gives_the_numbers_of_the_specification() {
    let a = [[1.0f32, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [0.5, 0.0, 0.0, 0.0]];
    let by_reference = reference::sinkhorn(a.map(|row| row.map(f64::from)), 1e-6, 20);
    // Zero products: the logits are the bases.
    let mut base = [0.0; MIXES];
    for (to, from) in base[2 * STREAMS..].iter_mut().zip(a.as_flattened()) {
        *to = *from;
    }
    let (mut y, mut gates) = ([0.0; 2], [0.0; GATES]);
    hyper_pre(&[1.0; 8], &[0.0; MIXES], &mixing(&SCALE, &base), &mut y, &mut gates);
    for (i, expected) in EXPECTED.as_flattened().iter().enumerate() {
        assert!((by_reference.as_flattened()[i] - f64::from(*expected)).abs() < 2e-6);
        assert!((gates[STREAMS + i] - expected).abs() < 2e-6, "C[{i}] is {}", gates[STREAMS + i]);
    }
}

#[test]
fn the_update_sums_over_the_first_index() {
    // C with a single 1 at row 0, column 1: stream 1 receives stream 0.
    let mut gates = [0.0; GATES];
    gates[STREAMS + 1] = 1.0;
    gates[2] = 5.0;
    let mut streams = [1.0, 2.0, 3.0, 4.0];
    hyper_post(&[10.0], &gates, &mut streams);
    assert_eq!(streams, [0.0, 1.0, 50.0, 0.0]);
}

#[test]
fn no_tokens_are_no_work() {
    let base = [0.0; MIXES];
    hyper_pre(&[], &[], &mixing(&SCALE, &base), &mut [], &mut []);
    hyper_post(&[], &[], &mut []);
    hyper_head(&[], &[], &mixing(&SCALE, &base), &mut []);
}

/// More rows than one thread takes give what they give alone.
#[test]
fn many_rows_are_shared_out_unchanged() {
    const D: usize = 512;
    const T: usize = 301;
    let value = |i: usize| ((i * 7919) % 1013) as f32 / 300.0 - 1.7;
    let streams: Vec<f32> = (0..T * 4 * D).map(value).collect();
    let products: Vec<f32> = (0..T * MIXES).map(value).collect();
    let base: Vec<f32> = (0..MIXES).map(value).collect();
    let (mut y, mut gates) = (vec![0.0; T * D], vec![0.0; T * GATES]);
    hyper_pre(&streams, &products, &mixing(&SCALE, &base), &mut y, &mut gates);
    let mut after = streams.clone();
    hyper_post(&y, &gates, &mut after);
    for t in 0..T {
        let x = &streams[t * 4 * D..][..4 * D];
        let (mut one, mut own) = (vec![0.0; D], vec![0.0; GATES]);
        hyper_pre(x, &products[t * MIXES..][..MIXES], &mixing(&SCALE, &base), &mut one, &mut own);
        let mut mixed = x.to_vec();
        hyper_post(&one, &own, &mut mixed);
        assert_eq!((&y[t * D..][..D], &gates[t * GATES..][..GATES]), (&one[..], &own[..]));
        assert_eq!(&after[t * 4 * D..][..4 * D], mixed);
    }
}

fn values(n: usize) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(-3.0f32..3.0, n)
}

proptest! {
    #[test]
    fn agrees_with_the_formulas_for_any_number_of_tokens(
        tokens in 1usize..20, streams in values(20 * 4 * 5), products in values(20 * MIXES), base in values(MIXES),
    ) {
        const D: usize = 5;
        let (streams, products) = (&streams[..tokens * 4 * D], &products[..tokens * MIXES]);
        let mixing = mixing(&SCALE, &base);
        let (mut y, mut gates) = (vec![0.0; tokens * D], vec![0.0; tokens * GATES]);
        hyper_pre(streams, products, &mixing, &mut y, &mut gates);
        let mut after = streams.to_vec();
        hyper_post(&y, &gates, &mut after);
        let heads: Vec<f32> = products.chunks(MIXES).flat_map(|p| p[..4].to_vec()).collect();
        let mut head = vec![0.0; tokens * D];
        hyper_head(streams, &heads, &mixing, &mut head);
        for t in 0..tokens {
            let x = &streams[t * 4 * D..][..4 * D];
            let c = reference::coefficients(x, &products[t * MIXES..][..MIXES], &mixing);
            for i in 0..D {
                let sum: f64 = (0..4).map(|j| c.pre[j] * f64::from(x[j * D + i])).sum();
                prop_assert!((f64::from(y[t * D + i]) - sum).abs() < 2e-5);
                prop_assert!((f64::from(head[t * D + i]) - sum).abs() < 2e-5);
                for k in 0..4 {
                    let mixed: f64 = (0..4).map(|j| c.matrix[j][k] * f64::from(x[j * D + i])).sum();
                    let expected = c.post[k] * sum + mixed;
                    prop_assert!((f64::from(after[t * 4 * D + k * D + i]) - expected).abs() < 5e-5);
                }
            }
        }
    }
}
