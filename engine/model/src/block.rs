//! One layer: attention, then experts, each between leaving and re-entering the four streams.
//! In: a lane's streams. Out: the streams of the next layer. Never: arithmetic of its own.
//! The layer is cut where sequences meet: rows that other lanes attend to must be stored before anyone attends.

use engine_spec::{LayerKind, ModelShape};
use fathom_kernels::Ops;

use crate::attention::Attention;
use crate::cache::Cache;
use crate::hyper::{self, Hyper};
use crate::model::Step;
use crate::moe::Moe;
use crate::tap::Tap;
use crate::weights::{LoadError, Loader};
use crate::workspace::Workspace;

#[derive(Debug)]
pub(crate) struct Block {
    attention_site: Hyper,
    attention: Attention,
    moe_site: Hyper,
    moe: Moe,
}

impl Block {
    /// A layer under `prefix` (`layers.3.`); `hashed` layers choose experts by token.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        kind: LayerKind,
        hashed: bool,
        shape: &ModelShape,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            attention_site: Hyper::load(loader, prefix, "attn", shape)?,
            attention: Attention::load(loader, &format!("{prefix}attn."), kind, shape)?,
            moe_site: Hyper::load(loader, prefix, "ffn", shape)?,
            moe: Moe::load(loader, &format!("{prefix}ffn."), hashed, shape)?,
        })
    }

    pub(crate) fn forward<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        layer: usize,
        cache: &mut Cache,
        work: &mut Workspace,
    ) {
        let stored: &Cache = cache;
        work.each_lane(|lane, _| {
            self.attention_site.enter(step, lane);
            self.attention.project(step, stored, lane);
        });
        self.attention.store(step, layer, cache, work);
        let stored: &Cache = cache;
        self.attention.recall(step, layer, stored, work);
        work.each_lane(|lane, sequences| {
            self.attention.attend(step, layer, stored, sequences, lane);
            step.tap.attention_out(layer, lane.rows.clone(), &mut lane.y);
            hyper::leave(step, lane);
            self.moe_site.enter(step, lane);
            self.moe.forward(step, layer, lane);
            step.tap.moe_out(layer, lane.rows.clone(), &mut lane.y);
            hyper::leave(step, lane);
        });
    }
}
