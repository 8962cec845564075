//! Memory that operations work in, owned by the caller so that a step allocates nothing once it is warm.
//! In: how many elements an operation needs. Out: a slice of them with arbitrary contents.
//! Never: shrinks; keeps a result from one call to the next.

/// f32 of a cache line: what is taken starts at one, so that no vector load crosses two.
pub(crate) const CACHE_LINE: usize = 16;

/// Working memory of one caller. It grows to the largest request and stays there.
#[derive(Debug, Default)]
pub struct Scratch {
    floats: Vec<f32>,
    keys: Vec<u64>,
}

impl Scratch {
    /// An empty scratch; the first calls make it grow.
    pub fn new() -> Self {
        Self::default()
    }

    /// `floats` f32 and `keys` u64 with whatever they held before.
    pub(crate) fn take(&mut self, floats: usize, keys: usize) -> (&mut [f32], &mut [u64]) {
        let room = floats + CACHE_LINE;
        if self.floats.len() < room {
            self.floats.resize(room, 0.0);
        }
        if self.keys.len() < keys {
            self.keys.resize(keys, 0);
        }
        // At most one line away; never a reason to fail.
        let start = self.floats.as_ptr().align_offset(size_of::<f32>() * CACHE_LINE).min(CACHE_LINE);
        (&mut self.floats[start..][..floats], &mut self.keys[..keys])
    }
}
