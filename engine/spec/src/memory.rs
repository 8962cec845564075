//! Bytes: of cached rows, pages, request slots and weights.
//! In: a [`ModelShape`] and the formats. Out: byte counts, exact.
//! Never: rounding that a pool would not have, padding that belongs to one kernel only.
//! Three currencies size KV everywhere: full-history tokens (pages), window tokens and request slots. Window rows and
//! compressor state live in the slot, full-history rows (c4, c4 index keys, c128) in pages of [`PAGE_TOKENS`] tokens.

use serde::{Deserialize, Serialize};

use crate::shape::{LayerKind, ModelShape};

/// Tokens of one page: a multiple of 128, so that a page boundary never cuts a compressed entry.
pub const PAGE_TOKENS: usize = 256;

/// How activations and cached KV rows are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Nothing rounded, KV rows in f32: the reading of the published weights in exact arithmetic.
    Exact,
    /// KV rows in FP8 with one power-of-two scale per 64 values, rotated part in bf16: the model's own cache.
    #[default]
    Sim,
    /// `Sim`, and the inputs of FP8 and FP4 linears rounded to FP8, routing weight before `w2`.
    Full,
}

/// How the keys of the lightning indexer are stored; the query is rounded alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexKeyFormat {
    /// Unrounded, no Hadamard rotation. For tests.
    F32,
    /// Rounded to bf16, no Hadamard rotation: 256 bytes a key of 128.
    Bf16,
    /// Hadamard, e4m3 with one f32 scale a row: 132 bytes.
    Fp8,
    /// Hadamard, e2m1 with one power-of-two scale per 32: 68 bytes. The reference's own rounding.
    #[default]
    Fp4,
}

impl IndexKeyFormat {
    /// Bytes of one index key of `dim` values.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            IndexKeyFormat::F32 => 4 * dim,
            IndexKeyFormat::Bf16 => 2 * dim,
            IndexKeyFormat::Fp8 => dim + 4,
            IndexKeyFormat::Fp4 => dim / 2 + dim / 32,
        }
    }
}

/// The rows that a cache is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheFormat {
    pub precision: Precision,
    pub index_keys: IndexKeyFormat,
}

impl CacheFormat {
    /// Bytes of one KV row: f32, or e4m3 of the unrotated part, bf16 of the rotated part, one scale byte per 64 and
    /// padding to 8 (584 for D = 512).
    pub fn kv_row_bytes(&self, shape: &ModelShape) -> usize {
        match self.precision {
            Precision::Exact => 4 * shape.head_dim,
            Precision::Sim | Precision::Full => {
                let nope = shape.nope_dim();
                (nope + 2 * shape.qk_rope_head_dim + nope / 64).next_multiple_of(8)
            }
        }
    }

    /// Bytes of one index key.
    pub fn index_row_bytes(&self, shape: &ModelShape) -> usize {
        self.index_keys.row_bytes(shape.index_head_dim)
    }

    /// Bytes that one layer of `kind` keeps in one page.
    pub fn layer_page_bytes(&self, shape: &ModelShape, kind: LayerKind) -> usize {
        match kind {
            LayerKind::Window => 0,
            LayerKind::Csa => PAGE_TOKENS / 4 * (self.kv_row_bytes(shape) + self.index_row_bytes(shape)),
            LayerKind::Hca => PAGE_TOKENS / 128 * self.kv_row_bytes(shape),
        }
    }

    /// Bytes of one page of [`PAGE_TOKENS`] tokens over all layers.
    pub fn page_bytes(&self, shape: &ModelShape) -> usize {
        shape.layer_kinds().map(|kind| self.layer_page_bytes(shape, kind)).sum()
    }

    /// Bytes of one request slot: the window rows of every layer and the compressors' state.
    pub fn slot_bytes(&self, shape: &ModelShape) -> usize {
        let window = shape.sliding_window * self.kv_row_bytes(shape);
        shape.layer_kinds().map(|kind| window + state_bytes(shape, kind)).sum()
    }

    /// Pages that `tokens` tokens need.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Bytes of a device pool of `pages` pages and `slots` request slots.
    pub fn pool_bytes(&self, shape: &ModelShape, pages: usize, slots: usize) -> usize {
        pages * self.page_bytes(shape) + slots * self.slot_bytes(shape)
    }
}

/// Compressor state of one layer in f32: k and g of the last 8 tokens (ratio 4, main and indexer) or 128 (ratio 128).
/// Rings of two windows keep the A half of the previous window where a decode step finds it.
pub fn state_bytes(shape: &ModelShape, kind: LayerKind) -> usize {
    const F32: usize = 4;
    match kind {
        LayerKind::Window => 0,
        LayerKind::Csa => 8 * 2 * 2 * (shape.head_dim + shape.index_head_dim) * F32,
        LayerKind::Hca => 128 * 2 * shape.head_dim * F32,
    }
}

/// Bytes of the published FP8/FP4 weights that one of `ranks` ranks holds, without MTP layers. Heads, output groups and
/// vocabulary are split, experts are spread by id, the indexer and everything small is on every rank.
pub fn weight_bytes_per_rank(shape: &ModelShape, ranks: usize) -> u64 {
    let embed_and_head = 2 * 2 * shape.vocab_size * shape.hidden_size / ranks;
    let streams = shape.hc_mult;
    let head = 2 * shape.hidden_size + 4 * (streams * streams * shape.hidden_size + streams + 1);
    let layers: usize = (0..shape.num_hidden_layers).map(|l| layer_weight_bytes(shape, l, ranks)).sum();
    (embed_and_head + head + layers) as u64
}

fn layer_weight_bytes(shape: &ModelShape, layer: usize, ranks: usize) -> usize {
    let (d, streams) = (shape.hidden_size, shape.hc_mult);
    let mixes = streams * streams + 2 * streams;
    let hyper = 2 * 4 * (mixes * streams * d + mixes + 3);
    hyper
        + 2 * 2 * d
        + attention_weight_bytes(shape, shape.layer_kind(layer), ranks)
        + moe_weight_bytes(shape, layer, ranks)
}

fn attention_weight_bytes(shape: &ModelShape, kind: LayerKind, ranks: usize) -> usize {
    let (d, h, dim, q) = (shape.hidden_size, shape.num_attention_heads, shape.head_dim, shape.q_lora_rank);
    let latent = shape.o_groups * shape.o_lora_rank;
    let projections = fp8_bytes(q, d)
        + fp8_bytes(h * dim / ranks, q)
        + fp8_bytes(dim, d)
        + fp8_bytes(latent / ranks, h * dim / shape.o_groups)
        + fp8_bytes(d, latent / ranks);
    let small = 2 * (q + dim) + 4 * h / ranks;
    let compressor = |ratio: usize, width: usize, out: usize| 4 * ratio * width + 2 * 2 * width * d + 2 * out;
    let compressed = match kind {
        LayerKind::Window => 0,
        LayerKind::Csa => {
            let index = shape.index_head_dim;
            compressor(4, 2 * dim, dim)
                + compressor(4, 2 * index, index)
                + fp8_bytes(shape.index_n_heads * index, q)
                + 2 * shape.index_n_heads * d
        }
        LayerKind::Hca => compressor(128, dim, dim),
    };
    projections + small + compressed
}

fn moe_weight_bytes(shape: &ModelShape, layer: usize, ranks: usize) -> usize {
    let (d, i, experts) = (shape.hidden_size, shape.moe_intermediate_size, shape.n_routed_experts);
    let selection = if layer < shape.num_hash_layers {
        8 * shape.vocab_size * shape.num_experts_per_tok
    } else {
        4 * experts
    };
    let shared = 2 * fp8_bytes(i, d) + fp8_bytes(d, i);
    let routed = experts / ranks * (2 * fp4_bytes(i, d) + fp4_bytes(d, i));
    2 * experts * d + selection + shared + routed
}

/// FP8 e4m3 with one e8m0 scale per 128 x 128 block.
fn fp8_bytes(rows: usize, columns: usize) -> usize {
    rows * columns + rows.div_ceil(128) * columns.div_ceil(128)
}

/// FP4 e2m1, two a byte, with one e8m0 scale per row and 32 columns.
fn fp4_bytes(rows: usize, columns: usize) -> usize {
    rows * columns / 2 + rows * columns / 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::NamedShape;

    fn flash() -> ModelShape {
        NamedShape::V4Flash.shape()
    }

    #[test]
    fn rows_have_the_published_sizes() {
        let shape = flash();
        let sim = CacheFormat { precision: Precision::Sim, index_keys: IndexKeyFormat::Fp8 };
        assert_eq!(sim.kv_row_bytes(&shape), 584);
        assert_eq!(sim.index_row_bytes(&shape), 132);
        assert_eq!(IndexKeyFormat::Bf16.row_bytes(128), 256);
        assert_eq!(IndexKeyFormat::Fp4.row_bytes(128), 68);
    }

    /// Per-token bytes of the specification's table: 3,850.25 (fp8), 3,514.25 (fp4), 4,501.25 (bf16 index keys).
    #[test]
    fn a_page_costs_what_the_specification_says() {
        let shape = flash();
        for (index_keys, per_token) in
            [(IndexKeyFormat::Fp8, 3850.25), (IndexKeyFormat::Fp4, 3514.25), (IndexKeyFormat::Bf16, 4501.25)]
        {
            let format = CacheFormat { precision: Precision::Sim, index_keys };
            let expected: f64 = per_token * PAGE_TOKENS as f64;
            assert!((format.page_bytes(&shape) as f64 - expected).abs() < 1e-6, "{index_keys:?}");
        }
    }

    #[test]
    fn a_slot_costs_15_420_416_bytes_in_flash() {
        assert_eq!(CacheFormat::default().slot_bytes(&flash()), 15_420_416);
    }

    #[test]
    fn a_layer_weighs_what_the_published_checkpoint_says() {
        let shape = flash();
        assert_eq!(layer_weight_bytes(&shape, 0, 1), 3_566_148_952);
        assert_eq!(layer_weight_bytes(&shape, 2, 1), 3_596_055_640);
        assert_eq!(layer_weight_bytes(&shape, 4, 1), 3_589_851_224);
        assert_eq!(layer_weight_bytes(&shape, 3, 1), 3_568_596_312);
        assert_eq!(weight_bytes_per_rank(&shape, 1), 156_015_698_140);
    }

    #[test]
    fn ranks_hold_what_the_specification_says() {
        let gib = |ranks| weight_bytes_per_rank(&flash(), ranks) as f64 / f64::from(1 << 30);
        for (ranks, expected) in [(1, 145.3), (2, 73.8), (4, 38.0), (8, 20.1)] {
            assert!((gib(ranks) - expected).abs() < 0.06, "{ranks} ranks: {}", gib(ranks));
        }
    }
}
