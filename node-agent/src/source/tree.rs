//! A tree of kernel files: on disk under a root, or packed into this program.
//! In: paths such as `sys/devices/system/node/node0/meminfo`. Out: text, link targets, names in a folder.
//! Never: a byte from outside the root, a file that is not regular (a pipe would hang), more than the bounds below.
//! Links are followed here, step by step and inside the root, so a scene means the same on disk and packed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// A sysfs attribute is at most a page, meminfo about 2 KB; the rest is for a scene's nvml.yaml (250 bytes a device).
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// PCI devices of the largest machines with their virtual functions; NUMA nodes are at most 1,024.
const MAX_FOLDER_ENTRIES: usize = 16 * 1024;
/// What Linux allows (MAXSYMLINKS).
const MAX_LINKS: usize = 40;

#[derive(Debug, Clone)]
pub(crate) enum Tree {
    Disk(PathBuf),
    /// Sorted by path.
    Packed(&'static [(&'static str, Packed)]),
}

#[derive(Debug)]
pub(crate) enum Packed {
    File(&'static [u8]),
    Link(&'static str),
}

/// Why a path gave nothing. The texts name the path from the root, without the root itself.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("/{path} does not exist")]
    NotFound { path: String },
    #[error("cannot read /{path}: {kind}")]
    Io { path: String, kind: io::ErrorKind },
    #[error("cannot read /{path}: expected a {expected}")]
    WrongKind { path: String, expected: &'static str },
    #[error("cannot read /{path}: more than {MAX_LINKS} links")]
    LinkLoop { path: String },
    #[error("cannot read /{path}: more than {limit}")]
    TooMuch { path: String, limit: String },
    #[error("cannot read /{path}: not UTF-8")]
    NotText { path: String },
}

impl TreeError {
    fn io(path: &str, error: &io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            // ENOTDIR: a component is a file, so the path does not exist, as with the packed tree.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => TreeError::NotFound { path },
            kind => TreeError::Io { path, kind },
        }
    }
}

enum Entry {
    File,
    Folder,
    Link(String),
    /// A pipe, socket or device.
    Other,
}

impl Tree {
    pub(crate) fn disk(root: &Path) -> Self {
        Tree::Disk(root.to_owned())
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Result<String, TreeError> {
        let (place, entry) = self.resolve(path)?;
        let Entry::File = entry else {
            return Err(TreeError::WrongKind { path: path.to_owned(), expected: "file" });
        };
        let bytes = match self {
            Tree::Disk(root) => {
                let mut bytes = Vec::new();
                let file = fs::File::open(root.join(place)).map_err(|e| TreeError::io(path, &e))?;
                file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| TreeError::io(path, &e))?;
                bytes
            }
            Tree::Packed(entries) => packed_bytes(entries, &place).to_vec(),
        };
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(TreeError::TooMuch {
                path: path.to_owned(),
                limit: format!("{MAX_FILE_BYTES} bytes"),
            });
        }
        String::from_utf8(bytes).map_err(|_| TreeError::NotText { path: path.to_owned() })
    }

    /// Where a link points, as it is written.
    pub(crate) fn link(&self, path: &str) -> Result<String, TreeError> {
        match self.entry(path).map_err(|e| TreeError::io(path, &e))? {
            Entry::Link(target) => Ok(target),
            Entry::File | Entry::Folder | Entry::Other => {
                Err(TreeError::WrongKind { path: path.to_owned(), expected: "link" })
            }
        }
    }

    /// The names in a folder, sorted.
    pub(crate) fn names(&self, path: &str) -> Result<BTreeSet<String>, TreeError> {
        let (place, entry) = self.resolve(path)?;
        let Entry::Folder = entry else {
            return Err(TreeError::WrongKind { path: path.to_owned(), expected: "folder" });
        };
        let mut names = BTreeSet::new();
        match self {
            Tree::Disk(root) => {
                let folder = fs::read_dir(root.join(place)).map_err(|e| TreeError::io(path, &e))?;
                for entry in folder.take(MAX_FOLDER_ENTRIES + 1) {
                    let name = entry.map_err(|e| TreeError::io(path, &e))?.file_name();
                    names.insert(name.to_string_lossy().into_owned());
                }
            }
            Tree::Packed(entries) => {
                names.extend(packed_below(entries, &place).map(|below| first_component(below).to_owned()));
            }
        }
        if names.len() > MAX_FOLDER_ENTRIES {
            let limit = format!("{MAX_FOLDER_ENTRIES} entries");
            return Err(TreeError::TooMuch { path: path.to_owned(), limit });
        }
        Ok(names)
    }

    /// The folders in a folder, sorted; links are none.
    pub(crate) fn folders(&self, path: &str) -> Result<BTreeSet<String>, TreeError> {
        let mut names = self.names(path)?;
        names.retain(|name| matches!(self.entry(&format!("{path}/{name}")), Ok(Entry::Folder)));
        Ok(names)
    }

    /// Follows links; `..` and absolute targets stay inside the root.
    fn resolve(&self, path: &str) -> Result<(String, Entry), TreeError> {
        let mut ahead: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut place: Vec<String> = Vec::new();
        let mut found = Entry::Folder;
        let mut links = 0;
        while let Some(step) = ahead.pop() {
            match step.as_str() {
                "" | "." => continue,
                ".." => {
                    place.pop();
                    found = Entry::Folder;
                    continue;
                }
                _ => place.push(step),
            }
            found = self.entry(&place.join("/")).map_err(|e| TreeError::io(path, &e))?;
            if let Entry::Link(target) = &found {
                links += 1;
                if links > MAX_LINKS {
                    return Err(TreeError::LinkLoop { path: path.to_owned() });
                }
                place.pop();
                if target.starts_with('/') {
                    place.clear();
                }
                ahead.extend(target.split('/').rev().map(str::to_owned));
                found = Entry::Folder;
            }
        }
        Ok((place.join("/"), found))
    }

    fn entry(&self, place: &str) -> io::Result<Entry> {
        match self {
            Tree::Disk(root) => {
                let path = root.join(place);
                let kind = fs::symlink_metadata(&path)?.file_type();
                Ok(if kind.is_symlink() {
                    Entry::Link(fs::read_link(&path)?.to_string_lossy().into_owned())
                } else if kind.is_dir() {
                    Entry::Folder
                } else if kind.is_file() {
                    Entry::File
                } else {
                    Entry::Other
                })
            }
            Tree::Packed(entries) => match entries.binary_search_by_key(&place, |(path, _)| path) {
                Ok(at) => Ok(match &entries[at].1 {
                    Packed::File(_) => Entry::File,
                    Packed::Link(target) => Entry::Link((*target).to_owned()),
                }),
                Err(_) if packed_below(entries, place).next().is_some() => Ok(Entry::Folder),
                Err(_) => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }
}

fn packed_bytes(entries: &'static [(&'static str, Packed)], place: &str) -> &'static [u8] {
    match entries.binary_search_by_key(&place, |(path, _)| path).map(|at| &entries[at].1) {
        Ok(Packed::File(bytes)) => bytes,
        // Only called for a place that resolved to a file.
        Ok(Packed::Link(_)) | Err(_) => &[],
    }
}

/// Paths below a folder, relative to it.
fn packed_below(
    entries: &'static [(&'static str, Packed)],
    folder: &str,
) -> impl Iterator<Item = &'static str> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let start = entries.partition_point(|(path, _)| *path < prefix.as_str());
    entries[start..].iter().map_while(move |(path, _)| path.strip_prefix(prefix.as_str()))
}

fn first_component(path: &str) -> &str {
    path.split_once('/').map_or(path, |(first, _)| first)
}

#[cfg(test)]
mod tests;
