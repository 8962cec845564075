//! The random tiny models at the three levels of rounding.

use engine_spec::{IndexKeyFormat, Precision};

use super::taps::{Choices, Teacher};
use super::{Golden, argmax_agreement, exact, largest_difference, load, mean_difference, options, run};
use crate::runtime::Runtime;
use crate::weights::WeightStorage;

const LAYERS: usize = 4;

/// One shot, chunks of 57, token by token: all within 1e-4, all choices equal.
fn assert_exact(name: &str, storage: WeightStorage) {
    let golden = Golden::read(name);
    let (tokens, expected) = (golden.tokens("input_ids"), golden.floats("logits"));
    let options = crate::ModelOptions { weights: storage, ..exact() };
    let mut runtime = load(name, &options, 3, 1);
    for chunk in [tokens.len(), 57, 1] {
        let choices = Choices::default();
        let logits = run(&mut runtime, &tokens, chunk, &choices);
        let error = largest_difference(&logits, &expected);
        assert!(error < 1e-4, "{name}, {storage:?}, chunks of {chunk}: a logit is off by {error:e}");
        choices.assert_equal(&golden, LAYERS, tokens.len(), chunk);
    }
}

#[test]
fn exact_logits_and_choices_equal_the_reference_in_bf16_storage() {
    assert_exact("tiny", WeightStorage::Auto);
    assert_exact("tiny", WeightStorage::Packed);
}

#[test]
fn exact_logits_and_choices_equal_the_reference_in_fp8_and_fp4_storage() {
    assert_exact("tiny-published-exact", WeightStorage::F32);
    assert_exact("tiny-published-exact", WeightStorage::Packed);
}

#[test]
fn a_checkpoint_with_a_draft_layer_gives_the_same_main_logits() {
    assert_exact("tiny-mtp-published-exact", WeightStorage::Auto);
}

#[test]
fn exact_logits_equal_the_reference_at_real_head_sizes() {
    assert_exact("realdims-published-exact", WeightStorage::Auto);
}

/// The golden's rounding: everything a stored row rounds, but the rotated part.
fn rounded(name: &str, precision: Precision) -> Runtime {
    let mut runtime = load(name, &options(Precision::Exact, IndexKeyFormat::Fp4), 3, 1);
    runtime.round_like_golden(precision);
    runtime
}

#[test]
fn rounded_caches_equal_the_reference() {
    let name = "tiny-published-sim";
    let golden = Golden::read(name);
    let (tokens, expected) = (golden.tokens("input_ids"), golden.floats("logits"));
    let mut runtime = rounded(name, Precision::Sim);
    let choices = Choices::default();
    let logits = run(&mut runtime, &tokens, tokens.len(), &choices);
    let error = largest_difference(&logits, &expected);
    assert!(error < 1e-4, "one shot: a logit is off by {error:e}");
    choices.assert_equal(&golden, LAYERS, tokens.len(), tokens.len());
    for chunk in [57, 1] {
        let mean = mean_difference(&run(&mut runtime, &tokens, chunk, &()), &expected);
        assert!(mean < 1e-4, "chunks of {chunk}: logits are off by {mean:e} on average");
    }
}

/// A flip of one FP8 rounding moves everything after it, so each sublayer is judged on the reference's input.
#[test]
fn fully_rounded_sublayers_equal_the_reference_row_by_row() {
    let name = "tiny-published-full";
    let golden = Golden::read(name);
    let tokens = golden.tokens("input_ids");
    let mut runtime = rounded(name, Precision::Full);
    let teacher = Teacher::new(&golden, LAYERS, runtime.shape().hidden_size);
    run(&mut runtime, &tokens, tokens.len(), &teacher);
    teacher.choices.assert_equal(&golden, LAYERS, tokens.len(), tokens.len());
    for ((layer, what), errors) in teacher.errors.lock().unwrap().iter() {
        assert_eq!(errors.len(), tokens.len());
        let flipped = errors.iter().filter(|e| **e > 1e-4).count();
        let worst = errors.iter().copied().fold(0.0, f32::max);
        assert!(flipped <= 3 && worst < 0.05, "layer {layer}, {what}: {flipped} rows differ, worst {worst}");
    }
}

#[test]
fn fully_rounded_logits_agree_with_the_reference_on_the_whole() {
    let name = "tiny-published-full";
    let golden = Golden::read(name);
    let (tokens, expected) = (golden.tokens("input_ids"), golden.floats("logits"));
    let mut runtime = rounded(name, Precision::Full);
    let vocab = runtime.shape().vocab_size;
    for chunk in [tokens.len(), 57, 1] {
        let logits = run(&mut runtime, &tokens, chunk, &());
        let (argmax, mean) =
            (argmax_agreement(&logits, &expected, vocab), mean_difference(&logits, &expected));
        assert!(argmax >= 0.9 && mean < 0.1, "chunks of {chunk}: argmax {argmax}, mean {mean}");
    }
}

/// What is served, rows of FP8 with a bf16 rotated part, stays as close as that rounding allows.
#[test]
fn served_rows_differ_from_the_reference_by_the_rotated_parts_rounding_only() {
    let name = "tiny-published-sim";
    let golden = Golden::read(name);
    let (tokens, expected) = (golden.tokens("input_ids"), golden.floats("logits"));
    let mut runtime = load(name, &options(Precision::Sim, IndexKeyFormat::Fp4), 3, 1);
    let vocab = runtime.shape().vocab_size;
    for chunk in [tokens.len(), 57, 1] {
        let logits = run(&mut runtime, &tokens, chunk, &());
        let (argmax, mean) =
            (argmax_agreement(&logits, &expected, vocab), mean_difference(&logits, &expected));
        assert!(argmax >= 0.95 && mean < 0.03, "chunks of {chunk}: argmax {argmax}, mean {mean}");
    }
}
