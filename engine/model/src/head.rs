//! The head: four streams to one, norm, logits.
//! In: the streams of the rows that somebody wants. Out: rows of logits. Never: logits nobody asked for.
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/model.py` (ParallelHead).

use engine_spec::ModelShape;
use fathom_kernels::hyper::STREAMS;
use fathom_kernels::linear::{Input, Product};
use fathom_kernels::{Ops, Scratch};

use crate::hyper::mixing;
use crate::weights::{Linear, LoadError, Loader};

/// The collapse of the streams and the norm after it; MTP layers have one of their own.
#[derive(Debug)]
pub(crate) struct Collapse {
    function: Linear,
    base: Vec<f32>,
    scale: Vec<f32>,
    norm: Vec<f32>,
}

impl Collapse {
    pub(crate) fn load(loader: &mut Loader<'_>, prefix: &str, shape: &ModelShape) -> Result<Self, LoadError> {
        let d = shape.hidden_size;
        Ok(Self {
            function: loader.plain(&format!("{prefix}hc_head_fn"), STREAMS, STREAMS * d)?,
            base: loader.vector(&format!("{prefix}hc_head_base"), STREAMS)?,
            scale: loader.vector(&format!("{prefix}hc_head_scale"), 1)?,
            norm: loader.vector(&format!("{prefix}norm.weight"), d)?,
        })
    }
}

/// Rows on their way to logits.
#[derive(Debug, Default)]
pub(crate) struct HeadRows {
    /// `[n, 4, d]`.
    pub(crate) streams: Vec<f32>,
    mixes: Vec<f32>,
    collapsed: Vec<f32>,
    hidden: Vec<f32>,
    scratch: Scratch,
}

/// `logits[n, vocab]` of the rows in `rows.streams`.
pub(crate) fn logits<O: Ops>(
    ops: &O,
    shape: &ModelShape,
    collapse: &Collapse,
    head: &Linear,
    rows: &mut HeadRows,
    logits: &mut [f32],
) {
    let HeadRows { streams, mixes, collapsed, hidden, scratch } = rows;
    let (d, wide) = (shape.hidden_size, STREAMS * shape.hidden_size);
    let n = streams.len() / wide;
    mixes.resize(n * STREAMS, 0.0);
    collapsed.resize(n * d, 0.0);
    hidden.resize(n * d, 0.0);
    let input = Input::new(streams, wide);
    ops.products(&mut [Product::new(input, &collapse.function.weight, mixes)], scratch);
    ops.hyper_head(streams, mixes, &mixing(shape, &collapse.scale, &collapse.base), collapsed);
    ops.rms_norm(collapsed, &collapse.norm, shape.rms_norm_eps, hidden);
    ops.products(&mut [Product::new(Input::new(hidden, d), &head.weight, logits)], scratch);
}
