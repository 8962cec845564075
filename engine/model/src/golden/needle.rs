//! The trained needle model on eight of its prompts, up to 1,025 tokens.

use engine_spec::{IndexKeyFormat, Precision};

use super::{Golden, argmax_agreement, exact, largest_difference, load, mean_difference, options, run};
use crate::runtime::Runtime;

const PROMPTS: [&str; 8] = ["000", "015", "016", "019", "108", "123", "124", "127"];

/// Logits of the rows that the golden file has: those that predict the answer.
fn answer_logits(runtime: &mut Runtime, golden: &Golden, id: &str, chunk: usize) -> (Vec<f32>, usize) {
    let tokens = golden.tokens(&format!("{id}.ids"));
    let vocab = runtime.shape().vocab_size;
    let rows = golden.floats(&format!("{id}.logits_exact")).len() / vocab;
    let logits = run(runtime, &tokens, chunk, &());
    // The last token predicts nothing that the file has.
    let end = logits.len() - vocab;
    (logits[end - rows * vocab..end].to_vec(), vocab)
}

#[test]
fn exact_logits_are_within_3e_4() {
    let golden = Golden::read("needle");
    let mut runtime = load("needle", &exact(), 5, 1);
    for id in PROMPTS {
        for chunk in [2048, 57, 1] {
            let (logits, _) = answer_logits(&mut runtime, &golden, id, chunk);
            let error = largest_difference(&logits, &golden.floats(&format!("{id}.logits_exact")));
            assert!(error < 3e-4, "{id} in chunks of {chunk}: a logit is off by {error:e}");
        }
    }
}

/// Means over each prompt, and whether every argmax agrees.
fn compare_rounded(runtime: &mut Runtime) -> Vec<(f32, f32)> {
    let golden = Golden::read("needle");
    let compare = |id: &&str| {
        let (logits, vocab) = answer_logits(runtime, &golden, id, 512);
        let expected = golden.floats(&format!("{id}.logits_rounded"));
        (mean_difference(&logits, &expected), argmax_agreement(&logits, &expected, vocab))
    };
    PROMPTS.iter().map(compare).collect()
}

/// The file was made with the rotated part of KV rows unrounded.
#[test]
fn fully_rounded_logits_equal_the_reference_on_the_whole() {
    let mut runtime = load("needle", &options(Precision::Exact, IndexKeyFormat::Fp4), 5, 1);
    runtime.round_like_golden(Precision::Full);
    for (id, (mean, argmax)) in PROMPTS.iter().zip(compare_rounded(&mut runtime)) {
        assert_eq!(argmax, 1.0, "{id}: another token won");
        assert!(mean < 0.05, "{id}: logits are off by {mean} on average");
    }
}

/// Served rows hold the rotated part in bf16, which costs as much again as the other roundings together.
#[test]
fn served_rows_choose_the_same_tokens() {
    for precision in [Precision::Full, Precision::Sim] {
        let mut runtime = load("needle", &options(precision, IndexKeyFormat::Fp4), 5, 1);
        for (id, (mean, argmax)) in PROMPTS.iter().zip(compare_rounded(&mut runtime)) {
            assert_eq!(argmax, 1.0, "{id} at {precision:?}: another token won");
            // `Sim` leaves the inputs of linears unrounded, so its distance says nothing.
            assert!(mean < 0.1 || precision == Precision::Sim, "{id}: logits are off by {mean} on average");
        }
    }
}
