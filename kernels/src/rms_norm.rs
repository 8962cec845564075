//! RMSNorm, with and without a weight.
//! In: rows of f32. Out: rows divided by their root mean square. Never: a "+1" on the weight, a mean subtracted.
//! The query's per-head norm has no weight and is taken in f32 (the reference's bf16 statistic is only noisier).
//! Source: deepseek-ai/DeepSeek-V4 `inference/model.py` (RMSNorm, MLA.forward).

pub mod reference;
#[cfg(test)]
mod tests;

use crate::vector::sum_of_squares;

/// `y[t,:] = x[t,:] · weight / sqrt(mean(x[t,:]²) + eps)`; x and y are `[T, weight.len()]`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    debug_assert_eq!(x.len(), y.len());
    let width = weight.len();
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                let scale = inverse_rms(x, eps);
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * w;
                }
            }
        },
    );
}

/// In place, every row of `width` values, without a weight: the query's norm per head.
pub fn rms_norm_rows(x: &mut [f32], width: usize, eps: f32) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for row in x.chunks_exact_mut(width) {
                let scale = inverse_rms(row, eps);
                for value in row {
                    *value *= scale;
                }
            }
        },
    );
}

/// 1 / sqrt(mean(x²) + eps).
#[inline(always)]
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}
