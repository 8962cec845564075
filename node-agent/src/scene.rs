//! Scenes: machines as files, for demos, tests and `--facts`.
//! A scene is a folder with `root/` (those files of /sys and /proc that are read, laid out as there, links included) and
//! `nvml.yaml` (devices, or the error that NVML gives). The shipped ones are part of the program.

mod nvml_file;

use std::path::{Path, PathBuf};
use std::{fs, io};

use node_facts::NodeFacts;

use crate::collect;
use crate::derive;
use crate::source::nvml::NvmlAnswer;
use crate::source::{Packed, Tree};

include!(concat!(env!("OUT_DIR"), "/scenes.rs"));

/// 128 devices and their pairs are about 500 KB.
const MAX_NVML_BYTES: u64 = 1024 * 1024;

/// A scene that is part of this program.
struct Shipped {
    name: &'static str,
    nvml: &'static str,
    entries: &'static [(&'static str, Packed)],
}

/// A machine as files.
#[derive(Debug)]
pub struct Scene {
    tree: Tree,
    nvml: NvmlAnswer,
}

/// Why a scene could not be opened. What is wrong inside `root/` is no error: it is in the facts.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    #[error("no scene {asked:?}: neither a shipped one ({shipped}) nor a folder")]
    Unknown { asked: String, shipped: String },
    #[error("scene {}: expected a folder root/ with files of /sys and /proc, found none", scene.display())]
    NoRoot { scene: PathBuf },
    #[error("cannot read {}; it says what NVML answers (for no GPUs: `error: LibraryNotFound`)", file.display())]
    NoNvml { file: PathBuf, source: io::Error },
    #[error("{} is larger than {MAX_NVML_BYTES} bytes", file.display())]
    NvmlTooLarge { file: PathBuf },
    #[error("cannot understand {}: {reason}", file.display())]
    BadNvml { file: PathBuf, reason: String },
}

/// The facts of a scene: the name of one shipped, or a folder (`./story` for a folder of a shipped name).
pub fn facts(name_or_path: &str) -> Result<NodeFacts, SceneError> {
    if let Some(scene) = Scene::shipped(name_or_path) {
        return Ok(scene?.facts());
    }
    let folder = Path::new(name_or_path);
    if !folder.is_dir() {
        let shipped = names().collect::<Vec<_>>().join(", ");
        return Err(SceneError::Unknown { asked: name_or_path.to_owned(), shipped });
    }
    Ok(Scene::open(folder)?.facts())
}

/// Names of the shipped scenes, in ascending order.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|scene| scene.name)
}

impl Scene {
    /// The scene in a folder.
    pub fn open(folder: &Path) -> Result<Self, SceneError> {
        let root = folder.join("root");
        if !root.is_dir() {
            return Err(SceneError::NoRoot { scene: folder.to_owned() });
        }
        let file = folder.join("nvml.yaml");
        let text = read_nvml(&file)?;
        Ok(Scene { tree: Tree::disk(&root), nvml: parse_nvml(&file, &text)? })
    }

    /// A shipped scene; none of that name is `None`.
    pub fn shipped(name: &str) -> Option<Result<Self, SceneError>> {
        let shipped = SHIPPED.iter().find(|scene| scene.name == name)?;
        let file = Path::new(name).join("nvml.yaml");
        let nvml = parse_nvml(&file, shipped.nvml);
        Some(nvml.map(|nvml| Scene { tree: Tree::Packed(shipped.entries), nvml }))
    }

    /// Names of the shipped scenes, in ascending order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        names()
    }

    /// What the reader makes of this machine.
    pub fn facts(self) -> NodeFacts {
        derive::facts(&collect::sample(&self.tree, self.nvml))
    }
}

fn read_nvml(file: &Path) -> Result<String, SceneError> {
    let no_nvml = |source| SceneError::NoNvml { file: file.to_owned(), source };
    let about = fs::metadata(file).map_err(no_nvml)?;
    if !about.is_file() {
        // A pipe would wait for a writer.
        return Err(no_nvml(io::Error::other("not a file")));
    }
    if about.len() > MAX_NVML_BYTES {
        return Err(SceneError::NvmlTooLarge { file: file.to_owned() });
    }
    fs::read_to_string(file).map_err(no_nvml)
}

fn parse_nvml(file: &Path, text: &str) -> Result<NvmlAnswer, SceneError> {
    nvml_file::parse(text).map_err(|reason| SceneError::BadNvml { file: file.to_owned(), reason })
}

#[cfg(test)]
mod tests;
