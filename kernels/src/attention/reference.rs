//! The definition, with f64 sums.

#![expect(clippy::cast_possible_truncation, reason = "sums are f64, results f32")]

use super::Attention;

/// Attention of every query.
pub fn attention(attention: &Attention<'_>, out: &mut [f32]) {
    let Attention { heads, dim, queries, sinks, window, entries, .. } = *attention;
    let heads_of_queries = queries.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate();
    for (at, (query, out)) in heads_of_queries {
        let (t, head) = (at / heads, at % heads);
        let raw = attention.window_range(t).map(|row| &window[row * dim..][..dim]);
        let compressed = (0..attention.entry_count(t)).map(|n| attention.entry(t, n));
        let rows: Vec<&[f32]> = raw.chain(compressed.map(|row| &entries[row * dim..][..dim])).collect();
        one_head(query, sinks[head], &rows, out);
    }
}

fn one_head(query: &[f32], sink: f32, rows: &[&[f32]], out: &mut [f32]) {
    let scale = (query.len() as f64).sqrt().recip();
    let dot = |row: &&[f32]| query.iter().zip(*row).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let scores: Vec<f64> = rows.iter().map(|row| dot(row) * scale).collect();
    let most = scores.iter().copied().fold(f64::from(sink), f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total = weights.iter().sum::<f64>() + (f64::from(sink) - most).exp();
    for (d, out) in out.iter_mut().enumerate() {
        let sum: f64 = weights.iter().zip(rows).map(|(weight, row)| weight * f64::from(row[d])).sum();
        *out = (sum / total) as f32;
    }
}
