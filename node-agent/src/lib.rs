//! The node agent: reads the facts of a machine (this one, or a scene: a machine as files, for demos and tests) and tells
//! them to the operator.
//! Out: [`NodeFacts`] once ([`read_machine`]), or kept new and served ([`run::Agent`]). Every source is asked, whatever the
//! others answered. Never: a failure of the whole. What cannot be read is in the facts, with the reason.

use std::path::Path;

use node_facts::NodeFacts;

use crate::collect::Trees;
use crate::source::{Tree, nvml};

mod collect;
pub mod config;
mod derive;
mod gpu_watch;
mod kubelet;
mod metrics;
mod observe;
pub mod run;
pub mod scene;
mod serve;
mod source;
mod state;

/// The facts of this machine, from the files under `root` (`/`, or where a pod has the host's mounted) and NVML.
/// Blocks: NVML gets ten seconds, then its facts are failed ones.
pub fn read_machine(root: &Path) -> NodeFacts {
    let trees = Trees::whole(Tree::disk(root));
    derive::facts(&collect::sample(&trees, nvml::ask_driver()))
}
