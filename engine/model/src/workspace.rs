//! The memory that a step works in: grown by the first steps, then reused.
//! In: the batch's shape. Out: buffers of the right length. Never: a value that survives a step; a size in bytes that a
//! configuration promised (those are the cache's).
//! Rows of a step are shared out to *lanes*, consecutive rows with buffers of their own. A lane goes through everything
//! between two meetings on one thread, so a small model pays for two hand-overs a layer instead of one per operation.
//! *Sequences* hold what a segment's tokens attend to, once for all lanes.

use std::ops::Range;

use engine_spec::{LayerKind, ModelShape};
use fathom_kernels::Scratch;
use fathom_kernels::hyper::{GATES, MIXES, STREAMS};
use fathom_kernels::index::Selection;
use fathom_kernels::rope::rotations;
use rayon::prelude::*;

use crate::batch::{Page, Segment};
use crate::cache::Cache;
use crate::model::Angles;
use crate::ragged::{Part, Ragged};

/// All buffers of one step.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    lanes: Vec<Lane>,
    sequences: Vec<Sequence>,
    /// In use by this step.
    active: usize,
    segments: usize,
}

/// What a compressor computed for each row: values and gates.
#[derive(Debug, Default)]
pub(crate) struct Projected {
    pub(crate) values: Vec<f32>,
    pub(crate) gates: Vec<f32>,
}

/// Consecutive rows of the step.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) rows: Range<usize>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<usize>,
    /// cos and sin of every row's position: of window layers, of compressed layers.
    pub(crate) plain_turns: Vec<f32>,
    pub(crate) stretched_turns: Vec<f32>,
    /// `[n, 4, d]`: the residual streams.
    pub(crate) streams: Vec<f32>,
    /// `[n, d]`: a sublayer's input, and its output.
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) mixes: Vec<f32>,
    pub(crate) gates: Vec<f32>,
    /// `[n, q_lora]`, before and after its norm.
    pub(crate) latent: Vec<f32>,
    pub(crate) query_latent: Vec<f32>,
    /// `[n, H, D]`.
    pub(crate) queries: Vec<f32>,
    pub(crate) attended: Vec<f32>,
    /// `[n, D]`, before and after its norm.
    pub(crate) kv_raw: Vec<f32>,
    pub(crate) kv: Vec<f32>,
    pub(crate) main: Projected,
    pub(crate) index: Projected,
    pub(crate) index_queries: Vec<f32>,
    pub(crate) index_weights: Vec<f32>,
    /// `[n, groups · r]`.
    pub(crate) grouped: Vec<f32>,
    pub(crate) visible: Vec<u32>,
    pub(crate) selection: Selection,
    /// Entries that one query selected.
    pub(crate) picked: Vec<f32>,
    pub(crate) routed: Routed,
    /// Copies of activations rounded to FP8.
    pub(crate) rounded: Vec<f32>,
    pub(crate) scratch: Scratch,
}

/// The experts' part of a lane.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    pub(crate) scores: Vec<f32>,
    pub(crate) ids: Vec<u32>,
    pub(crate) weights: Vec<f32>,
    /// Rows by expert: expert e's are `starts[e]..starts[e + 1]` of `tokens` and `row_weights`.
    pub(crate) starts: Vec<usize>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) row_weights: Vec<f32>,
    /// `[n·k, I]`, then the shared expert's `[n, I]`.
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    pub(crate) shared_gate: Vec<f32>,
    pub(crate) shared_up: Vec<f32>,
    /// `[n·k, d]`.
    pub(crate) out: Vec<f32>,
    pub(crate) rounded_shared: Vec<f32>,
}

/// What the tokens of one segment attend to in the current layer.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// `[earlier + own, D]`: raw rows by position, the segment's own last.
    pub(crate) window: Vec<f32>,
    /// Rows of `window` before the segment's own.
    pub(crate) earlier: usize,
    /// `[n, D]`: all visible entries, when it pays to have them all.
    pub(crate) entries: Rows,
    /// `[n, I]`: all visible index keys, when a selection is needed.
    pub(crate) keys: Rows,
    /// The segment's rows of what a compressor computed.
    pub(crate) projected: Projected,
    /// State rows of earlier tokens; entries before and after their norm.
    pub(crate) state: Vec<f32>,
    pub(crate) pooled: Vec<f32>,
    pub(crate) fresh: Vec<f32>,
    /// cos and sin at the first position of every entry that this segment completes, per ratio.
    turns_4: Vec<f32>,
    turns_128: Vec<f32>,
}

/// Rows whose number changes from layer to layer: never shrinks, so that nothing is cleared twice.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    values: Vec<f32>,
    len: usize,
}

impl Rows {
    pub(crate) fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` values, whatever they were.
    pub(crate) fn resize(&mut self, len: usize) -> &mut [f32] {
        self.len = len;
        if self.values.len() < len {
            self.values.resize(len, 0.0);
        }
        &mut self.values[..len]
    }
}

impl Workspace {
    /// Lays out `batch` in at most `lanes` lanes.
    pub(crate) fn begin(&mut self, shape: &ModelShape, angles: &Angles, batch: &Ragged<'_>, lanes: usize) {
        let rows = batch.rows();
        self.active = lanes.clamp(1, rows.max(1));
        self.segments = batch.segments.len();
        self.lanes.resize_with(self.active.max(self.lanes.len()), Lane::default);
        self.sequences.resize_with(self.segments.max(self.sequences.len()), Sequence::default);
        for (i, lane) in self.lanes[..self.active].iter_mut().enumerate() {
            let share = rows * i / self.active..rows * (i + 1) / self.active;
            lane.begin(shape, angles, batch, share);
        }
        for (sequence, segment) in self.sequences.iter_mut().zip(batch.segments) {
            sequence.begin(angles, segment);
        }
    }

    /// The lanes of this step, and its sequences, which they read.
    pub(crate) fn split(&mut self) -> (&mut [Lane], &mut [Sequence]) {
        (&mut self.lanes[..self.active], &mut self.sequences[..self.segments])
    }

    /// Runs `work` on every lane, each on a thread of its own.
    pub(crate) fn each_lane(&mut self, work: impl Fn(&mut Lane, &[Sequence]) + Sync) {
        let (lanes, sequences) = self.split();
        match lanes {
            [lane] => work(lane, sequences),
            lanes => lanes.par_iter_mut().for_each(|lane| work(lane, sequences)),
        }
    }

    /// Runs `work` on every sequence, with its index; in parallel where lanes are.
    pub(crate) fn each_sequence(&mut self, work: impl Fn(usize, &mut Sequence) + Sync) {
        let parallel = self.active > 1;
        let (_, sequences) = self.split();
        if parallel && sequences.len() > 1 {
            sequences.par_iter_mut().enumerate().for_each(|(i, sequence)| work(i, sequence));
        } else {
            sequences.iter_mut().enumerate().for_each(|(i, sequence)| work(i, sequence));
        }
    }
}

impl Lane {
    fn begin(&mut self, shape: &ModelShape, angles: &Angles, batch: &Ragged<'_>, rows: Range<usize>) {
        self.tokens.clear();
        self.positions.clear();
        for part in batch.parts(rows.clone()) {
            let segment = &batch.segments[part.segment];
            self.tokens.extend_from_slice(&segment.tokens[part.tokens.clone()]);
            self.positions.extend(part.tokens.map(|token| segment.start + token));
        }
        rotations(&angles.plain, self.positions.iter().copied(), &mut self.plain_turns);
        rotations(&angles.stretched, self.positions.iter().copied(), &mut self.stretched_turns);
        self.resize(shape, rows.len());
        self.rows = rows;
    }

    fn resize(&mut self, shape: &ModelShape, n: usize) {
        let (d, dim, index) = (shape.hidden_size, shape.head_dim, shape.index_head_dim);
        let queries = n * shape.num_attention_heads * dim;
        for (buffer, len) in [
            (&mut self.streams, n * STREAMS * d),
            (&mut self.x, n * d),
            (&mut self.y, n * d),
            (&mut self.mixes, n * MIXES),
            (&mut self.gates, n * GATES),
            (&mut self.latent, n * shape.q_lora_rank),
            (&mut self.query_latent, n * shape.q_lora_rank),
            (&mut self.queries, queries),
            (&mut self.attended, queries),
            (&mut self.kv_raw, n * dim),
            (&mut self.kv, n * dim),
            (&mut self.index_queries, n * shape.index_n_heads * index),
            (&mut self.index_weights, n * shape.index_n_heads),
            (&mut self.grouped, n * shape.o_groups * shape.o_lora_rank),
        ] {
            buffer.resize(len, 0.0);
        }
        self.routed.resize(shape, n);
    }
}

impl Lane {
    /// How many entries of a compressed layer each row of `part` sees: those whose window is complete.
    pub(crate) fn count_visible(&mut self, segment: &Segment<'_>, part: &Part, ratio: usize) {
        let seen = |token: usize| (segment.start + token + 1).checked_div(ratio).unwrap_or(0);
        self.visible.clear();
        self.visible.extend(part.tokens.clone().map(|t| u32::try_from(seen(t)).unwrap_or(u32::MAX)));
    }
}

impl Routed {
    fn resize(&mut self, shape: &ModelShape, n: usize) {
        let (k, inner) = (shape.num_experts_per_tok, shape.moe_intermediate_size);
        self.ids.resize(n * k, 0);
        self.tokens.resize(n * k, 0);
        self.starts.resize(shape.n_routed_experts + 1, 0);
        for (buffer, len) in [
            (&mut self.scores, n * shape.n_routed_experts),
            (&mut self.weights, n * k),
            (&mut self.row_weights, n * k),
            (&mut self.gate, n * k * inner),
            (&mut self.up, n * k * inner),
            (&mut self.shared_gate, n * inner),
            (&mut self.shared_up, n * inner),
            (&mut self.out, n * k * shape.hidden_size),
        ] {
            buffer.resize(len, 0.0);
        }
    }
}

impl Sequence {
    fn begin(&mut self, angles: &Angles, segment: &Segment<'_>) {
        let end = segment.start + segment.tokens.len();
        let firsts = |ratio: usize| (segment.start / ratio..end / ratio).map(move |entry| entry * ratio);
        rotations(&angles.stretched, firsts(4), &mut self.turns_4);
        rotations(&angles.stretched, firsts(128), &mut self.turns_128);
    }

    /// The raw rows up to the segment's own token `until`, exclusive.
    pub(crate) fn window_until(&self, until: usize, dim: usize) -> &[f32] {
        &self.window[..(self.earlier + until) * dim]
    }

    /// Reads the first `count` entries.
    pub(crate) fn recall_entries(&mut self, layer: usize, cache: &Cache, pages: &[Page], count: usize) {
        let dim = cache.kv().dim();
        cache.read_entries(pages, layer, 0, self.entries.resize(count * dim));
    }

    /// Reads the first `count` index keys.
    pub(crate) fn recall_keys(&mut self, layer: usize, cache: &Cache, pages: &[Page], count: usize) {
        let dim = cache.key().dim();
        cache.read_keys(pages, layer, 0, self.keys.resize(count * dim));
    }

    /// Moves the turns of the entries that a layer of `kind` completes out, to be put back after use.
    pub(crate) fn take_turns(&mut self, kind: LayerKind) -> Vec<f32> {
        std::mem::take(self.turns_mut(kind))
    }

    pub(crate) fn put_turns(&mut self, kind: LayerKind, turns: Vec<f32>) {
        *self.turns_mut(kind) = turns;
    }

    fn turns_mut(&mut self, kind: LayerKind) -> &mut Vec<f32> {
        match kind {
            LayerKind::Hca => &mut self.turns_128,
            LayerKind::Csa | LayerKind::Window => &mut self.turns_4,
        }
    }
}
