//! Manifold-constrained hyper-connections: four residual streams, mixed by a doubly stochastic matrix per token.
//! In: streams `[T, 4, d]` and their products with `fn` (a plain linear). Out: the sublayer's input, and after it the
//! mixed streams. Never: bf16 anywhere, a row division where the softmax stands, eps where the formulas have none.
//! The update sums over the **first** index of C: as a matrix product it is Cᵀ·X. Coefficients of eight tokens are
//! computed side by side, because Sinkhorn's rounds are a chain of small dependent sums.
//! Source: arXiv 2606.19348; deepseek-ai/DeepSeek-V4 `inference/kernel.py` (hc_split_sinkhorn).

pub mod reference;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::parallel;
use crate::rms_norm::inverse_rms;
use crate::vector::{exp, sigmoid};

/// Residual streams.
pub const STREAMS: usize = 4;
/// Outputs of `fn` per token: 4 pre, 4 post, 16 of the matrix.
pub const MIXES: usize = 2 * STREAMS + STREAMS * STREAMS;
/// What [`hyper_post`] needs of a token: 4 post, then C row-major.
pub const GATES: usize = STREAMS + STREAMS * STREAMS;

/// Tokens whose coefficients are computed side by side.
const SIDE: usize = 8;
type Side = [f32; SIDE];
/// `[j][k]`, for eight tokens.
type Matrix = [[Side; STREAMS]; STREAMS];

/// The learned constants of one site.
#[derive(Debug, Clone, Copy)]
pub struct Mixing<'a> {
    /// For pre, post and the matrix.
    pub scale: &'a [f32],
    pub base: &'a [f32],
    pub norm_eps: f32,
    pub eps: f32,
    /// Sinkhorn rounds, the softmax and its column division counted as the first.
    pub iterations: usize,
}

/// `y[t,:] = Σ_j pre_j · X_j`, and the gates for [`hyper_post`].
///
/// `streams` is `[T, 4, d]`, `products` `[T, 24]` = streams (flattened) · fnᵀ, `y` `[T, d]`, `gates` `[T, 20]`:
/// ```text
/// m      = products / sqrt(mean(X²) + norm_eps)
/// pre_j  = σ(m_j·scale_0 + base_j) + eps
/// post_j = 2·σ(m_{4+j}·scale_1 + base_{4+j})
/// A_jk   = m_{8+4j+k}·scale_2 + base_{8+4j+k}
/// C      = softmax_k(A) + eps, columns divided by (sum + eps), then (iterations − 1) times rows, columns
/// ```
pub fn hyper_pre(streams: &[f32], products: &[f32], mixing: &Mixing<'_>, y: &mut [f32], gates: &mut [f32]) {
    let tokens = products.len() / MIXES;
    if tokens == 0 {
        return;
    }
    let width = y.len() / tokens;
    let share = share(tokens, STREAMS * width);
    if share == tokens {
        return pre_rows(streams, products, mixing, y, gates);
    }
    let rows = streams.par_chunks(share * STREAMS * width).zip(products.par_chunks(share * MIXES));
    let results = y.par_chunks_mut(share * width).zip(gates.par_chunks_mut(share * GATES));
    rows.zip(results).for_each(|((streams, products), (y, gates))| {
        pre_rows(streams, products, mixing, y, gates);
    });
}

fn pre_rows(streams: &[f32], products: &[f32], mixing: &Mixing<'_>, y: &mut [f32], gates: &mut [f32]) {
    let tokens = products.len() / MIXES;
    let width = y.len() / tokens;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for first in (0..tokens).step_by(SIDE) {
                let here = SIDE.min(tokens - first);
                let streams = &streams[first * STREAMS * width..][..here * STREAMS * width];
                let mut logits = [[0.0f32; SIDE]; MIXES];
                load(&mut logits, streams, &products[first * MIXES..][..here * MIXES], mixing);
                let (pre, post, c) = coefficients(&logits, mixing);
                let y = &mut y[first * width..][..here * width];
                for (t, y) in y.chunks_exact_mut(width).enumerate() {
                    collapse(&streams[t * STREAMS * width..][..STREAMS * width], &pre.map(|j| j[t]), y);
                    let gates = &mut gates[(first + t) * GATES..][..GATES];
                    for (gate, side) in gates.iter_mut().zip(post.iter().chain(c.as_flattened())) {
                        *gate = side[t];
                    }
                }
            }
        },
    );
}

/// In place: `X'_k = post_k · y + Σ_j C_jk · X_j`. `y` is `[T, d]`, `gates` `[T, 20]` of the same site, `streams`
/// `[T, 4, d]` as they were before it.
pub fn hyper_post(y: &[f32], gates: &[f32], streams: &mut [f32]) {
    let tokens = gates.len() / GATES;
    if tokens == 0 {
        return;
    }
    let width = y.len() / tokens;
    let share = share(tokens, STREAMS * width);
    if share == tokens {
        return post_rows(y, gates, streams, width);
    }
    let rows = y.par_chunks(share * width).zip(gates.par_chunks(share * GATES));
    rows.zip(streams.par_chunks_mut(share * STREAMS * width))
        .for_each(|((y, gates), streams)| post_rows(y, gates, streams, width));
}

fn post_rows(y: &[f32], gates: &[f32], streams: &mut [f32], width: usize) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let tokens = streams.chunks_exact_mut(STREAMS * width).zip(y.chunks_exact(width));
            for ((streams, y), gates) in tokens.zip(gates.chunks_exact(GATES)) {
                expand(streams, y, gates);
            }
        },
    );
}

/// The head's collapse: `y = Σ_j (σ(m_j·scale_0 + base_j) + eps) · X_j`, with `products` `[T, 4]`.
pub fn hyper_head(streams: &[f32], products: &[f32], mixing: &Mixing<'_>, y: &mut [f32]) {
    let tokens = products.len() / STREAMS;
    if tokens == 0 {
        return;
    }
    let width = y.len() / tokens;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let tokens = streams.chunks_exact(STREAMS * width).zip(products.chunks_exact(STREAMS));
            for ((streams, products), y) in tokens.zip(y.chunks_exact_mut(width)) {
                let rho = inverse_rms(streams, mixing.norm_eps);
                let pre: [f32; STREAMS] = std::array::from_fn(|j| {
                    sigmoid(products[j] * rho * mixing.scale[0] + mixing.base[j]) + mixing.eps
                });
                collapse(streams, &pre, y);
            }
        },
    );
}

/// Tokens that one thread takes: all of them unless there are enough for several.
fn share(tokens: usize, wide: usize) -> usize {
    // Every value is read, mixed four ways and written, at the speed of memory rather than of arithmetic.
    const COST: usize = 16;
    tokens.div_ceil(parallel::pieces(COST * tokens * wide)).next_multiple_of(SIDE).min(tokens)
}

/// `m · scale + base` of up to [`SIDE`] tokens, one token per lane.
#[inline(always)]
fn load(m: &mut [Side; MIXES], streams: &[f32], products: &[f32], mixing: &Mixing<'_>) {
    let wide = streams.len() / (products.len() / MIXES);
    for (t, products) in products.chunks_exact(MIXES).enumerate() {
        let rho = inverse_rms(&streams[t * wide..][..wide], mixing.norm_eps);
        for (i, product) in products.iter().enumerate() {
            let scale = mixing.scale[if i < 2 * STREAMS { i / STREAMS } else { 2 }];
            m[i][t] = product * rho * scale + mixing.base[i];
        }
    }
}

/// Turns logits into pre, post and C.
#[inline(always)]
fn coefficients(m: &[Side; MIXES], mixing: &Mixing<'_>) -> ([Side; STREAMS], [Side; STREAMS], Matrix) {
    let eps = mixing.eps;
    let pre = std::array::from_fn(|j| m[j].map(|x| sigmoid(x) + eps));
    let post = std::array::from_fn(|j| m[STREAMS + j].map(|x| 2.0 * sigmoid(x)));
    let mut c = std::array::from_fn(|j| std::array::from_fn(|k| m[2 * STREAMS + STREAMS * j + k]));
    softmax_rows(&mut c, eps);
    divide_columns(&mut c, eps);
    for _ in 1..mixing.iterations {
        divide_rows(&mut c, eps);
        divide_columns(&mut c, eps);
    }
    (pre, post, c)
}

#[inline(always)]
fn softmax_rows(c: &mut Matrix, eps: f32) {
    for row in c {
        let max: Side = std::array::from_fn(|t| row[0][t].max(row[1][t]).max(row[2][t]).max(row[3][t]));
        for k in row.iter_mut() {
            *k = std::array::from_fn(|t| exp(k[t] - max[t]));
        }
        let sum = sum(&[row[0], row[1], row[2], row[3]], 0.0);
        for k in row.iter_mut() {
            *k = std::array::from_fn(|t| k[t] / sum[t] + eps);
        }
    }
}

#[inline(always)]
fn divide_rows(c: &mut Matrix, eps: f32) {
    for row in c {
        let inverse = sum(&[row[0], row[1], row[2], row[3]], eps).map(|sum| 1.0 / sum);
        for k in row.iter_mut() {
            *k = std::array::from_fn(|t| k[t] * inverse[t]);
        }
    }
}

#[inline(always)]
fn divide_columns(c: &mut Matrix, eps: f32) {
    for k in 0..STREAMS {
        let inverse = sum(&[c[0][k], c[1][k], c[2][k], c[3][k]], eps).map(|sum| 1.0 / sum);
        for row in c.iter_mut() {
            row[k] = std::array::from_fn(|t| row[k][t] * inverse[t]);
        }
    }
}

#[inline(always)]
fn sum(x: &[Side; STREAMS], eps: f32) -> Side {
    std::array::from_fn(|t| (x[0][t] + x[1][t]) + (x[2][t] + x[3][t]) + eps)
}

#[inline(always)]
fn collapse(streams: &[f32], pre: &[f32; STREAMS], y: &mut [f32]) {
    let width = y.len();
    let (x0, rest) = streams.split_at(width);
    let (x1, rest) = rest.split_at(width);
    let (x2, x3) = rest.split_at(width);
    let x3 = &x3[..width];
    for i in 0..width {
        y[i] = pre[0] * x0[i] + pre[1] * x1[i] + pre[2] * x2[i] + pre[3] * x3[i];
    }
}

#[inline(always)]
fn expand(streams: &mut [f32], y: &[f32], gates: &[f32]) {
    let width = y.len();
    let (post, c) = gates[..GATES].split_at(STREAMS);
    let (x0, rest) = streams.split_at_mut(width);
    let (x1, rest) = rest.split_at_mut(width);
    let (x2, x3) = rest.split_at_mut(width);
    let whole = width - width % SIDE;
    let blocks = y[..whole].as_chunks::<SIDE>().0.iter();
    let pairs = (x0[..whole].as_chunks_mut::<SIDE>().0.iter_mut())
        .zip(x1[..whole].as_chunks_mut::<SIDE>().0)
        .zip(x2[..whole].as_chunks_mut::<SIDE>().0)
        .zip(x3[..whole].as_chunks_mut::<SIDE>().0);
    for ((((x0, x1), x2), x3), y) in pairs.zip(blocks) {
        // Copied out first: every new value needs all four old ones.
        let old = [*x0, *x1, *x2, *x3];
        let new = |k: usize| -> Side {
            std::array::from_fn(|t| {
                post[k] * y[t]
                    + (c[k] * old[0][t] + c[4 + k] * old[1][t])
                    + (c[8 + k] * old[2][t] + c[12 + k] * old[3][t])
            })
        };
        (*x0, *x1, *x2, *x3) = (new(0), new(1), new(2), new(3));
    }
    for i in whole..width {
        let old = [x0[i], x1[i], x2[i], x3[i]];
        let new = |k: usize| {
            post[k] * y[i] + (c[k] * old[0] + c[4 + k] * old[1]) + (c[8 + k] * old[2] + c[12 + k] * old[3])
        };
        (x0[i], x1[i], x2[i], x3[i]) = (new(0), new(1), new(2), new(3));
    }
}
