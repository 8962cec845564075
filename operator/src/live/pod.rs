//! What is kept of a pod: where it belongs, what it was made from, how its containers are.
//! In: pods of a watch. Out: [`LivePod`]. Never: decisions; what changes with every heartbeat.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use operator_plan::{Enforcement, Present, ReplicaPlan};
use operator_render::names::{ANNOTATION_INPUTS, LABEL_REPLICA, LABEL_REVISION, LABEL_ROLE};
use operator_render::{enforced, plan_entry};

use super::child::{LiveChild, label};

/// Value of [`LABEL_ROLE`] for routers; every other pod with a role is an engine.
pub const ROUTER: &str = "router";

/// A pod as it was last seen.
pub type LivePod = LiveChild<PodContent>;

/// Of a pod, what some step reads; texts that it does not have are empty.
#[derive(Debug, Clone, PartialEq)]
pub struct PodContent {
    pub role: Box<str>,
    /// Number of the replica in its role.
    pub index: Box<str>,
    pub revision: Box<str>,
    /// Router pods and strangers have none.
    pub made_from: Option<Arc<MadeFrom>>,
    pub node: Box<str>,
    pub ip: Option<IpAddr>,
    pub phase: Box<str>,
    /// Why the pod as a whole is what it is: `Evicted`, `TopologyAffinityError`.
    pub reason: Box<str>,
    pub message: Box<str>,
    pub is_ready: bool,
    /// The scheduler's sentence, when it found no node.
    pub unschedulable: Option<Box<str>>,
    /// Init containers first.
    pub containers: Vec<Container>,
}

/// What an engine pod was made from, as its annotations say.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeFrom {
    pub entry: ReplicaPlan,
    /// Hash of what placed it.
    pub inputs: String,
    pub enforcement: Option<Enforcement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: Box<str>,
    pub image: Box<str>,
    pub is_init: bool,
    pub restarts: i32,
    pub runs: bool,
    /// Why it waits, with the kubelet's sentence.
    pub waiting: Option<(Box<str>, Box<str>)>,
    /// How it ended last, if it is not running now or was restarted.
    pub last_end: Option<Ended>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub reason: Box<str>,
    /// Its last words.
    pub message: Box<str>,
    pub exit_code: i32,
}

impl LivePod {
    pub fn is_router(&self) -> bool {
        &*self.content.role == ROUTER
    }

    pub fn is_engine(&self) -> bool {
        !self.content.role.is_empty() && !self.is_router()
    }

    pub fn has_failed(&self) -> bool {
        &*self.content.phase == "Failed"
    }

    /// Why it failed, in one word.
    pub fn failure(&self) -> &str {
        if self.content.reason.is_empty() { "Failed" } else { &self.content.reason }
    }

    /// Its containers have ended for good: it holds nothing any more.
    pub fn has_ended(&self) -> bool {
        self.has_failed() || &*self.content.phase == "Succeeded"
    }

    pub fn is_ready(&self) -> bool {
        self.content.is_ready
    }

    pub fn restarts(&self) -> i32 {
        self.content.containers.iter().map(|container| container.restarts).sum()
    }

    /// Where it can be asked, once a container runs.
    pub fn address(&self) -> Option<IpAddr> {
        self.content.ip.filter(|_| self.main().any(|container| container.runs))
    }

    /// What it holds, if it is an engine pod.
    pub fn present(&self) -> Option<Present> {
        let MadeFrom { entry, inputs, .. } = self.content.made_from.as_deref()?;
        let (replica, inputs) = (entry.clone(), inputs.clone());
        let untouched_bytes = self.untouched_bytes();
        Some(Present { replica, inputs, holds: self.has_started(), untouched_bytes })
    }

    /// Bytes that it was promised and that the node still counts as free: a ready engine has touched its pools.
    pub fn untouched_bytes(&self) -> u64 {
        let promised = self.content.made_from.as_ref().map_or(0, |made_from| made_from.entry.memory_bytes);
        if self.is_ready() { 0 } else { promised }
    }

    /// Whether a container of it runs or has ever run: its node and devices are settled.
    pub fn has_started(&self) -> bool {
        self.main().any(|container| container.runs || container.restarts > 0 || container.last_end.is_some())
    }

    /// Why a kubelet refused the pod for good: the reason and its sentence.
    pub fn refused_by_kubelet(&self) -> Option<(&str, &str)> {
        let (reason, message) = (&*self.content.reason, &*self.content.message);
        let refused = matches!(reason, "TopologyAffinityError" | "UnexpectedAdmissionError")
            || reason.starts_with("OutOf");
        (self.has_failed() && refused).then_some((reason, message))
    }

    fn main(&self) -> impl Iterator<Item = &Container> {
        self.content.containers.iter().filter(|container| !container.is_init)
    }
}

impl From<Pod> for LivePod {
    fn from(pod: Pod) -> Self {
        let of_label = |key| label(&pod.metadata, key).unwrap_or_default().into();
        let (role, index, revision) =
            (of_label(LABEL_ROLE), of_label(LABEL_REPLICA), of_label(LABEL_REVISION));
        let made_from = made_from(&pod).map(Arc::new);
        let status = pod.status.unwrap_or_default();
        let condition =
            |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
        let is_ready = condition("Ready").is_some_and(|ready| ready.status == "True");
        let unschedulable = condition("PodScheduled").filter(|scheduled| scheduled.status == "False");
        let unschedulable = unschedulable.map(|scheduled| text(scheduled.message.as_deref()));
        let content = PodContent {
            role,
            index,
            revision,
            made_from,
            node: text(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())),
            ip: status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()),
            phase: text(status.phase.as_deref()),
            reason: text(status.reason.as_deref()),
            message: text(status.message.as_deref()),
            is_ready,
            unschedulable,
            containers: containers(&status),
        };
        Self::new(&pod.metadata, content)
    }
}

fn made_from(pod: &Pod) -> Option<MadeFrom> {
    let inputs = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION_INPUTS));
    let inputs = inputs.cloned().unwrap_or_default();
    Some(MadeFrom { entry: plan_entry(pod)?, inputs, enforcement: enforced(pod) })
}

fn containers(status: &PodStatus) -> Vec<Container> {
    let init = status.init_container_statuses.iter().flatten().map(|status| container(status, true));
    let main = status.container_statuses.iter().flatten().map(|status| container(status, false));
    init.chain(main).collect()
}

fn container(status: &ContainerStatus, is_init: bool) -> Container {
    let (now, before) = (status.state.as_ref(), status.last_state.as_ref());
    let waiting = now.and_then(|state| state.waiting.as_ref());
    let end = now.and_then(|state| state.terminated.as_ref());
    let end = end.or_else(|| before.and_then(|state| state.terminated.as_ref()));
    Container {
        name: text(Some(&status.name)),
        image: text(Some(&status.image)),
        is_init,
        restarts: status.restart_count,
        runs: now.is_some_and(|state| state.running.is_some()),
        waiting: waiting.map(|waiting| {
            (text(waiting.reason.as_deref().or(Some("Waiting"))), text(waiting.message.as_deref()))
        }),
        last_end: end.map(|end| Ended {
            reason: text(end.reason.as_deref().or(Some("Error"))),
            message: text(end.message.as_deref()),
            exit_code: end.exit_code,
        }),
    }
}

fn text(text: Option<&str>) -> Box<str> {
    text.unwrap_or_default().into()
}
