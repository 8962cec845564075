//! DeepSeek V4, read from the top: embed, four streams, blocks, head.
//! In: a valid ragged batch, the cache. Out: logits of the wanted rows. Never: arithmetic of its own; a difference between
//! prompt chunks and decoded tokens (a token's row is computed alike in any batch).
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/model.py`.

use engine_spec::{ModelShape, Precision};
use fathom_kernels::Ops;
use fathom_kernels::hyper::STREAMS;
use fathom_kernels::rope::{Yarn, frequencies};

use crate::batch::{Logits, Want};
use crate::block::Block;
use crate::cache::Cache;
use crate::head::{self, Collapse, HeadRows};
use crate::mtp::Mtp;
use crate::ragged::Ragged;
use crate::tap::Tap;
use crate::weights::{Linear, LoadError, Loader};
use crate::workspace::Workspace;

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) shape: ModelShape,
    pub(crate) angles: Angles,
    embedding: Linear,
    blocks: Vec<Block>,
    collapse: Collapse,
    head: Linear,
    #[expect(dead_code, reason = "speculative decoding comes later")]
    mtp: Option<Mtp>,
}

/// Rotation per position of each pair.
#[derive(Debug)]
pub(crate) struct Angles {
    /// Of window layers.
    pub(crate) plain: Vec<f32>,
    /// Of everything in compressed layers: YaRN.
    pub(crate) stretched: Vec<f32>,
}

/// What stays the same during one step.
#[derive(Debug)]
pub(crate) struct Step<'a, O, T> {
    pub(crate) ops: &'a O,
    pub(crate) tap: &'a T,
    pub(crate) shape: &'a ModelShape,
    pub(crate) precision: Precision,
    /// Entries that a query of a ratio-4 layer attends to at most.
    pub(crate) top_k: usize,
    pub(crate) batch: Ragged<'a>,
}

impl Model {
    pub(crate) fn load(loader: &mut Loader<'_>, shape: ModelShape) -> Result<Self, LoadError> {
        let (vocab, d) = (shape.vocab_size, shape.hidden_size);
        Ok(Self {
            angles: Angles::new(&shape),
            embedding: loader.plain("embed.weight", vocab, d)?,
            blocks: (0..shape.num_hidden_layers)
                .map(|l| {
                    let hashed = l < shape.num_hash_layers;
                    Block::load(loader, &format!("layers.{l}."), shape.layer_kind(l), hashed, &shape)
                })
                .collect::<Result<_, _>>()?,
            collapse: Collapse::load(loader, "", &shape)?,
            head: loader.plain("head.weight", vocab, d)?,
            mtp: Mtp::load(loader, &shape)?,
            shape,
        })
    }

    pub(crate) fn forward<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        cache: &mut Cache,
        work: &mut Workspace,
        rows: &mut HeadRows,
    ) -> Logits {
        work.each_lane(|lane, _| {
            step.ops.embed(&self.embedding.weight, &lane.tokens, &mut lane.x);
            repeat_streams(&lane.x, self.shape.hidden_size, &mut lane.streams);
        });
        for (layer, block) in self.blocks.iter().enumerate() {
            block.forward(step, layer, cache, work);
        }
        collect_wanted(step, work, &mut rows.streams);
        let vocab = self.shape.vocab_size;
        let count = rows.streams.len() / (STREAMS * self.shape.hidden_size);
        let mut logits = Logits { vocab, values: vec![0.0; count * vocab] };
        if count > 0 {
            head::logits(step.ops, step.shape, &self.collapse, &self.head, rows, &mut logits.values);
        }
        logits
    }
}

impl Angles {
    fn new(shape: &ModelShape) -> Self {
        let (dim, scaling) = (shape.qk_rope_head_dim, &shape.rope_scaling);
        let yarn = Yarn {
            factor: scaling.factor,
            beta_fast: scaling.beta_fast,
            beta_slow: scaling.beta_slow,
            original_positions: scaling.original_max_position_embeddings,
        };
        Self {
            plain: frequencies(dim, shape.rope_theta, None),
            stretched: frequencies(dim, shape.compress_rope_theta, Some(&yarn)),
        }
    }
}

/// Every stream starts as the embedding.
fn repeat_streams(x: &[f32], width: usize, streams: &mut [f32]) {
    for (x, streams) in x.chunks_exact(width).zip(streams.chunks_exact_mut(STREAMS * width)) {
        streams.chunks_exact_mut(width).for_each(|stream| stream.copy_from_slice(x));
    }
}

/// The streams of all wanted rows, in the order of the segments.
fn collect_wanted<O, T>(step: &Step<'_, O, T>, work: &mut Workspace, streams: &mut Vec<f32>) {
    let wide = STREAMS * step.shape.hidden_size;
    streams.clear();
    let (lanes, _) = work.split();
    for lane in lanes {
        for part in step.batch.parts(lane.rows.clone()) {
            let segment = &step.batch.segments[part.segment];
            let wanted = match segment.want {
                Want::All => part.rows,
                Want::Last if part.tokens.end == segment.tokens.len() => part.rows.end - 1..part.rows.end,
                Want::Last | Want::Nothing => continue,
            };
            streams.extend_from_slice(&lane.streams[wanted.start * wide..wanted.end * wide]);
        }
    }
}
