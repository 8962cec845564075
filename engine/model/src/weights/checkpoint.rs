//! The files of a checkpoint as one table of tensors.
//! In: a folder with `model.safetensors`, or `model.safetensors.index.json` and its shards. Out: name, dtype, shape and
//! bytes of every tensor, mapped into memory. Never: a tensor's meaning; a byte read beyond the headers.
//! A table entry's bytes are a slice of the mapping that keeps the mapping alive, so nothing is copied.
//! Source: https://huggingface.co/docs/safetensors (format), huggingface_hub (sharded index).

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};

use super::LoadError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// One tensor as the file describes it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Bytes,
}

impl Entry {
    /// `BF16 [256, 128]`: how messages write it.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?}", self.dtype, self.shape)
    }
}

/// All tensors of a folder, by name.
pub(crate) type Table = BTreeMap<String, Entry>;

/// Reads the headers of the checkpoint in `dir`.
pub(crate) fn read_table(dir: &Path) -> Result<Table, LoadError> {
    let index = dir.join(INDEX);
    if index.is_file() {
        return read_shards(dir, &index);
    }
    let single = dir.join(SINGLE);
    if !single.is_file() {
        return Err(LoadError::NoWeights { dir: dir.to_owned() });
    }
    read_file(&single)
}

fn read_shards(dir: &Path, index: &Path) -> Result<Table, LoadError> {
    let places = read_index(index)?;
    let mut shards: BTreeMap<&str, Table> = BTreeMap::new();
    for (tensor, shard) in &places {
        if shards.contains_key(shard.as_str()) {
            continue;
        }
        let path = dir.join(shard);
        if !path.is_file() {
            let tensors = places.values().filter(|place| *place == shard).count();
            return Err(LoadError::MissingShard { shard: path, tensors, example: tensor.clone() });
        }
        shards.insert(shard, read_file(&path)?);
    }
    let mut table = Table::new();
    for (tensor, shard) in &places {
        let entry = shards.get_mut(shard.as_str()).and_then(|entries| entries.remove(tensor));
        let entry = entry.ok_or_else(|| LoadError::Index {
            path: index.to_owned(),
            reason: format!("it places tensor {tensor} in {shard}, which does not hold it"),
        })?;
        table.insert(tensor.clone(), entry);
    }
    match shards.iter().find_map(|(shard, rest)| Some((shard, rest.keys().next()?))) {
        None => Ok(table),
        Some((shard, tensor)) => Err(LoadError::Index {
            path: index.to_owned(),
            reason: format!("{shard} holds tensor {tensor}, which the index does not place there"),
        }),
    }
}

/// Tensor name to file name.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, LoadError> {
    let broken = |reason: String| LoadError::Index { path: path.to_owned(), reason };
    let text =
        std::fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
    let map = value.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| broken("expected an object \"weight_map\" of tensor to file".to_owned()))?;
    map.iter()
        .map(|(tensor, file)| {
            // A name, not a path: an index must not reach outside its folder.
            let file = file.as_str().filter(|f| Path::new(f).file_name().is_some_and(|name| name == *f));
            let file = file.ok_or_else(|| broken(format!("the file of tensor {tensor} is no file name")))?;
            Ok((tensor.clone(), file.to_owned()))
        })
        .collect()
}

fn read_file(path: &Path) -> Result<Table, LoadError> {
    let data = map(path)?;
    let broken = |reason: String| LoadError::Header { path: path.to_owned(), reason };
    let (header, metadata) =
        SafeTensors::read_metadata(&data).map_err(|e| broken(explain(&e, data.len())))?;
    let first = header + size_of::<u64>();
    Ok(metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let data = data.slice(first + start..first + end);
            (name, Entry { dtype: info.dtype, shape: info.shape.clone(), data })
        })
        .collect())
}

#[expect(unsafe_code, reason = "mapping a file is the only way to open 160 GB without copying them")]
fn map(path: &Path) -> Result<Bytes, LoadError> {
    let read = |source| LoadError::Read { path: PathBuf::from(path), source };
    let file = File::open(path).map_err(read)?;
    // SAFETY: the mapping is read-only and private to this process, and every access is bounds-checked. What remains
    // is that nobody may shorten or rewrite the file while it is mapped: the contract for checkpoint files
    // (they are replaced by rename, never edited), and a write would change weights, not memory layout.
    let mapping = unsafe { memmap2::Mmap::map(&file) }.map_err(read)?;
    Ok(Bytes::from_owner(mapping))
}

/// Says what is wrong with a header in terms of the file.
fn explain(error: &SafeTensorError, bytes: usize) -> String {
    match error {
        SafeTensorError::HeaderTooSmall => format!("the file has {bytes} bytes; a header needs at least 8"),
        SafeTensorError::InvalidHeaderLength => {
            format!("its header is said to be longer than the whole file of {bytes} bytes; is it cut short?")
        }
        SafeTensorError::HeaderTooLarge => "its header is said to be larger than 100 MB".to_owned(),
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("its tensors do not end where the file ends ({bytes} bytes): it is cut short or damaged")
        }
        SafeTensorError::InvalidOffset(tensor) => format!("the offsets of tensor {tensor} are impossible"),
        other => format!("{other}"),
    }
}
