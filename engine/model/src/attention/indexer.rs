//! The lightning indexer of ratio-4 layers: which entries a query attends to.
//! In: the query's latent and x of a lane; the sequence's index keys. Out: a selection per row.
//! Never: scores while every visible entry fits the selection (the keys are stored all the same).
//! Queries are rotated and rounded like keys; products are cut at zero before the head's weight, which may be negative.
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/model.py` (Indexer).

use engine_spec::{LayerKind, ModelShape};
use fathom_kernels::Ops;
use fathom_kernels::index::Index;
use fathom_kernels::rope::Turn;

use super::compressor::Compressor;
use crate::cache::{Cache, Stream};
use crate::model::Step;
use crate::ragged::Part;
use crate::tap::Tap;
use crate::weights::{Linear, LoadError, Loader};
use crate::workspace::{Lane, Sequence};

#[derive(Debug)]
pub(super) struct Indexer {
    pub(super) queries: Linear,
    pub(super) weights: Linear,
    pub(super) compressor: Compressor,
}

impl Indexer {
    pub(super) fn load(loader: &mut Loader<'_>, prefix: &str, shape: &ModelShape) -> Result<Self, LoadError> {
        let (heads, dim, d) = (shape.index_n_heads, shape.index_head_dim, shape.hidden_size);
        let compressor = format!("{prefix}compressor.");
        Ok(Self {
            queries: loader.linear(&format!("{prefix}wq_b"), heads * dim, shape.q_lora_rank)?,
            weights: loader.plain(&format!("{prefix}weights_proj.weight"), heads, d)?,
            compressor: Compressor::load(loader, &compressor, Stream::Index, LayerKind::Csa, dim, d)?,
        })
    }

    /// Queries as keys are: rotated by position, Hadamard, rounded. Weights with every constant in them.
    pub(super) fn prepare<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, cache: &Cache, lane: &mut Lane) {
        let (heads, dim) = (step.shape.index_n_heads, step.shape.index_head_dim);
        let rope = step.shape.qk_rope_head_dim;
        step.ops.rope(&mut lane.index_queries, heads, dim, &lane.stretched_turns, rope, Turn::Forward);
        cache.key().rotate(&mut lane.index_queries);
        cache.key().round(&mut lane.index_queries);
        let factor = 1.0 / ((heads * dim) as f32).sqrt();
        lane.index_weights.iter_mut().for_each(|weight| *weight *= factor);
        self.compressor.add_places(&lane.positions, &mut lane.index.gates);
    }

    /// Fills `lane.selection` for the rows of `part`; false when every row sees everything, without asking.
    pub(super) fn select<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        sequence: &Sequence,
        part: &Part,
        lane: &mut Lane,
    ) -> bool {
        let (heads, dim) = (step.shape.index_n_heads, step.shape.index_head_dim);
        let Lane { visible, index_queries, index_weights, selection, scratch, .. } = lane;
        if visible.last().is_none_or(|most| *most as usize <= step.top_k) {
            return false;
        }
        let rows = &part.rows;
        let index = Index {
            heads,
            dim,
            queries: &index_queries[rows.start * heads * dim..rows.end * heads * dim],
            weights: &index_weights[rows.start * heads..rows.end * heads],
            keys: sequence.keys.values(),
            visible,
            top_k: step.top_k,
        };
        step.ops.select(&index, selection, scratch);
        true
    }
}

/// Shows the tap what each row of `part` attends to: what was chosen, or everything visible.
pub(super) fn tap_entries<O: Ops, T: Tap>(
    step: &Step<'_, O, T>,
    layer: usize,
    part: &Part,
    lane: &Lane,
    chosen: bool,
) {
    for (t, row) in part.rows.clone().enumerate() {
        let row = lane.rows.start + row;
        if chosen {
            step.tap.entries(layer, row, lane.selection.row(t).iter().copied());
        } else {
            step.tap.entries(layer, row, 0..lane.visible[t]);
        }
    }
}
