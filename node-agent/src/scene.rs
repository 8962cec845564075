//! Scenes: machines as files, for demos, tests and `--facts`.
//! A scene is a folder with `root/` (those files of /sys and /proc that are read, laid out as there, links included) and
//! `nvml.yaml` (devices, or the error that NVML gives). The shipped ones are part of the program.

mod nvml_file;

use std::path::{Path, PathBuf};

use node_facts::NodeFacts;

use crate::collect::{self, Trees};
use crate::derive;
use crate::source::nvml::NvmlAnswer;
use crate::source::{Packed, Tree};

include!(concat!(env!("OUT_DIR"), "/scenes.rs"));

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
    #[error("scene {}: {reason}; nvml.yaml says what NVML answers (without GPUs: `error: LibraryNotFound`)", scene.display())]
    NoNvml { scene: PathBuf, reason: String },
    #[error("scene {}: cannot understand nvml.yaml: {reason}", scene.display())]
    BadNvml { scene: PathBuf, reason: String },
}

/// The facts of a scene: the name of one shipped, or a folder (`./story` for a folder of a shipped name).
pub fn facts(name_or_path: &str) -> Result<NodeFacts, SceneError> {
    Ok(Scene::find(name_or_path)?.facts())
}

/// Names of the shipped scenes, in ascending order.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|scene| scene.name)
}

impl Scene {
    /// The scene shipped under a name, or the one in a folder.
    pub fn find(name_or_path: &str) -> Result<Self, SceneError> {
        if let Some(scene) = Scene::shipped(name_or_path) {
            return scene;
        }
        let folder = Path::new(name_or_path);
        if !folder.is_dir() {
            let shipped = names().collect::<Vec<_>>().join(", ");
            return Err(SceneError::Unknown { asked: name_or_path.to_owned(), shipped });
        }
        Scene::open(folder)
    }

    /// The scene in a folder.
    pub fn open(folder: &Path) -> Result<Self, SceneError> {
        let root = folder.join("root");
        if !root.is_dir() {
            return Err(SceneError::NoRoot { scene: folder.to_owned() });
        }
        let text = Tree::disk(folder)
            .text("nvml.yaml")
            .map_err(|error| SceneError::NoNvml { scene: folder.to_owned(), reason: error.to_string() })?;
        Ok(Scene { tree: Tree::disk(&root), nvml: parse_nvml(folder, &text)? })
    }

    /// A shipped scene; none of that name is `None`.
    pub fn shipped(name: &str) -> Option<Result<Self, SceneError>> {
        let shipped = SHIPPED.iter().find(|scene| scene.name == name)?;
        let nvml = parse_nvml(Path::new(name), shipped.nvml);
        Some(nvml.map(|nvml| Scene { tree: Tree::Packed(shipped.entries), nvml }))
    }

    /// Names of the shipped scenes, in ascending order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        names()
    }

    /// What the reader makes of this machine.
    pub fn facts(self) -> NodeFacts {
        derive::facts(&collect::sample(&Trees::whole(self.tree), self.nvml))
    }

    pub(crate) fn into_parts(self) -> (Trees, NvmlAnswer) {
        (Trees::whole(self.tree), self.nvml)
    }
}

fn parse_nvml(scene: &Path, text: &str) -> Result<NvmlAnswer, SceneError> {
    nvml_file::parse(text).map_err(|reason| SceneError::BadNvml { scene: scene.to_owned(), reason })
}

#[cfg(test)]
mod tests;
