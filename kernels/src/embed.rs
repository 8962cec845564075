//! Rows of the embedding table.
//! In: token ids below the table's rows. Out: their rows in f32. Never: a scale on the embedding.
//! A copy out of a [`Weight`], which is its own reference.

use crate::linear::Weight;

/// `out[t, :] = table[tokens[t], :]`.
///
/// # Panics
/// When a token is not below `table.rows()`, or out has another length.
pub fn embed(table: &Weight, tokens: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), tokens.len() * table.cols(), "values of {} embeddings", tokens.len());
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(table.cols())) {
        table.read_row(*token as usize, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_the_order_of_the_tokens() {
        let table = Weight::from_f32(3, 2, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let mut out = [9.0; 6];
        embed(&table, &[2, 0, 2], &mut out);
        assert_eq!(out, [4.0, 5.0, 0.0, 1.0, 4.0, 5.0]);
    }
}
