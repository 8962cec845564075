//! The multi-token-prediction layer: loaded and checked, not used yet.
//! In: `mtp.0.*`. Out: a layer that can draft the token after the next. Never: DSpark's stages (they have no `e_proj`).
//! It is an ordinary window layer with learned routing behind a mix of the streams and the next token's embedding;
//! embedding and head are the main model's.
//! Source: deepseek-ai/DeepSeek-V4 `inference/model.py` (MTPBlock).

use engine_spec::{LayerKind, ModelShape};

use crate::block::Block;
use crate::head::Collapse;
use crate::weights::{Linear, LoadError, Loader};

const PREFIX: &str = "mtp.0.";

#[derive(Debug)]
#[expect(
    dead_code,
    reason = "speculative decoding comes later; loading proves the weights are there and right"
)]
pub(crate) struct Mtp {
    embedding: Linear,
    streams: Linear,
    embedding_norm: Vec<f32>,
    streams_norm: Vec<f32>,
    block: Block,
    collapse: Collapse,
}

impl Mtp {
    /// The layer, when the configuration promises one and the checkpoint's draft is of this kind.
    pub(crate) fn load(loader: &mut Loader<'_>, shape: &ModelShape) -> Result<Option<Self>, LoadError> {
        let d = shape.hidden_size;
        let is_dspark = loader.has(&format!("{PREFIX}main_proj.weight"));
        if shape.num_nextn_predict_layers == 0 || is_dspark {
            return Ok(None);
        }
        Ok(Some(Self {
            embedding: loader.linear(&format!("{PREFIX}e_proj"), d, d)?,
            streams: loader.linear(&format!("{PREFIX}h_proj"), d, d)?,
            embedding_norm: loader.vector(&format!("{PREFIX}enorm.weight"), d)?,
            streams_norm: loader.vector(&format!("{PREFIX}hnorm.weight"), d)?,
            block: Block::load(loader, PREFIX, LayerKind::Window, false, shape)?,
            collapse: Collapse::load(loader, PREFIX, shape)?,
        }))
    }
}
