//! Reads the facts of a machine: this one, or a scene (a machine as files, for demos and tests).
//! Out: [`NodeFacts`]. Every source is asked, whatever the others answered.
//! Never: a failure of the whole. What cannot be read is in the facts, with the reason.

use std::path::Path;

use node_facts::NodeFacts;

use crate::source::{Tree, nvml};

mod collect;
mod derive;
pub mod scene;
mod source;

/// The facts of this machine, from the files under `root` (`/`, or where a pod has the host's mounted) and NVML.
/// Blocks: NVML gets ten seconds, then its facts are failed ones.
pub fn read_machine(root: &Path) -> NodeFacts {
    let tree = Tree::disk(root);
    derive::facts(&collect::sample(&tree, nvml::ask_driver()))
}
