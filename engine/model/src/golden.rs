//! The model against numbers that an independent implementation computed (Hugging Face transformers;
//! `engine/testdata/make_reference.py`).

mod levels;
mod needle;
mod taps;

use std::path::PathBuf;

use engine_spec::{IndexKeyFormat, Precision};
use fathom_kernels::Cpu;
use safetensors::SafeTensors;

use crate::batch::{Page, Segment, Slot, Want};
use crate::runtime::{ModelOptions, Runtime};
use crate::tap::Tap;
use crate::weights::WeightStorage;

pub(crate) fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}

pub(crate) fn options(precision: Precision, index_keys: IndexKeyFormat) -> ModelOptions {
    ModelOptions { precision, index_keys, index_top_k: None, threads: 2, weights: WeightStorage::Auto }
}

pub(crate) fn exact() -> ModelOptions {
    options(Precision::Exact, IndexKeyFormat::F32)
}

pub(crate) fn load(name: &str, options: &ModelOptions, pages: u32, slots: u32) -> Runtime {
    Runtime::load(&testdata(name), options, pages, slots, &mut |_| {}).unwrap()
}

/// The tensors of a golden file.
pub(crate) struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub(crate) fn read(name: &str) -> Self {
        Self { bytes: std::fs::read(testdata(name).join("golden.safetensors")).unwrap() }
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data();
        data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data();
        data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
    }

    pub(crate) fn tokens(&self, name: &str) -> Vec<u32> {
        self.integers(name).into_iter().map(|id| u32::try_from(id).unwrap()).collect()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).is_ok()
    }
}

/// Computes `tokens` as one sequence in slot 0 and the first pages, in chunks of `chunk`; logits of every row.
pub(crate) fn run(runtime: &mut Runtime, tokens: &[u32], chunk: usize, tap: &impl Tap) -> Vec<f32> {
    let pages: Vec<Page> = (0..).take(tokens.len().div_ceil(256)).map(Page).collect();
    runtime.reset_slot(Slot(0));
    let mut logits = Vec::new();
    for (i, tokens) in tokens.chunks(chunk).enumerate() {
        let segment = Segment { slot: Slot(0), pages: &pages, start: i * chunk, tokens, want: Want::All };
        logits.extend(runtime.compute(&Cpu, &[segment], tap).unwrap().values);
    }
    logits
}

pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub(crate) fn mean_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f32>() / a.len() as f32
}

/// The share of rows whose largest value is at the same place.
pub(crate) fn argmax_agreement(a: &[f32], b: &[f32], vocab: usize) -> f32 {
    let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
    let rows = a.len() / vocab;
    let equal = a.chunks(vocab).zip(b.chunks(vocab)).filter(|(a, b)| best(a) == best(b)).count();
    equal as f32 / rows as f32
}
