//! Pods as a status speaks of them.
//! In: the live pods of an object. Out: [`PodView`]. Never: pods that are about to go.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use operator_render::names::LABEL_ROLE;

/// Value of [`LABEL_ROLE`] for routers; every other pod is an engine.
pub(crate) const ROUTER: &str = "router";

/// A pod that is not being deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodView<'a> {
    pub(crate) pod: &'a Pod,
}

/// The pods of an object that are not being deleted.
pub(crate) fn staying(pods: &[Arc<Pod>]) -> impl Iterator<Item = PodView<'_>> {
    let stays = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
    pods.iter().filter(stays).map(|pod| PodView { pod })
}

impl<'a> PodView<'a> {
    pub(crate) fn name(&self) -> &'a str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> &'a str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn label(&self, key: &str) -> &'a str {
        let labels = self.pod.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
    }

    pub(crate) fn is_router(&self) -> bool {
        self.label(LABEL_ROLE) == ROUTER
    }

    fn status(&self) -> Option<&'a PodStatus> {
        self.pod.status.as_ref()
    }

    pub(crate) fn phase(&self) -> &'a str {
        self.status().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.phase() == "Failed"
    }

    /// Why the pod as a whole is what it is: `Evicted`, `TopologyAffinityError`.
    pub(crate) fn reason(&self) -> &'a str {
        self.status().and_then(|status| status.reason.as_deref()).unwrap_or_default()
    }

    pub(crate) fn message(&self) -> &'a str {
        self.status().and_then(|status| status.message.as_deref()).unwrap_or_default()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|(status, _)| status == "True")
    }

    /// Status and message of a condition.
    fn condition(&self, kind: &str) -> Option<(&'a str, &'a str)> {
        let conditions = self.status()?.conditions.as_ref()?;
        let found = conditions.iter().find(|condition| condition.type_ == kind)?;
        Some((&found.status, found.message.as_deref().unwrap_or_default()))
    }

    /// The scheduler's sentence, when it found no node.
    pub(crate) fn unschedulable(&self) -> Option<&'a str> {
        self.condition("PodScheduled").filter(|(status, _)| *status == "False").map(|(_, message)| message)
    }

    pub(crate) fn containers(&self) -> impl Iterator<Item = &'a ContainerStatus> {
        let status = self.status();
        let init = status.and_then(|status| status.init_container_statuses.as_ref());
        let main = status.and_then(|status| status.container_statuses.as_ref());
        init.into_iter().chain(main).flatten()
    }

    pub(crate) fn restarts(&self) -> i32 {
        self.containers().map(|container| container.restart_count).sum()
    }
}

/// How a container ended last, if it is not running now or was restarted.
pub(crate) fn last_end(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let now = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    now.or_else(|| container.last_state.as_ref().and_then(|state| state.terminated.as_ref()))
}

/// Why a container waits, with the kubelet's sentence.
pub(crate) fn waiting(container: &ContainerStatus) -> Option<(&str, &str)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((waiting.reason.as_deref().unwrap_or("Waiting"), waiting.message.as_deref().unwrap_or_default()))
}
