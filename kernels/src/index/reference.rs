//! The definition: score every visible entry, sort, keep the first.

#![expect(clippy::cast_possible_truncation, reason = "sums are f64, results f32")]

use super::Index;

/// The score of entry `w` for query `t`.
pub fn score(index: &Index<'_>, t: usize, w: usize) -> f32 {
    let Index { heads, dim, queries, weights, keys, .. } = *index;
    let key = &keys[w * dim..][..dim];
    let heads = queries[t * heads * dim..][..heads * dim].chunks_exact(dim).zip(&weights[t * heads..]);
    let sum: f64 = heads
        .map(|(query, weight)| {
            let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            f64::from(*weight) * dot.max(0.0)
        })
        .sum();
    // A sum of negative zeros is a zero like any other.
    (sum + 0.0) as f32
}

/// Writes the `out.len()` best entries of query `t` in ascending order.
pub fn select_one(index: &Index<'_>, t: usize, out: &mut [u32]) {
    let mut ranked: Vec<(f32, u32)> =
        (0..index.visible[t]).map(|w| (score(index, t, w as usize), w)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (out, (_, entry)) in out.iter_mut().zip(&ranked) {
        *out = *entry;
    }
    out.sort_unstable();
}
