//! Hyper-connections: how a sublayer's input leaves the four streams and its output returns.
//! In: a lane's streams. Out: the sublayer's input in `x`; the streams updated with `y`. Never: anything but f32.
//! Source: arXiv 2606.19348.

use engine_spec::ModelShape;
use fathom_kernels::Ops;
use fathom_kernels::hyper::{MIXES, Mixing, STREAMS};
use fathom_kernels::linear::{Input, Product};

use crate::model::Step;
use crate::tap::Tap;
use crate::weights::{Linear, LoadError, Loader};
use crate::workspace::Lane;

/// One site's connection, and the norm of the sublayer behind it.
#[derive(Debug)]
pub(crate) struct Hyper {
    function: Linear,
    base: Vec<f32>,
    scale: Vec<f32>,
    norm: Vec<f32>,
}

impl Hyper {
    /// `<prefix>hc_<site>_{fn,base,scale}` and `<prefix><site>_norm.weight`.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        site: &str,
        shape: &ModelShape,
    ) -> Result<Self, LoadError> {
        let d = shape.hidden_size;
        Ok(Self {
            function: loader.plain(&format!("{prefix}hc_{site}_fn"), MIXES, STREAMS * d)?,
            base: loader.vector(&format!("{prefix}hc_{site}_base"), MIXES)?,
            scale: loader.vector(&format!("{prefix}hc_{site}_scale"), 3)?,
            norm: loader.vector(&format!("{prefix}{site}_norm.weight"), d)?,
        })
    }

    /// Streams to the sublayer's normed input, `lane.x`; keeps the gates for [`leave`].
    pub(crate) fn enter<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, lane: &mut Lane) {
        let Lane { streams, x, y, mixes, gates, scratch, .. } = lane;
        let input = Input::new(streams, self.function.weight.cols());
        step.ops.products(&mut [Product::new(input, &self.function.weight, mixes)], scratch);
        step.ops.hyper_pre(streams, mixes, &mixing(step.shape, &self.scale, &self.base), y, gates);
        step.ops.rms_norm(y, &self.norm, step.shape.rms_norm_eps, x);
    }
}

/// The sublayer's output, `lane.y`, into the streams.
pub(crate) fn leave<O: Ops, T: Tap>(step: &Step<'_, O, T>, lane: &mut Lane) {
    step.ops.hyper_post(&lane.y, &lane.gates, &mut lane.streams);
}

pub(crate) fn mixing<'a>(shape: &ModelShape, scale: &'a [f32], base: &'a [f32]) -> Mixing<'a> {
    Mixing {
        scale,
        base,
        norm_eps: shape.rms_norm_eps,
        eps: shape.hc_eps,
        iterations: shape.hc_sinkhorn_iters,
    }
}
