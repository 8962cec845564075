//! The CPU backend with a clock around every operation.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fathom_kernels::attention::Attention;
use fathom_kernels::compress::Candidate;
use fathom_kernels::hyper::Mixing;
use fathom_kernels::index::{Index, Selection};
use fathom_kernels::linear::{Product, Weight};
use fathom_kernels::rope::Turn;
use fathom_kernels::{Cpu, Ops, Scratch};

/// Seconds and calls per operation; of all threads together.
#[derive(Default)]
pub(crate) struct Timed {
    spent: Mutex<BTreeMap<&'static str, (Duration, usize)>>,
}

impl Timed {
    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let spent = self.lock().clone();
        let total: Duration = spent.values().map(|(time, _)| *time).sum();
        spent.into_iter().map(move |(op, (time, calls))| {
            let share = 100.0 * time.as_secs_f64() / total.as_secs_f64();
            format!("    {op:16} {calls:9} calls {:9.3} ms {share:5.1} %", 1e3 * time.as_secs_f64())
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, (Duration, usize)>> {
        self.spent.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn time(&self, op: &'static str, run: impl FnOnce()) {
        let start = Instant::now();
        run();
        let mut spent = self.lock();
        let entry = spent.entry(op).or_default();
        entry.0 += start.elapsed();
        entry.1 += 1;
    }
}

impl Ops for Timed {
    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut [f32]) {
        self.time("embed", || Cpu.embed(table, tokens, out));
    }

    fn products(&self, products: &mut [Product<'_>], scratch: &mut Scratch) {
        self.time("products", || Cpu.products(products, scratch));
    }

    fn linear_grouped(
        &self,
        x: &[f32],
        weight: &Weight,
        groups: usize,
        y: &mut [f32],
        scratch: &mut Scratch,
    ) {
        self.time("linear_grouped", || Cpu.linear_grouped(x, weight, groups, y, scratch));
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
        self.time("rms_norm", || Cpu.rms_norm(x, weight, eps, y));
    }

    fn rms_norm_rows(&self, x: &mut [f32], width: usize, eps: f32) {
        self.time("rms_norm_rows", || Cpu.rms_norm_rows(x, width, eps));
    }

    fn rope(&self, x: &mut [f32], rows: usize, dim: usize, rotations: &[f32], rope_dim: usize, turn: Turn) {
        self.time("rope", || Cpu.rope(x, rows, dim, rotations, rope_dim, turn));
    }

    fn hyper_pre(
        &self,
        streams: &[f32],
        products: &[f32],
        mixing: &Mixing<'_>,
        y: &mut [f32],
        gates: &mut [f32],
    ) {
        self.time("hyper_pre", || Cpu.hyper_pre(streams, products, mixing, y, gates));
    }

    fn hyper_post(&self, y: &[f32], gates: &[f32], streams: &mut [f32]) {
        self.time("hyper_post", || Cpu.hyper_post(y, gates, streams));
    }

    fn hyper_head(&self, streams: &[f32], products: &[f32], mixing: &Mixing<'_>, y: &mut [f32]) {
        self.time("hyper_head", || Cpu.hyper_head(streams, products, mixing, y));
    }

    fn compress(&self, candidates: &[Candidate<'_>], entry: &mut [f32]) {
        self.time("compress", || Cpu.compress(candidates, entry));
    }

    fn gate_scores(&self, logits: &mut [f32]) {
        self.time("gate_scores", || Cpu.gate_scores(logits));
    }

    fn gate_select(&self, scores: &[f32], bias: &[f32], k: usize, ids: &mut [u32]) {
        self.time("gate_select", || Cpu.gate_select(scores, bias, k, ids));
    }

    fn gate_weights(
        &self,
        scores: &[f32],
        experts: usize,
        ids: &[u32],
        k: usize,
        scaling: f32,
        weights: &mut [f32],
    ) {
        self.time("gate_weights", || Cpu.gate_weights(scores, experts, ids, k, scaling, weights));
    }

    fn swiglu(&self, gate: &mut [f32], up: &[f32], width: usize, limit: f32, weights: &[f32]) {
        self.time("swiglu", || Cpu.swiglu(gate, up, width, limit, weights));
    }

    fn round_fp8(&self, x: &mut [f32], width: usize, tile: usize) {
        self.time("round_fp8", || Cpu.round_fp8(x, width, tile));
    }

    fn select(&self, index: &Index<'_>, selection: &mut Selection, scratch: &mut Scratch) {
        self.time("select", || Cpu.select(index, selection, scratch));
    }

    fn attention(&self, attention: &Attention<'_>, out: &mut [f32], scratch: &mut Scratch) {
        self.time("attention", || Cpu.attention(attention, out, scratch));
    }
}
