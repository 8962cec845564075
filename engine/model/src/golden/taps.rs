//! Taps that record a run, and a tap that goes on with the golden file's values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;

use super::Golden;
use crate::tap::Tap;

/// Row of its step, and what it chose.
type Choice = (usize, BTreeSet<u32>);

/// Experts and entries per layer and position, of one sequence run in order.
#[derive(Default)]
pub(super) struct Choices {
    seen: Mutex<BTreeMap<(usize, &'static str), Vec<Choice>>>,
}

impl Choices {
    fn put(&self, layer: usize, what: &'static str, row: usize, ids: impl Iterator<Item = u32>) {
        let mut seen = self.seen.lock().unwrap();
        seen.entry((layer, what)).or_default().push((row, ids.collect()));
    }

    /// Sets by position. Rows of a step arrive in any order, steps one after another, each step's rows from 0.
    fn sets(&self, layer: usize, what: &'static str, chunk: usize) -> Vec<BTreeSet<u32>> {
        let mut seen = self.seen.lock().unwrap().remove(&(layer, what)).unwrap_or_default();
        seen.chunks_mut(chunk).for_each(|step| step.sort_by_key(|(row, _)| *row));
        seen.into_iter().map(|(_, set)| set).collect()
    }

    /// Fails unless every layer chose what the golden file says.
    pub(super) fn assert_equal(&self, golden: &Golden, layers: usize, tokens: usize, chunk: usize) {
        for layer in 0..layers {
            for (what, tensor) in [("experts", "expert_ids"), ("entries", "topk")] {
                let name = format!("layer{layer}.{tensor}");
                if !golden.has(&name) {
                    continue;
                }
                let expected = golden.integers(&name);
                let expected = expected.chunks(expected.len() / tokens);
                let found = self.sets(layer, what, chunk);
                assert_eq!(found.len(), tokens, "{name}: rows seen");
                for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let expected: BTreeSet<u32> =
                        expected.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
                    assert_eq!(*found, expected, "{name} at position {position}");
                }
            }
        }
    }
}

impl Tap for Choices {
    fn experts(&self, layer: usize, rows: Range<usize>, ids: &[u32]) {
        for (row, ids) in rows.clone().zip(ids.chunks(ids.len() / rows.len())) {
            self.put(layer, "experts", row, ids.iter().copied());
        }
    }

    fn entries(&self, layer: usize, row: usize, entries: impl Iterator<Item = u32>) {
        self.put(layer, "entries", row, entries);
    }
}

/// Compares every sublayer's output with the golden file's and goes on with the latter.
pub(super) struct Teacher {
    pub(super) choices: Choices,
    golden: BTreeMap<(usize, &'static str), Vec<f32>>,
    width: usize,
    /// Largest difference of each row, per layer and sublayer.
    pub(super) errors: Mutex<BTreeMap<(usize, &'static str), Vec<f32>>>,
}

impl Teacher {
    pub(super) fn new(golden: &Golden, layers: usize, width: usize) -> Self {
        let outputs = (0..layers).flat_map(|layer| ["attn_out", "moe_out"].map(|what| (layer, what)));
        Self {
            choices: Choices::default(),
            golden: outputs
                .map(|(layer, what)| ((layer, what), golden.floats(&format!("layer{layer}.{what}"))))
                .collect(),
            width,
            errors: Mutex::default(),
        }
    }

    fn teach(&self, layer: usize, what: &'static str, rows: Range<usize>, y: &mut [f32]) {
        let golden = &self.golden[&(layer, what)][rows.start * self.width..rows.end * self.width];
        let errors = y
            .chunks(self.width)
            .zip(golden.chunks(self.width))
            .map(|(y, golden)| super::largest_difference(y, golden));
        self.errors.lock().unwrap().entry((layer, what)).or_default().extend(errors);
        y.copy_from_slice(golden);
    }
}

impl Tap for Teacher {
    fn attention_out(&self, layer: usize, rows: Range<usize>, y: &mut [f32]) {
        self.teach(layer, "attn_out", rows, y);
    }

    fn moe_out(&self, layer: usize, rows: Range<usize>, y: &mut [f32]) {
        self.teach(layer, "moe_out", rows, y);
    }

    fn experts(&self, layer: usize, rows: Range<usize>, ids: &[u32]) {
        self.choices.experts(layer, rows, ids);
    }

    fn entries(&self, layer: usize, row: usize, entries: impl Iterator<Item = u32>) {
        self.choices.entries(layer, row, entries);
    }
}
