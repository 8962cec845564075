//! The pooling by its formula, in f64.

use super::Candidate;

/// See [`super::compress`].
pub fn compress(candidates: &[Candidate<'_>], width: usize) -> Vec<f64> {
    (0..width)
        .map(|c| {
            let weight = |t: &Candidate<'_>| f64::from(t.gate[c]).exp();
            let sum: f64 = candidates.iter().map(weight).sum();
            candidates.iter().map(|t| weight(t) * f64::from(t.value[c])).sum::<f64>() / sum
        })
        .collect()
}
