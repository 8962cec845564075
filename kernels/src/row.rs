//! Rows of the KV cache as bytes: KV rows and index keys in every format a pool may have.
//! In: f32 rows. Out: bytes, and f32 again.
//! Never: a page or a pool; the Hadamard rotation inside `encode` (rotate first, the query needs it too).
//! Decoding what was encoded gives exactly what rounding in place gives, so a cache cannot differ from the simulation.
//! An FP8 KV row: e4m3 of the unrotated part, bf16 of the rotated part, one e8m0 byte per 64 unrotated values, zeros up
//! to a multiple of 8 (584 bytes for 448 + 64).

pub mod key;
pub mod kv;

pub use key::{KeyFormat, KeyRow};
pub use kv::{KvFormat, KvRow};

/// Why a row layout is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    #[error(
        "a KV row of {dim} values with {rope} rotated ones: the unrotated part must be a multiple of 64, as each scale covers 64"
    )]
    KvWidth { dim: usize, rope: usize },
    #[error("an index key of {dim} values: the width must be a power of two and at least 32")]
    KeyWidth { dim: usize },
}

#[cfg(test)]
mod tests;
