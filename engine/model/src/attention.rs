//! Attention of one layer: a sliding window of raw rows, and compressed entries of everything before.
//! In: a lane's `x`; the cache. Out: its `y`; rows of the cache. Never: a key that a later query could not see again
//! (rows are rounded before anyone attends to them, not only when stored).
//! K and V are the same row, its rotated part included; the inverse rotation of the result takes the key's turn back.
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/model.py` (Attention).

mod compressor;
mod indexer;
mod window;

use engine_spec::{LayerKind, ModelShape};
use fathom_kernels::attention::{Attention as Query, Seen};
use fathom_kernels::rope::Turn;
use fathom_kernels::{Ops, Scratch};

use self::compressor::Compressor;
use self::indexer::Indexer;
use crate::batch::Segment;
use crate::cache::{Cache, Stream};
use crate::model::Step;
use crate::ragged::Part;
use crate::tap::Tap;
use crate::weights::{Activations, Linear, LoadError, Loader};
use crate::workspace::{Lane, Sequence, Workspace};

#[derive(Debug)]
pub(crate) struct Attention {
    wq_a: Linear,
    q_norm: Vec<f32>,
    wq_b: Linear,
    wkv: Linear,
    kv_norm: Vec<f32>,
    sinks: Vec<f32>,
    wo_a: Linear,
    wo_b: Linear,
    beyond: Beyond,
}

/// What a layer sees beyond its window.
#[derive(Debug)]
enum Beyond {
    Nothing,
    /// Ratio 4: the entries that the indexer selects.
    Selected(Box<(Compressor, Indexer)>),
    /// Ratio 128: all entries.
    All(Box<Compressor>),
}

impl Attention {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        kind: LayerKind,
        shape: &ModelShape,
    ) -> Result<Self, LoadError> {
        let (d, heads, dim) = (shape.hidden_size, shape.num_attention_heads, shape.head_dim);
        let latent = shape.o_groups * shape.o_lora_rank;
        let name = |part: &str| format!("{prefix}{part}");
        let main = |loader: &mut Loader<'_>| {
            Compressor::load(loader, &name("compressor."), Stream::Main, kind, dim, d)
        };
        Ok(Self {
            wq_a: loader.linear(&name("wq_a"), shape.q_lora_rank, d)?,
            q_norm: loader.vector(&name("q_norm.weight"), shape.q_lora_rank)?,
            wq_b: loader.linear(&name("wq_b"), heads * dim, shape.q_lora_rank)?,
            wkv: loader.linear(&name("wkv"), dim, d)?,
            kv_norm: loader.vector(&name("kv_norm.weight"), dim)?,
            sinks: loader.vector(&name("attn_sink"), heads)?,
            wo_a: loader.unrounded(&name("wo_a"), latent, heads * dim / shape.o_groups)?,
            wo_b: loader.linear(&name("wo_b"), d, latent)?,
            beyond: match kind {
                LayerKind::Window => Beyond::Nothing,
                LayerKind::Csa => {
                    let main = main(loader)?;
                    Beyond::Selected(Box::new((main, Indexer::load(loader, &name("indexer."), shape)?)))
                }
                LayerKind::Hca => Beyond::All(Box::new(main(loader)?)),
            },
        })
    }

    /// Queries, KV rows, and what compressors and indexer need of every row: everything that sees one token only.
    pub(crate) fn project<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, cache: &Cache, lane: &mut Lane) {
        self.project_input(step, lane);
        let (shape, ops, eps) = (step.shape, step.ops, step.shape.rms_norm_eps);
        let (dim, rope, heads) = (shape.head_dim, shape.qk_rope_head_dim, shape.num_attention_heads);
        ops.rms_norm(&lane.latent, &self.q_norm, eps, &mut lane.query_latent);
        self.project_queries(step, lane);
        ops.rms_norm_rows(&mut lane.queries, dim, eps);
        ops.rms_norm(&lane.kv_raw, &self.kv_norm, eps, &mut lane.kv);
        let turns = if let Beyond::Nothing = self.beyond { &lane.plain_turns } else { &lane.stretched_turns };
        ops.rope(&mut lane.queries, heads, dim, turns, rope, Turn::Forward);
        ops.rope(&mut lane.kv, 1, dim, turns, rope, Turn::Forward);
        lane.kv.chunks_exact_mut(dim).for_each(|row| cache.round_kv(row));
        match &self.beyond {
            Beyond::Nothing => {}
            Beyond::All(main) => main.add_places(&lane.positions, &mut lane.main.gates),
            Beyond::Selected(both) => {
                let (main, indexer) = &**both;
                main.add_places(&lane.positions, &mut lane.main.gates);
                indexer.prepare(step, cache, lane);
            }
        }
    }

    /// All products that read `x`, together.
    fn project_input<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, lane: &mut Lane) {
        let Lane { x, latent, kv_raw, main, index, index_weights, rounded, scratch, .. } = lane;
        let x = Activations::new(step.ops, step.precision, x, step.shape.hidden_size, rounded);
        let (q, kv) = (self.wq_a.product(&x, latent), self.wkv.product(&x, kv_raw));
        match &self.beyond {
            Beyond::Nothing => step.ops.products(&mut [q, kv], scratch),
            Beyond::All(compressor) => {
                let [value, gate] = compressor.products(&x, main);
                step.ops.products(&mut [q, kv, value, gate], scratch);
            }
            Beyond::Selected(both) => {
                let (compressor, indexer) = &**both;
                let [value, gate] = compressor.products(&x, main);
                let [index_value, index_gate] = indexer.compressor.products(&x, index);
                let weights = indexer.weights.product(&x, index_weights);
                step.ops.products(&mut [q, kv, value, gate, index_value, index_gate, weights], scratch);
            }
        }
    }

    /// All products that read the query's latent.
    fn project_queries<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, lane: &mut Lane) {
        let Lane { query_latent, queries, index_queries, rounded, scratch, .. } = lane;
        let latent =
            Activations::new(step.ops, step.precision, query_latent, step.shape.q_lora_rank, rounded);
        let queries = self.wq_b.product(&latent, queries);
        match &self.beyond {
            Beyond::Selected(both) => {
                let (_, indexer) = &**both;
                let index = indexer.queries.product(&latent, index_queries);
                step.ops.products(&mut [queries, index], scratch);
            }
            Beyond::Nothing | Beyond::All(_) => step.ops.products(&mut [queries], scratch),
        }
    }

    /// Writes the step's rows, entries and state, sequence by sequence.
    pub(crate) fn store<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        layer: usize,
        cache: &mut Cache,
        work: &mut Workspace,
    ) {
        let (lanes, sequences) = work.split();
        for ((first_row, segment), sequence) in step.batch.starts().zip(sequences) {
            let stretch = Stretch { layer, first_row, segment };
            window::store(&stretch, cache, lanes, sequence);
            match &self.beyond {
                Beyond::Nothing => {}
                Beyond::All(main) => main.store(step, &stretch, cache, lanes, sequence),
                Beyond::Selected(both) => {
                    let (main, indexer) = &**both;
                    main.store(step, &stretch, cache, lanes, sequence);
                    indexer.compressor.store(step, &stretch, cache, lanes, sequence);
                }
            }
        }
    }

    /// Reads what the step's queries will attend to.
    pub(crate) fn recall<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        layer: usize,
        cache: &Cache,
        work: &mut Workspace,
    ) {
        let ratio = step.shape.layer_kind(layer).ratio();
        work.each_sequence(|i, sequence| {
            let segment = &step.batch.segments[i];
            window::recall(layer, cache, segment, sequence);
            let visible = (segment.start + segment.tokens.len()).checked_div(ratio).unwrap_or(0);
            let selects = match &self.beyond {
                Beyond::Nothing => return,
                Beyond::All(_) => false,
                Beyond::Selected(..) => visible > step.top_k,
            };
            // Reading every entry once beats reading each query's own when the queries together select more.
            let all = !selects || segment.tokens.len() * step.top_k >= visible;
            sequence.recall_entries(layer, cache, segment.pages, if all { visible } else { 0 });
            sequence.recall_keys(layer, cache, segment.pages, if selects { visible } else { 0 });
        });
    }

    /// Attention of a lane's rows, and the output projection.
    pub(crate) fn attend<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        layer: usize,
        cache: &Cache,
        sequences: &[Sequence],
        lane: &mut Lane,
    ) {
        let shape = step.shape;
        for part in step.batch.parts(lane.rows.clone()) {
            self.attend_part(step, layer, cache, &sequences[part.segment], &part, lane);
        }
        let turns = if let Beyond::Nothing = self.beyond { &lane.plain_turns } else { &lane.stretched_turns };
        let (heads, dim, rope) = (shape.num_attention_heads, shape.head_dim, shape.qk_rope_head_dim);
        step.ops.rope(&mut lane.attended, heads, dim, turns, rope, Turn::Inverse);
        let Lane { attended, grouped, y, rounded, scratch, .. } = lane;
        step.ops.linear_grouped(attended, &self.wo_a.weight, shape.o_groups, grouped, scratch);
        let latent = shape.o_groups * shape.o_lora_rank;
        let grouped = Activations::new(step.ops, step.precision, grouped, latent, rounded);
        step.ops.products(&mut [self.wo_b.product(&grouped, y)], scratch);
    }

    /// The rows of one sequence in a lane.
    fn attend_part<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        layer: usize,
        cache: &Cache,
        sequence: &Sequence,
        part: &Part,
        lane: &mut Lane,
    ) {
        let segment = &step.batch.segments[part.segment];
        lane.count_visible(segment, part, step.shape.layer_kind(layer).ratio());
        let chosen = match &self.beyond {
            Beyond::Selected(both) => {
                let (_, indexer) = &**both;
                let chosen = indexer.select(step, sequence, part, lane);
                indexer::tap_entries(step, layer, part, lane, chosen);
                chosen
            }
            Beyond::Nothing | Beyond::All(_) => false,
        };
        let Lane { queries, attended, visible, selection, picked, scratch, .. } = lane;
        let entries = sequence.entries.values();
        let whole = |seen| Look { sequence, part, queries, entries, seen };
        match self.beyond {
            Beyond::Nothing => self.look(step, &whole(Seen::Nothing), attended, scratch),
            _ if !chosen => self.look(step, &whole(Seen::Prefix(visible)), attended, scratch),
            _ if !sequence.entries.is_empty() => {
                self.look(step, &whole(Seen::Selected(selection)), attended, scratch);
            }
            _ => {
                // Few queries over many entries: each reads only what it selected.
                for t in 0..part.tokens.len() {
                    read_entries(cache, layer, segment, selection.row(t), step.shape.head_dim, picked);
                    let count = [u32::try_from(selection.row(t).len()).unwrap_or(u32::MAX)];
                    let (entries, seen, part) = (picked.as_slice(), Seen::Prefix(&count), &part.single(t));
                    let look = Look { sequence, part, queries, entries, seen };
                    self.look(step, &look, attended, scratch);
                }
            }
        }
    }

    /// One call of the attention op.
    fn look<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        look: &Look<'_>,
        attended: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (heads, dim) = (step.shape.num_attention_heads, step.shape.head_dim);
        let Look { sequence, part, queries, entries, seen } = *look;
        let values = part.rows.start * heads * dim..part.rows.end * heads * dim;
        let query = Query {
            heads,
            dim,
            queries: &queries[values.clone()],
            sinks: &self.sinks,
            window: sequence.window_until(part.tokens.end, dim),
            window_len: step.shape.sliding_window,
            entries,
            seen,
        };
        step.ops.attention(&query, &mut attended[values], scratch);
    }
}

/// The rows of one segment in one layer.
#[derive(Debug, Clone, Copy)]
struct Stretch<'a> {
    layer: usize,
    /// Of the segment, in the step.
    first_row: usize,
    segment: &'a Segment<'a>,
}

impl Stretch<'_> {
    fn end(&self) -> usize {
        self.segment.start + self.segment.tokens.len()
    }

    /// Copies the segment's rows of `width`, which may lie in several lanes, to the end of `to`.
    fn gather(&self, lanes: &[Lane], width: usize, rows: impl Fn(&Lane) -> &[f32], to: &mut Vec<f32>) {
        let own = self.first_row..self.first_row + self.segment.tokens.len();
        for lane in lanes {
            let (from, until) = (own.start.max(lane.rows.start), own.end.min(lane.rows.end));
            if from < until {
                let (from, until) = (from - lane.rows.start, until - lane.rows.start);
                to.extend_from_slice(&rows(lane)[from * width..until * width]);
            }
        }
    }
}

/// What one call of the attention op looks at.
#[derive(Debug, Clone, Copy)]
struct Look<'a> {
    sequence: &'a Sequence,
    part: &'a Part,
    /// Of the whole lane.
    queries: &'a [f32],
    entries: &'a [f32],
    seen: Seen<'a>,
}

fn read_entries(
    cache: &Cache,
    layer: usize,
    segment: &Segment<'_>,
    chosen: &[u32],
    dim: usize,
    rows: &mut Vec<f32>,
) {
    rows.resize(chosen.len() * dim, 0.0);
    for (entry, row) in chosen.iter().zip(rows.chunks_exact_mut(dim)) {
        cache.read_entries(segment.pages, layer, *entry as usize, row);
    }
}
