//! From a folder to checked weights.
//! In: `config.json` and safetensors files in the published layout. Out: [`Linear`]s and vectors, every one of the
//! dtype and shape that the configuration demands. Never: a guess; a tensor nobody asked for passes unseen.
//! Storage is decided by each tensor's dtype, not by the configuration: FP4 experts, FP8 experts (`*-Base`) and plain
//! bf16 checkpoints come with the same names.
//! Source: `model.safetensors.index.json` of DeepSeek-V4-Flash; deepseek-ai/DeepSeek-V4 `inference/convert.py`.

pub(crate) mod checkpoint;
mod linear;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use engine_spec::ShapeError;
use safetensors::tensor::Dtype;
use sha2::{Digest, Sha256};

pub(crate) use self::checkpoint::{Entry, Table, read_table};
pub(crate) use self::linear::{Activations, Linear};

/// How weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightStorage {
    /// What is fastest: as stored. Widening in registers costs less than the bytes it saves, also where f32 would fit the
    /// caches (needle model, one token at a time: 2.2 times as fast).
    #[default]
    Auto,
    /// As stored: FP4, FP8 and bf16 are widened while they are used.
    Packed,
    /// Widened to f32 once, at loading.
    F32,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub tensors: usize,
    pub total: usize,
    /// Of the tensors so far, as stored.
    pub bytes: u64,
}

/// Why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("reading {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: not a model this engine can run", path.display())]
    Shape { path: PathBuf, source: ShapeError },
    #[error(
        "{} has no weights: expected model.safetensors, or model.safetensors.index.json with its shards",
        dir.display()
    )]
    NoWeights { dir: PathBuf },
    #[error("{}: {reason}", path.display())]
    Index { path: PathBuf, reason: String },
    #[error("shard {} is missing; it should hold {tensors} tensors, {example} among them", shard.display())]
    MissingShard { shard: PathBuf, tensors: usize, example: String },
    #[error("{} is no readable safetensors file: {reason}", path.display())]
    Header { path: PathBuf, reason: String },
    #[error("tensor {name} is missing; expected {expected}{hint}")]
    MissingTensor { name: String, expected: String, hint: String },
    #[error("tensor {name} is {found}; expected {expected}")]
    WrongTensor { name: String, expected: String, found: String },
    #[error("tensor {name} holds an impossible value: {reason}")]
    WrongValue { name: String, reason: String },
    #[error(
        "{count} tensors are not part of DeepSeek V4 with this config.json: {examples}; is it another model's checkpoint?"
    )]
    UnknownTensors { count: usize, examples: String },
    #[error("{setting} is {found}; expected {expected}")]
    Setting { setting: &'static str, found: String, expected: String },
    #[error("starting {threads} compute threads: {reason}")]
    Threads { threads: usize, reason: String },
    #[error("allocating {bytes} bytes for the {pool} pool")]
    Memory { pool: &'static str, bytes: usize },
}

/// Hands out a checkpoint's tensors, each checked against what the caller expects.
pub(crate) struct Loader<'a> {
    table: Table,
    storage: WeightStorage,
    fits_caches: bool,
    done: Progress,
    progress: &'a mut dyn FnMut(Progress),
}

/// What the last-level cache of a server's core complex holds.
const CACHED_BYTES: usize = 32 << 20;

impl<'a> Loader<'a> {
    pub(crate) fn new(table: Table, storage: WeightStorage, progress: &'a mut dyn FnMut(Progress)) -> Self {
        let total = table.len();
        let fits_caches = table.values().map(|entry| entry.data.len()).sum::<usize>() <= CACHED_BYTES;
        Self { table, storage, fits_caches, done: Progress { tensors: 0, total, bytes: 0 }, progress }
    }

    /// A vector in bf16 or f32, widened.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        self.values(name, &[len])
    }

    /// A small tensor in bf16 or f32, widened and flattened.
    pub(crate) fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let entry = self.take(name, || format!("BF16 or F32 {shape:?}"))?;
        let data = &entry.data;
        match entry.dtype {
            Dtype::F32 if entry.shape == shape => {
                Ok(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
            }
            Dtype::BF16 if entry.shape == shape => {
                let values = data.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32());
                Ok(values.collect())
            }
            _ => Err(wrong(name, &entry, format!("BF16 or F32 {shape:?}"))),
        }
    }

    /// The table of a hash layer: `[vocab, k]` expert ids in I64, each below `experts`.
    pub(crate) fn expert_ids(
        &mut self,
        name: &str,
        shape: [usize; 2],
        experts: usize,
    ) -> Result<Vec<u32>, LoadError> {
        let expected = || format!("I64 {shape:?}");
        let entry = self.take(name, expected)?;
        if entry.dtype != Dtype::I64 || entry.shape != shape {
            return Err(wrong(name, &entry, expected()));
        }
        let ids = entry.data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
        ids.enumerate()
            .map(|(at, id)| {
                let id = u32::try_from(id).ok().filter(|id| (*id as usize) < experts);
                id.ok_or_else(|| LoadError::WrongValue {
                    name: name.to_owned(),
                    reason: format!("element {at} is no expert below {experts}"),
                })
            })
            .collect()
    }

    /// Whether the checkpoint has this tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// Whether all weights stay in a CPU's caches.
    pub(crate) fn fits_caches(&self) -> bool {
        self.fits_caches
    }

    /// Refuses tensors that nobody took; drafts' (`mtp.`) are left alone, and counted.
    pub(crate) fn finish(self) -> Result<usize, LoadError> {
        let (drafts, unknown): (Vec<&String>, Vec<&String>) =
            self.table.keys().partition(|name| name.starts_with("mtp."));
        if unknown.is_empty() {
            return Ok(drafts.len());
        }
        let examples: Vec<&str> = unknown.iter().take(3).map(|name| name.as_str()).collect();
        Err(LoadError::UnknownTensors { count: unknown.len(), examples: examples.join(", ") })
    }

    fn take(&mut self, name: &str, expected: impl FnOnce() -> String) -> Result<Entry, LoadError> {
        let Some(entry) = self.table.remove(name) else {
            return Err(LoadError::MissingTensor {
                name: name.to_owned(),
                expected: expected(),
                hint: self.hint(),
            });
        };
        self.done.tensors += 1;
        self.done.bytes += entry.data.len() as u64;
        (self.progress)(self.done);
        Ok(entry)
    }

    /// Names published tensors never have tell a foreign checkpoint from a damaged one.
    fn hint(&self) -> String {
        match self.table.keys().find(|name| name.starts_with("model.") || name.starts_with("lm_head")) {
            Some(foreign) => format!("; the files hold {foreign}, which is another model's naming"),
            None => String::new(),
        }
    }
}

fn wrong(name: &str, entry: &Entry, expected: String) -> LoadError {
    LoadError::WrongTensor { name: name.to_owned(), expected, found: entry.describe() }
}

/// Identifies a checkpoint to the other side of a connection: its configuration, its table of tensors, and the bytes
/// of the small final tensors, which differ between revisions of one architecture.
pub(crate) fn fingerprint(config: &str, table: &Table) -> String {
    let mut hash = Sha256::new();
    hash.update(config);
    for (name, entry) in table {
        hash.update(format!("\n{name} {}", entry.describe()));
    }
    for name in ["norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"] {
        if let Some(entry) = table.get(name) {
            hash.update(&entry.data);
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
