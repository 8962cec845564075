//! Ragged batches, wrong batches, and what a page and a slot carry from one runtime to another.

use engine_spec::{IndexKeyFormat, Precision};
use proptest::prelude::*;

use super::*;
use crate::batch::Want;
use crate::golden::{exact, largest_difference, load, options, testdata};

const MODEL: &str = "tiny-published-exact";
const VOCAB: usize = 256;

fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0u32..).take(len).map(|i| (((i + 1) * (2 * seed + 7919)) >> 3) % 254 + 2).collect()
}

fn pages(first: u32, len: usize) -> Vec<Page> {
    (first..).take(len.div_ceil(256)).map(Page).collect()
}

fn segment<'a>(slot: u32, pages: &'a [Page], start: usize, tokens: &'a [u32], want: Want) -> Segment<'a> {
    Segment { slot: Slot(slot), pages, start, tokens, want }
}

/// Computes one sequence alone, chunk by chunk; logits of every row.
fn alone(
    runtime: &mut Runtime,
    slot: u32,
    pages: &[Page],
    start: usize,
    tokens: &[u32],
    chunk: usize,
) -> Vec<f32> {
    let mut logits = Vec::new();
    for (i, tokens) in tokens.chunks(chunk).enumerate() {
        let segment = segment(slot, pages, start + i * chunk, tokens, Want::All);
        logits.extend(runtime.forward(&[segment]).unwrap().values);
    }
    logits
}

#[test]
fn rows_come_only_for_who_wants_them() {
    let mut runtime = load(MODEL, &exact(), 3, 3);
    let (tokens, tables) = (tokens(1, 9), [[Page(0)], [Page(1)], [Page(2)]]);
    let batch = [
        segment(0, &tables[0], 0, &tokens, Want::Last),
        segment(1, &tables[1], 0, &tokens, Want::Nothing),
        segment(2, &tables[2], 0, &tokens, Want::All),
    ];
    let logits = runtime.forward(&batch).unwrap();
    let rows: Vec<&[f32]> = logits.rows().collect();
    assert_eq!((logits.vocab, rows.len()), (VOCAB, 10));
    assert!(largest_difference(rows[0], rows[9]) < 1e-5);
    assert!(runtime.forward(&batch[1..2]).unwrap().values.is_empty());
    assert!(runtime.forward(&[]).unwrap().values.is_empty());
}

#[test]
fn sequences_in_one_batch_get_the_numbers_they_get_alone() {
    let mut runtime = load(MODEL, &exact(), 8, 4);
    let texts: Vec<Vec<u32>> = (0..4u32).map(|i| tokens(i, [300, 77, 130, 5][i as usize])).collect();
    let expected: Vec<Vec<f32>> =
        texts.iter().map(|t| alone(&mut runtime, 3, &pages(6, t.len()), 0, t, 64)).collect();
    let tables: Vec<Vec<Page>> = (0..4).map(|i| pages(2 * i, 300)).collect();
    (0..4).for_each(|slot| runtime.reset_slot(Slot(slot)));
    // Chunks of different sizes: one sequence still reads its prompt while others decode.
    let chunks = [97, 1, 33, 2];
    let (mut at, mut found) = ([0; 4], vec![Vec::new(); 4]);
    while (0..4).any(|i| at[i] < texts[i].len()) {
        let going: Vec<usize> = (0..4).filter(|i| at[*i] < texts[*i].len()).collect();
        let ends: Vec<usize> = (0..4).map(|i| (at[i] + chunks[i]).min(texts[i].len())).collect();
        let batch: Vec<Segment<'_>> = going
            .iter()
            .map(|&i| {
                let slot = u32::try_from(i).unwrap();
                segment(slot, &tables[i], at[i], &texts[i][at[i]..ends[i]], Want::All)
            })
            .collect();
        let logits = runtime.forward(&batch).unwrap();
        let mut rows = logits.rows();
        for i in going {
            (at[i]..ends[i]).for_each(|_| found[i].extend_from_slice(rows.next().unwrap()));
            at[i] = ends[i];
        }
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert!(largest_difference(found, expected) < 1e-4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A page and a slot are everything a sequence is.
    #[test]
    fn a_sequence_goes_on_elsewhere_from_its_pages_and_slot(
        boundary in 1usize..290,
        chunk in 1usize..80,
        formats in prop_oneof![
            Just((Precision::Exact, IndexKeyFormat::F32)),
            Just((Precision::Sim, IndexKeyFormat::Fp4)),
            Just((Precision::Sim, IndexKeyFormat::Fp8)),
            Just((Precision::Full, IndexKeyFormat::Bf16)),
        ],
    ) {
        let options = options(formats.0, formats.1);
        let mut here = load(MODEL, &options, 2, 1);
        let mut there = load(MODEL, &options, 5, 3);
        let (text, table) = (tokens(3, 300), pages(0, 300));
        alone(&mut here, 0, &table, 0, &text[..boundary], chunk);
        let (mut page, mut slot) = (vec![0; here.page_bytes()], vec![0; here.slot_bytes()]);
        // Used memory: nothing of it may show.
        alone(&mut there, 2, &pages(3, 300), 0, &tokens(9, 270), 90);
        let moved = [Page(4), Page(3)];
        for (from, to) in table.iter().zip(moved) {
            here.export_page(*from, &mut page);
            there.import_page(to, &page);
        }
        here.export_slot(Slot(0), &mut slot);
        there.import_slot(Slot(2), &slot);
        let rest = &text[boundary..];
        let expected = alone(&mut here, 0, &table, boundary, rest, 7);
        prop_assert_eq!(alone(&mut there, 2, &moved, boundary, rest, 7), expected);
    }
}

#[test]
fn pools_have_the_sizes_that_the_planner_knows() {
    for index_keys in [IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8, IndexKeyFormat::Fp4] {
        for precision in [Precision::Exact, Precision::Sim, Precision::Full] {
            for model in [MODEL, "realdims-published-exact", "needle"] {
                let runtime = load(model, &options(precision, index_keys), 1, 1);
                let format = CacheFormat { precision, index_keys };
                assert_eq!(runtime.page_bytes(), format.page_bytes(runtime.shape()));
                assert_eq!(runtime.slot_bytes(), format.slot_bytes(runtime.shape()));
            }
        }
    }
}

#[test]
fn a_reset_slot_holds_nothing_and_a_new_sequence_sees_nothing() {
    let mut runtime = load(MODEL, &exact(), 2, 1);
    let (table, text) = (pages(0, 300), tokens(4, 200));
    let expected = alone(&mut runtime, 0, &table, 0, &text, 50);
    alone(&mut runtime, 0, &table, 0, &tokens(5, 300), 60);
    runtime.reset_slot(Slot(0));
    let mut slot = vec![1; runtime.slot_bytes()];
    runtime.export_slot(Slot(0), &mut slot);
    assert!(slot.iter().all(|byte| *byte == 0));
    assert_eq!(alone(&mut runtime, 0, &table, 0, &text, 50), expected);
}

#[test]
fn wrong_segments_are_refused_and_named() {
    let mut runtime = load(MODEL, &exact(), 2, 2);
    let (one, two) = ([Page(0)], [Page(0), Page(1)]);
    let text = tokens(1, 300);
    let mut refuse = |batch: &[Segment<'_>], expected: &str| {
        let error = runtime.forward(batch).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    };
    let good = segment(0, &two, 0, &text, Want::Last);
    refuse(&[Segment { tokens: &[], ..good }], "segment 0 has no tokens");
    refuse(&[good, Segment { slot: Slot(2), ..good }], "segment 1 names slot 2; the pool has 2");
    refuse(&[good, good], "segments 0 and 1 both use slot 0");
    refuse(&[good, Segment { slot: Slot(1), ..good }], "segments 0 and 1 both write page 0");
    refuse(&[Segment { pages: &one, ..good }], "ends at position 300");
    refuse(&[Segment { pages: &[Page(0), Page(7)], ..good }], "names page 7; the pool has 2");
    refuse(&[Segment { tokens: &[3, 256], ..good }], "token 256 at index 1");
    refuse(&[Segment { start: 4000, ..good }], "ends at position 4300; the model has 4096");
    refuse(&[Segment { start: usize::MAX, ..good }], "the model has 4096");
    assert!(runtime.forward(&[good]).is_ok());
}

/// Two sequences that share a prefix's page may read it in one batch; each writes its own.
#[test]
fn a_page_may_be_read_by_several_sequences() {
    let mut runtime = load(MODEL, &exact(), 3, 2);
    let text = tokens(6, 260);
    let (a, b) = ([Page(0), Page(1)], [Page(0), Page(2)]);
    alone(&mut runtime, 0, &a, 0, &text[..256], 256);
    let mut slot = vec![0; runtime.slot_bytes()];
    runtime.export_slot(Slot(0), &mut slot);
    runtime.import_slot(Slot(1), &slot);
    let rest = &text[256..];
    let batch = [segment(0, &a, 256, rest, Want::All), segment(1, &b, 256, rest, Want::All)];
    let logits = runtime.forward(&batch).unwrap().values;
    let (left, right) = logits.split_at(logits.len() / 2);
    assert!(largest_difference(left, right) < 1e-5);
}

#[test]
fn the_fingerprint_tells_checkpoints_apart_and_one_from_itself_does_not() {
    let print = |model| load(model, &exact(), 1, 1).fingerprint();
    assert_eq!(print("tiny"), print("tiny"));
    assert_ne!(print("tiny-published-exact"), print("tiny-published-sim"));
    assert_ne!(print("tiny"), print("needle"));
}

#[test]
fn a_smaller_top_k_changes_the_answer_and_a_larger_one_selects_everything() {
    let run = |index_top_k| {
        let options = ModelOptions { index_top_k, ..exact() };
        let mut runtime = load(MODEL, &options, 2, 1);
        alone(&mut runtime, 0, &pages(0, 300), 0, &tokens(2, 300), 300)
    };
    assert!(largest_difference(&run(Some(4)), &run(None)) > 1e-3);
    assert_eq!(run(Some(75)), run(Some(10_000)));
}

#[test]
fn settings_of_zero_are_refused() {
    let refuse = |options: ModelOptions| {
        Runtime::load(&testdata(MODEL), &options, 1, 1, &mut |_| {}).unwrap_err().to_string()
    };
    assert_eq!(refuse(ModelOptions { threads: 0, ..exact() }), "threads is 0; expected at least one");
    let zero = ModelOptions { index_top_k: Some(0), ..exact() };
    assert_eq!(refuse(zero), "index top-k is 0; expected at least one entry");
}
