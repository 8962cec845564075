//! What a cluster adds to the facts: nodes as Kubernetes sees them, what others hold, what of this object runs already.
//! In: filled by the operator from watches. Out: read by the steps of the plan. Never: I/O, a clock (ages are durations).

use std::collections::BTreeMap;

use fathom_crds::inference_cluster::{PodTemplateSpec, Toleration, TolerationOperator};

use crate::plan::ReplicaPlan;
use crate::report::RejectReason;

/// Facts older than this place nothing new; what runs stays. Agents report every second and send a sign of life when
/// nothing changes, so that a minute of silence is many that were missed.
pub const STALE_AFTER_MS: u64 = 60_000;

/// Everything about the cluster that a plan looks at besides facts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// Nodes by name; `None` without Kubernetes: then every node with facts may be planned.
    pub nodes: Option<BTreeMap<String, NodeState>>,
    /// What replicas of other objects and strangers hold.
    pub taken: Vec<Taken>,
    /// Replicas of this object that have a pod.
    pub present: Vec<Present>,
}

/// A machine without Kubernetes: nothing is held, nothing runs.
pub static NO_SURROUNDINGS: Surroundings =
    Surroundings { nodes: None, taken: Vec::new(), present: Vec::new() };

/// A node as Kubernetes sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// Condition Ready.
    pub ready: bool,
    /// Age of its facts; `None`: no agent has reported.
    pub facts_age_ms: Option<u64>,
    /// Why this object's pods are kept away for now, such as pods that its kubelet has refused.
    pub excluded: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    pub key: String,
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// Part of a node that is not ours to plan with.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    /// Who has it: `b/flash-decode-0`, `claim y/x`.
    pub by: String,
    pub node: String,
    /// Absent: somewhere on the node.
    pub numa_node: Option<u32>,
    /// UUIDs.
    pub gpus: Vec<String>,
    /// CPUs that are theirs alone.
    pub cpus: Vec<u32>,
    /// Bytes of host memory promised to them, whether they use them yet or not.
    pub promised_bytes: u64,
    /// Of these, bytes that they have not touched yet: the node's available memory still counts them.
    pub untouched_bytes: u64,
}

/// A replica that has a pod: its plan entry as the pod carries it.
#[derive(Debug, Clone, PartialEq)]
pub struct Present {
    pub replica: ReplicaPlan,
    /// [`crate::placement_inputs`] of the spec that placed it.
    pub inputs: String,
    /// Whether it has its place for good: its containers have started, or its claim is allocated. One that only waits
    /// moves when the place is no longer to be had.
    pub holds: bool,
    /// As [`Taken::untouched_bytes`].
    pub untouched_bytes: u64,
}

impl NodeState {
    /// Why no new replica may be placed here.
    pub(crate) fn keeps_away(&self, template: &PodTemplateSpec) -> Option<(RejectReason, String)> {
        if let Some(why) = &self.excluded {
            return Some((RejectReason::Excluded, why.clone()));
        }
        if !self.ready {
            return Some((RejectReason::NotReady, "the node is not Ready".to_owned()));
        }
        if self.unschedulable {
            return Some((RejectReason::Cordoned, "the node is cordoned".to_owned()));
        }
        let missing = template.node_selector.iter().find(|(key, value)| self.labels.get(*key) != Some(value));
        if let Some((key, value)) = missing {
            let found = self.labels.get(key).map_or("no such label".to_owned(), |found| format!("{found:?}"));
            let message = format!("podTemplate.nodeSelector wants label {key} = {value:?}; found {found}");
            return Some((RejectReason::Selector, message));
        }
        if let Some(taint) = self.taints.iter().find(|taint| !taint.tolerated(&template.tolerations)) {
            let Taint { key, value, effect } = taint;
            let message = format!("taint {key}={value}:{effect} is not tolerated by podTemplate.tolerations");
            return Some((RejectReason::Tainted, message));
        }
        match self.facts_age_ms {
            None => Some((RejectReason::Unknown, "no node agent has reported".to_owned())),
            Some(age) if age > STALE_AFTER_MS => {
                // Whole minutes: a sentence that changed every second would be written every second.
                let minutes = age / 60_000;
                Some((RejectReason::Stale, format!("its facts are older than {minutes} min")))
            }
            Some(_) => None,
        }
    }
}

impl Taint {
    /// As the scheduler decides it; PreferNoSchedule keeps nobody away.
    fn tolerated(&self, tolerations: &[Toleration]) -> bool {
        let matches = |toleration: &Toleration| {
            let key = toleration.key.as_deref().unwrap_or_default();
            let effect = toleration.effect.as_deref().unwrap_or_default();
            let value = match toleration.operator {
                TolerationOperator::Exists => true,
                TolerationOperator::Equal => toleration.value.as_deref().unwrap_or_default() == self.value,
            };
            let any_key = key.is_empty() && toleration.operator == TolerationOperator::Exists;
            (any_key || key == self.key) && (effect.is_empty() || effect == self.effect) && value
        };
        self.effect == "PreferNoSchedule" || tolerations.iter().any(matches)
    }
}
