//! The CPU backend: which function computes which op. The work itself is in the file of each op.

use crate::attention::{self, Attention};
use crate::compress::{self, Candidate};
use crate::hyper::{self, Mixing};
use crate::index::{self, Index, Selection};
use crate::linear::{self, Product, Weight};
use crate::rope::{self, Turn};
use crate::{Ops, Scratch, embed, gate, rms_norm, round};

/// Plain vector loops on the threads of the current rayon pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu;

impl Ops for Cpu {
    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut [f32]) {
        embed::embed(table, tokens, out);
    }

    fn products(&self, products: &mut [Product<'_>], scratch: &mut Scratch) {
        linear::products(products, scratch);
    }

    fn linear_grouped(
        &self,
        x: &[f32],
        weight: &Weight,
        groups: usize,
        y: &mut [f32],
        scratch: &mut Scratch,
    ) {
        linear::linear_grouped(x, weight, groups, y, scratch);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
        rms_norm::rms_norm(x, weight, eps, y);
    }

    fn rms_norm_rows(&self, x: &mut [f32], width: usize, eps: f32) {
        rms_norm::rms_norm_rows(x, width, eps);
    }

    fn rope(&self, x: &mut [f32], rows: usize, dim: usize, rotations: &[f32], rope_dim: usize, turn: Turn) {
        rope::rope(x, rows, dim, rotations, rope_dim, turn);
    }

    fn hyper_pre(
        &self,
        streams: &[f32],
        products: &[f32],
        mixing: &Mixing<'_>,
        y: &mut [f32],
        gates: &mut [f32],
    ) {
        hyper::hyper_pre(streams, products, mixing, y, gates);
    }

    fn hyper_post(&self, y: &[f32], gates: &[f32], streams: &mut [f32]) {
        hyper::hyper_post(y, gates, streams);
    }

    fn hyper_head(&self, streams: &[f32], products: &[f32], mixing: &Mixing<'_>, y: &mut [f32]) {
        hyper::hyper_head(streams, products, mixing, y);
    }

    fn compress(&self, candidates: &[Candidate<'_>], entry: &mut [f32]) {
        compress::compress(candidates, entry);
    }

    fn gate_scores(&self, logits: &mut [f32]) {
        gate::gate_scores(logits);
    }

    fn gate_select(&self, scores: &[f32], bias: &[f32], k: usize, ids: &mut [u32]) {
        gate::gate_select(scores, bias, k, ids);
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
        gate::gate_weights(scores, experts, ids, k, scaling, weights);
    }

    fn swiglu(&self, gate: &mut [f32], up: &[f32], width: usize, limit: f32, weights: &[f32]) {
        gate::swiglu(gate, up, width, limit, weights);
    }

    fn round_fp8(&self, x: &mut [f32], width: usize, tile: usize) {
        x.chunks_exact_mut(width).for_each(|row| round::fp8_tiles(row, tile));
    }

    fn select(&self, index: &Index<'_>, selection: &mut Selection, scratch: &mut Scratch) {
        index::select(index, selection, scratch);
    }

    fn attention(&self, attention: &Attention<'_>, out: &mut [f32], scratch: &mut Scratch) {
        attention::attention(attention, out, scratch);
    }
}
