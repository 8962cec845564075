//! The register tile: dot products of a few weight rows with a few activation rows.
//! Twelve sums live in registers, so that seven loads feed twelve multiply-adds and the adders are never idle.
//! Only loops in here, no `map`: a closure that is not inlined loses the instruction set of the dispatch around it.

#![expect(
    clippy::needless_range_loop,
    reason = "register tiles: constant bounds, several arrays by one index"
)]

use pulp::Simd;

/// Weight rows of a full tile.
pub(crate) const ROWS: usize = 4;
/// Activation rows of a full tile.
pub(crate) const TOKENS: usize = 3;

/// `sums[t][r] = w[r] . x[t]`. All slices are equally long.
#[inline(always)]
pub(crate) fn dots<S: Simd, const R: usize, const T: usize>(
    simd: S,
    w: [&[f32]; R],
    x: [&[f32]; T],
) -> [[f32; R]; T] {
    let len = w[0].len();
    let mut w_blocks: [&[S::f32s]; R] = [&[]; R];
    let mut w_tails: [&[f32]; R] = [&[]; R];
    let mut x_blocks: [&[S::f32s]; T] = [&[]; T];
    let mut x_tails: [&[f32]; T] = [&[]; T];
    for r in 0..R {
        (w_blocks[r], w_tails[r]) = S::as_simd_f32s(&w[r][..len]);
    }
    for t in 0..T {
        (x_blocks[t], x_tails[t]) = S::as_simd_f32s(&x[t][..len]);
    }
    let blocks = w_blocks[0].len();
    for r in 0..R {
        w_blocks[r] = &w_blocks[r][..blocks];
    }
    for t in 0..T {
        x_blocks[t] = &x_blocks[t][..blocks];
    }
    let zero = simd.splat_f32s(0.0);
    let mut sums = [[zero; R]; T];
    for i in 0..blocks {
        // Three activations and one weight beside twelve sums: the sixteen registers of AVX2.
        let mut tokens = [zero; T];
        for t in 0..T {
            tokens[t] = x_blocks[t][i];
        }
        for r in 0..R {
            let value = w_blocks[r][i];
            for t in 0..T {
                sums[t][r] = simd.mul_add_f32s(value, tokens[t], sums[t][r]);
            }
        }
    }
    if !w_tails[0].is_empty() {
        for t in 0..T {
            let token = simd.partial_load_f32s(x_tails[t]);
            for r in 0..R {
                let values = simd.partial_load_f32s(w_tails[r]);
                sums[t][r] = simd.mul_add_f32s(values, token, sums[t][r]);
            }
        }
    }
    let mut out = [[0.0; R]; T];
    for t in 0..T {
        for r in 0..R {
            out[t][r] = simd.reduce_sum_f32s(sums[t][r]);
        }
    }
    out
}
