//! First step: everything that one reconcile looks at, taken once, so that all steps see the same.
//! In: the stores that watches and node agents fill. Out: [`Gathered`]. Never: decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use fathom_crds::InferenceCluster;
use node_facts::NodeFacts;
use operator_plan::{Abilities, Surroundings};
use serde_json::Value;

use crate::live::Live;

/// What is known about one object and its cluster at one moment.
#[derive(Debug, Clone)]
pub struct Gathered {
    pub cluster: Arc<InferenceCluster>,
    /// One entry a node whose agent has ever reported since this operator started.
    pub facts: Vec<NodeFacts>,
    pub surroundings: Surroundings,
    pub abilities: Abilities,
    pub live: Live,
    /// `/server_info` of the engine pods, by pod name: binding, admission, revision. Missing: not asked or no answer.
    pub engines: BTreeMap<String, Value>,
    /// UUIDs of GPUs that slices offer, by node; `None` without DRA.
    pub offered_gpus: Option<BTreeMap<String, Vec<String>>>,
}
