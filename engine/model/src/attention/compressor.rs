//! The compressor: every 4 or 128 tokens become one entry, or one index key.
//! In: a segment's values and gates; the state of the tokens before it. Out: entries in the sequence's pages, the state of
//! its last tokens in the slot. Never: an entry of an incomplete window; a state row that a later window needs, lost.
//! Ratio 4 overlaps: an entry pools the A halves (first half of the channels) of the window before and the B halves of its
//! own, so the state keeps two windows. `ape` is a bias by place in the window, not by position in the text.
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/model.py` (Compressor).

use engine_spec::LayerKind;
use fathom_kernels::Ops;
use fathom_kernels::compress::Candidate;
use fathom_kernels::linear::Product;
use fathom_kernels::rope::Turn;
use rayon::prelude::*;

use super::Stretch;
use crate::cache::{Cache, Stream, state_rows};
use crate::model::Step;
use crate::tap::Tap;
use crate::weights::{Activations, Linear, LoadError, Loader};
use crate::workspace::{Lane, Projected, Sequence};

#[derive(Debug)]
pub(super) struct Compressor {
    stream: Stream,
    kind: LayerKind,
    /// Channels of an entry, and of what is projected for it: twice as many where windows overlap.
    dim: usize,
    width: usize,
    /// `[ratio, width]`.
    places: Vec<f32>,
    value: Linear,
    gate: Linear,
    norm: Vec<f32>,
}

/// Candidates of one entry at most.
const CANDIDATES: usize = 128;
/// Entries that are worth waking another thread for: a tenth of a millisecond of exponentials.
const SHARED_ENTRIES: usize = 64;

impl Compressor {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        stream: Stream,
        kind: LayerKind,
        dim: usize,
        hidden: usize,
    ) -> Result<Self, LoadError> {
        let width = if kind == LayerKind::Csa { 2 * dim } else { dim };
        Ok(Self {
            stream,
            kind,
            dim,
            width,
            places: loader.values(&format!("{prefix}ape"), &[kind.ratio(), width])?,
            value: loader.plain(&format!("{prefix}wkv.weight"), width, hidden)?,
            gate: loader.plain(&format!("{prefix}wgate.weight"), width, hidden)?,
            norm: loader.vector(&format!("{prefix}norm.weight"), dim)?,
        })
    }

    /// Values and gates of every row of x.
    pub(super) fn products<'a>(&'a self, x: &Activations<'a>, to: &'a mut Projected) -> [Product<'a>; 2] {
        let len = x.count(self.value.weight.cols()) * self.width;
        to.values.resize(len, 0.0);
        to.gates.resize(len, 0.0);
        [self.value.product(x, &mut to.values), self.gate.product(x, &mut to.gates)]
    }

    /// Adds each row's bias by its place in its window.
    pub(super) fn add_places(&self, positions: &[usize], gates: &mut [f32]) {
        for (position, gates) in positions.iter().zip(gates.chunks_exact_mut(self.width)) {
            let place = &self.places[position % self.kind.ratio() * self.width..][..self.width];
            for (gate, place) in gates.iter_mut().zip(place) {
                *gate += place;
            }
        }
    }

    /// Writes the entries that the segment completes, then the state of its last tokens.
    pub(super) fn store<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        stretch: &Stretch<'_>,
        cache: &mut Cache,
        lanes: &[Lane],
        sequence: &mut Sequence,
    ) {
        let segment = stretch.segment;
        let Projected { values, gates } = &mut sequence.projected;
        values.clear();
        gates.clear();
        stretch.gather(lanes, self.width, |lane| &self.of(lane).values, values);
        stretch.gather(lanes, self.width, |lane| &self.of(lane).gates, gates);
        let entries = segment.start / self.kind.ratio()..stretch.end() / self.kind.ratio();
        if !entries.is_empty() {
            self.pool(step, stretch, cache, sequence);
            self.finish(step, stretch, cache, sequence);
        }
        let Projected { values, gates } = &sequence.projected;
        let rows = values.chunks_exact(self.width).zip(gates.chunks_exact(self.width)).enumerate();
        let forgotten = segment.tokens.len().saturating_sub(state_rows(self.kind));
        for (token, (values, gates)) in rows.skip(forgotten) {
            let position = segment.start + token;
            cache.write_state(segment.slot, stretch.layer, self.stream, position, values, gates);
        }
    }

    /// Pools the candidates of every completed window into `sequence.pooled`.
    fn pool<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        stretch: &Stretch<'_>,
        cache: &Cache,
        sequence: &mut Sequence,
    ) {
        let (ratio, width, dim, start) = (self.kind.ratio(), self.width, self.dim, stretch.segment.start);
        let Sequence { projected, state, pooled, .. } = sequence;
        let entries = start / ratio..stretch.end() / ratio;
        let before = if self.overlaps() { ratio } else { 0 };
        let first = (entries.start * ratio).saturating_sub(before);
        state.resize((start - first) * 2 * width, 0.0);
        for (position, row) in (first..start).zip(state.chunks_exact_mut(2 * width)) {
            cache.read_state(stretch.segment.slot, stretch.layer, self.stream, position, row);
        }
        let candidate = |position: usize, channels: usize| {
            let (value, gate) = if position < start {
                state[(position - first) * 2 * width..][..2 * width].split_at(width)
            } else {
                let at = (position - start) * width;
                (&projected.values[at..][..width], &projected.gates[at..][..width])
            };
            Candidate { gate: &gate[channels..][..dim], value: &value[channels..][..dim] }
        };
        pooled.resize(entries.len() * dim, 0.0);
        let pool_one = |(entry, row): (usize, &mut [f32])| {
            let mut candidates = [Candidate::default(); CANDIDATES];
            let own = (entries.start + entry) * ratio;
            // The A half of the window before, where there is one; the B half (or all) of its own.
            let earlier = (own.saturating_sub(before)..own).map(|position| candidate(position, 0));
            let own = (own..own + ratio).map(|position| candidate(position, width - dim));
            let count = candidates.iter_mut().zip(earlier.chain(own)).map(|(to, from)| *to = from).count();
            step.ops.compress(&candidates[..count], row);
        };
        if entries.len() >= SHARED_ENTRIES {
            pooled.par_chunks_exact_mut(dim).enumerate().with_min_len(SHARED_ENTRIES / 2).for_each(pool_one);
        } else {
            pooled.chunks_exact_mut(dim).enumerate().for_each(pool_one);
        }
    }

    /// Norm, rotation at the window's first position, and into the pages.
    fn finish<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        stretch: &Stretch<'_>,
        cache: &mut Cache,
        sequence: &mut Sequence,
    ) {
        let turns = sequence.take_turns(self.kind);
        let Sequence { pooled, fresh, .. } = sequence;
        fresh.resize(pooled.len(), 0.0);
        step.ops.rms_norm(pooled, &self.norm, step.shape.rms_norm_eps, fresh);
        step.ops.rope(fresh, 1, self.dim, &turns, step.shape.qk_rope_head_dim, Turn::Forward);
        let first = stretch.segment.start / self.kind.ratio();
        let (layer, pages) = (stretch.layer, stretch.segment.pages);
        for (entry, row) in (first..).zip(fresh.chunks_exact_mut(self.dim)) {
            match self.stream {
                Stream::Main => {
                    cache.round_kv(row);
                    cache.write_entry(pages, layer, entry, row);
                }
                Stream::Index => {
                    cache.key().rotate(row);
                    cache.write_key(pages, layer, entry, row);
                }
            }
        }
        sequence.put_turns(self.kind, turns);
    }

    fn overlaps(&self) -> bool {
        self.width > self.dim
    }

    fn of<'a>(&self, lane: &'a Lane) -> &'a Projected {
        match self.stream {
            Stream::Main => &lane.main,
            Stream::Index => &lane.index,
        }
    }
}
