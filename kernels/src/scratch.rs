//! Memory that operations work in, owned by the caller so that a step allocates nothing once it is warm.
//! In: how many elements an operation needs. Out: a slice of them with arbitrary contents.
//! Never: shrinks; keeps a result from one call to the next.

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
        if self.floats.len() < floats {
            self.floats.resize(floats, 0.0);
        }
        if self.keys.len() < keys {
            self.keys.resize(keys, 0);
        }
        (&mut self.floats[..floats], &mut self.keys[..keys])
    }
}
