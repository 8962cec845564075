//! Every operation that DeepSeek V4 is made of, as one trait: what a backend must be able to compute.
//! In: slices. Out: slices that the caller owns. Never: a default body (a backend that lacks an op must not compile), an
//! allocation per call once the scratch is warm.
//! Shapes are row-major; T is the number of tokens and follows from the lengths. Formulas and sources are in the file of
//! each op; here is what the model may rely on.

use crate::Scratch;
use crate::attention::Attention;
use crate::compress::Candidate;
use crate::hyper::Mixing;
use crate::index::{Index, Selection};
use crate::linear::{Product, Weight};
use crate::rope::Turn;

pub trait Ops: Sync {
    /// `out[t, :] = table[tokens[t], :]`, in f32. out `[T, table.cols()]`.
    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut [f32]);

    /// `y[t, o] = Σ_i x[t, i] · W[o, i]`, f32 sums, for every product; they are independent of one another.
    fn products(&self, products: &mut [Product<'_>], scratch: &mut Scratch);

    /// Block-diagonal product: x `[T, groups, i]`, weight `[groups · r, i]`, y `[T, groups, r]`.
    fn linear_grouped(&self, x: &[f32], weight: &Weight, groups: usize, y: &mut [f32], scratch: &mut Scratch);

    /// `y = x · weight / sqrt(mean(x²) + eps)` per row. x, y `[T, weight.len()]`.
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]);

    /// The same in place, without a weight, on rows of `width`.
    fn rms_norm_rows(&self, x: &mut [f32], width: usize, eps: f32);

    /// Rotates the last `rope_dim` of each row of `dim`, adjacent pairs, in place. x `[T, rows_per_position, dim]`,
    /// rotations `[T, rope_dim]` (cos, sin interleaved).
    fn rope(
        &self,
        x: &mut [f32],
        rows_per_position: usize,
        dim: usize,
        rotations: &[f32],
        rope_dim: usize,
        turn: Turn,
    );

    /// Coefficients of a hyper-connection and its input `y = Σ_j pre_j · X_j`. streams `[T, 4, d]`, products `[T, 24]`,
    /// y `[T, d]`, gates `[T, 20]`.
    fn hyper_pre(
        &self,
        streams: &[f32],
        products: &[f32],
        mixing: &Mixing<'_>,
        y: &mut [f32],
        gates: &mut [f32],
    );

    /// `X'_k = post_k · y + Σ_j C_jk · X_j`, in place.
    fn hyper_post(&self, y: &[f32], gates: &[f32], streams: &mut [f32]);

    /// `y = Σ_j (σ(m_j) + eps) · X_j`, the head's collapse. products `[T, 4]`.
    fn hyper_head(&self, streams: &[f32], products: &[f32], mixing: &Mixing<'_>, y: &mut [f32]);

    /// `entry[c] = Σ_t softmax_t(gate_t[c]) · value_t[c]`.
    fn compress(&self, candidates: &[Candidate<'_>], entry: &mut [f32]);

    /// `s = sqrt(softplus(logit))`, in place.
    fn gate_scores(&self, logits: &mut [f32]);

    /// The k largest `scores + bias` per token; ties to the lowest expert. scores `[T, bias.len()]`, ids `[T, k]`.
    fn gate_select(&self, scores: &[f32], bias: &[f32], k: usize, ids: &mut [u32]);

    /// `w_e = s_e / Σ s · scaling` over the chosen. scores `[T, experts]`, ids and weights `[T, k]`.
    fn gate_weights(
        &self,
        scores: &[f32],
        experts: usize,
        ids: &[u32],
        k: usize,
        scaling: f32,
        weights: &mut [f32],
    );

    /// `gate = weight · silu(min(gate, limit)) · clamp(up, ±limit)`; gate, up `[rows, width]`, weights `[rows]` or empty.
    fn swiglu(&self, gate: &mut [f32], up: &[f32], width: usize, limit: f32, weights: &[f32]);

    /// Rounds every row of `width` to FP8 with one power-of-two scale per `tile`, in place.
    fn round_fp8(&self, x: &mut [f32], width: usize, tile: usize);

    /// The lightning indexer: which entries each query attends to.
    fn select(&self, index: &Index<'_>, selection: &mut Selection, scratch: &mut Scratch);

    /// Attention over window rows and entries with a sink. out `[T, heads, dim]`, before the inverse rotation.
    fn attention(&self, attention: &Attention<'_>, out: &mut [f32], scratch: &mut Scratch);
}
