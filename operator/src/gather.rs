//! First step: everything that one reconcile looks at, taken once, so that all steps see the same.
//! In: the stores that watches and node agents fill. Out: [`Gathered`]. Never: decisions.

pub mod claims;
pub mod discovery;
pub mod engines;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod kept;
pub mod ledger;
pub mod shelf;
pub mod stores;
pub mod streams;
pub mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fathom_crds::InferenceCluster;
use k8s_openapi::api::core::v1::Node;
use node_facts::{NodeFacts, PodAllocation};
use operator_plan::{Abilities, ClaimDriver, Enforcement, NodeState, Present, Surroundings, Taint, Taken};
use serde_json::Value;

use crate::agents::Agents;
use crate::live::Live;
use crate::live::child::label;
use claims::Offered;
use engines::Engines;
use ledger::Ledger;
use shelf::ObjectKey;
use stores::Stores;

/// Label of a namespace that decides which pods it admits.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

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

/// Where everything is gathered from.
#[derive(Debug)]
pub struct Sources {
    pub stores: Arc<Stores>,
    pub ledger: Arc<Ledger>,
    pub engines: Arc<Engines>,
    pub agents: Agents,
    /// Whether `resource.k8s.io/v1` is served.
    pub claims_served: AtomicBool,
}

impl Sources {
    /// What there is to know about an object; `None` when there is no such (readable) object.
    pub fn gather(&self, key: &ObjectKey) -> Option<Gathered> {
        let cluster = self.stores.cluster(key)?;
        let uid = cluster.metadata.uid.clone()?;
        Some(self.gather_for(cluster, &key.namespace, &uid))
    }

    /// The same for an object that need not be stored; an empty uid has no children.
    pub fn gather_for(&self, cluster: Arc<InferenceCluster>, namespace: &str, uid: &str) -> Gathered {
        let reported = self.agents.snapshot();
        let live = self.stores.live(uid);
        let offered = self.offered();
        let nodes = self.stores.nodes.all();
        let abilities = Abilities {
            claims: offered.as_ref().and_then(Offered::driver).or_else(|| running_driver(&live)),
            aligning_nodes: aligning_nodes(&reported),
            gpu_resource: gpu_resource(&nodes),
            forbids_memory_binding: self.enforced_level(namespace),
        };
        let surroundings = Surroundings {
            nodes: Some(node_states(&nodes, &reported)),
            taken: self.taken(uid, &reported, offered.as_ref()),
            present: present(&self.ledger, uid, &live),
        };
        Gathered {
            cluster,
            facts: reported.into_iter().map(|(facts, _)| NodeFacts::clone(&facts)).collect(),
            surroundings,
            abilities,
            live,
            engines: self.engines.answers(uid),
            offered_gpus: offered.map(|offered| offered.by_node()),
        }
    }

    /// Whether a node offers devices of an extended resource at the moment.
    pub fn offers(&self, node: &str, resource: &str) -> bool {
        let Some(node) = self.stores.nodes.get(&ObjectKey::new("", node)) else { return false };
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.and_then(|offered| offered.get(resource)).is_some_and(|count| count.0 != "0")
    }

    /// `None` where no slice of a GPU driver exists.
    fn offered(&self) -> Option<Offered> {
        if !self.claims_served.load(Ordering::Relaxed) {
            return None;
        }
        Some(Offered::new(&self.stores.slices.all())).filter(|offered| offered.driver().is_some())
    }

    fn taken(
        &self,
        uid: &str,
        reported: &[(Arc<NodeFacts>, Duration)],
        offered: Option<&Offered>,
    ) -> Vec<Taken> {
        let mut taken = self.ledger.taken_by_others(uid);
        if let Some(offered) = offered {
            taken.extend(offered.taken_by_strangers(&self.stores.claims.all()));
        }
        for (facts, _) in reported {
            let kubelet = facts.kubelet.value();
            let pods = kubelet.and_then(|kubelet| kubelet.pods.value()).into_iter().flatten();
            let strange = pods.filter(|pod| !self.is_ours(pod));
            taken.extend(strange.filter_map(|pod| held_by_stranger(&facts.node, pod)));
        }
        taken
    }

    fn is_ours(&self, pod: &PodAllocation) -> bool {
        self.stores.pods.get(&ObjectKey::new(&pod.namespace, &pod.name)).is_some()
    }

    /// The pod-security level of a namespace, if it keeps pods from adding capabilities.
    fn enforced_level(&self, namespace: &str) -> Option<String> {
        let namespace = self.stores.namespaces.get(&ObjectKey::new("", namespace))?;
        let level = label(&namespace.metadata, ENFORCE)?;
        (level != "privileged").then(|| level.to_owned())
    }
}

/// The driver whose claims run already: slices may vanish for a while, and what runs stays as it is.
fn running_driver(live: &Live) -> Option<ClaimDriver> {
    let class = live.claims.iter().find_map(|claim| claim.content.device_class.as_deref())?;
    Some(ClaimDriver { driver: class.to_owned(), device_class: class.to_owned() })
}

/// The enforcement that this object's engine pods were made with, if they agree; why they were is no difference.
pub fn running_enforcement(live: &Live) -> Option<Enforcement> {
    let staying = live.staying().filter(|pod| !pod.has_ended());
    let mut found = staying.filter_map(|pod| pod.content.made_from.as_ref()?.enforcement.clone());
    let first = found.next()?;
    let alike =
        |other: Enforcement| (other.mode, other.bind_memory) == (first.mode.clone(), first.bind_memory);
    found.all(alike).then_some(first)
}

/// A pod whose claim is allocated has its place, whether it runs or not.
fn present(ledger: &Ledger, uid: &str, live: &Live) -> Vec<Present> {
    let allocated = live.claims.iter().filter(|claim| claim.is_allocated());
    let allocated: BTreeSet<&str> = allocated.map(|claim| claim.name()).collect();
    let mut present = ledger.present(uid);
    for (pod, entry) in &mut present {
        entry.holds |= allocated.contains(pod.as_str());
    }
    present.into_iter().map(|(_, entry)| entry).collect()
}

/// Nodes whose kubelet puts GPUs and CPUs of a pod onto one NUMA node.
fn aligning_nodes(reported: &[(Arc<NodeFacts>, Duration)]) -> Vec<String> {
    let aligns = |facts: &NodeFacts| {
        let Some(kubelet) = facts.kubelet.value() else { return false };
        let topology = kubelet.topology_manager.value().map(String::as_str);
        let cpus = kubelet.cpu_manager.value().map(String::as_str);
        matches!(topology, Some("single-numa-node" | "restricted")) && cpus == Some("static")
    };
    reported.iter().filter(|(facts, _)| aligns(facts)).map(|(facts, _)| facts.node.clone()).collect()
}

/// The extended resource of GPUs: the well-known one before others.
fn gpu_resource(nodes: &[Arc<Node>]) -> Option<String> {
    let mut names: BTreeSet<&String> = BTreeSet::new();
    for node in nodes {
        names.extend(
            node.status.iter().filter_map(|status| status.allocatable.as_ref()).flat_map(BTreeMap::keys),
        );
    }
    let known = names.iter().find(|name| name.as_str() == "nvidia.com/gpu");
    known.or_else(|| names.iter().next()).map(|name| (*name).clone())
}

fn node_states(nodes: &[Arc<Node>], reported: &[(Arc<NodeFacts>, Duration)]) -> BTreeMap<String, NodeState> {
    let ages: BTreeMap<&str, &Duration> =
        reported.iter().map(|(facts, age)| (facts.node.as_str(), age)).collect();
    let state = |node: &Arc<Node>| {
        let name = node.metadata.name.clone().unwrap_or_default();
        let age = ages.get(name.as_str());
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten().map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        });
        let state = NodeState {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            // The cordon is told by its own field.
            taints: taints.filter(|taint| taint.key != "node.kubernetes.io/unschedulable").collect(),
            unschedulable: spec.and_then(|spec| spec.unschedulable) == Some(true),
            ready: node_is_ready(node) && node.metadata.deletion_timestamp.is_none(),
            facts_age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            excluded: None,
        };
        (name, state)
    };
    nodes.iter().map(state).collect()
}

fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Devices and CPUs that a kubelet gave to a pod that is not ours; claims are counted by their allocation.
fn held_by_stranger(node: &str, pod: &PodAllocation) -> Option<Taken> {
    let containers = || pod.containers.iter();
    let gpus: Vec<String> = containers()
        .flat_map(|c| &c.devices)
        .filter(|d| d.resource.ends_with("/gpu"))
        .flat_map(|d| d.ids.clone())
        .collect();
    let cpus: Vec<u32> = containers().flat_map(|container| container.cpus.clone()).collect();
    (!gpus.is_empty() || !cpus.is_empty()).then(|| Taken {
        by: format!("{}/{}", pod.namespace, pod.name),
        node: node.to_owned(),
        gpus,
        cpus,
        ..Taken::default()
    })
}

#[cfg(test)]
mod tests;
