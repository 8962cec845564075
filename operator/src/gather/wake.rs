//! Which objects a change concerns.
//! In: changes of every kind that is watched, news of node agents. Out: wake-ups of exactly the objects concerned.
//! Never: everybody, unless everybody is concerned. Who found no place is concerned by whatever makes room.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::core::PartialObjectMeta;
use tokio::sync::Notify;

use super::kept::{Kept, Stored};
use super::shelf::Change;
use super::{ENFORCE, Sources};
use crate::agents::AgentPod;
use crate::live::child::label;
use crate::live::claim::LiveClaim;
use crate::live::pod::LivePod;
use crate::reconcile::queue::{Cause, Queue};

/// Port of the agents' gRPC.
const AGENT_PORT: u16 = 9443;

/// A list of thousands of agents comes as thousands of changes.
const AGENTS_DEBOUNCE: Duration = Duration::from_millis(50);

/// Wakes objects.
pub struct Waker {
    pub sources: Arc<Sources>,
    pub queue: Arc<Queue>,
    /// Told the uid of each object that is gone.
    pub gone: Box<dyn Fn(&str) + Send + Sync>,
    pub agents_changed: Notify,
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Waker {
    /// The object itself: its spec, labels, deletion. Its status is the operator's own doing.
    pub fn cluster(&self, change: &Change<Stored>) {
        self.sources.stores.note_owner(change);
        let key = change.object().key();
        let gone = match change {
            Change::Gone(object) => Some(object),
            Change::Changed { old, new } if old.meta().uid != new.meta().uid => Some(old),
            Change::Changed { .. } | Change::Appeared(_) => None,
        };
        if let Some(uid) = gone.and_then(|object| object.meta().uid.as_deref()) {
            (self.gone)(uid);
            self.waiting();
        }
        match change {
            Change::Changed { old, new } if !new.differs_materially(old) => {}
            _ => self.queue.wake(&key, Cause::Object),
        }
    }

    /// A child that appeared, changed or went: its owner.
    pub fn child<K: Kept>(&self, change: &Change<K>) {
        if let Change::Changed { old, .. } = change {
            self.owner(old.owner());
        }
        self.owner(change.object().owner());
    }

    /// A pod: its owner; who waits for room, if it made some.
    pub fn pod(&self, change: &Change<LivePod>) {
        let Sources { ledger, engines, .. } = &*self.sources;
        let freed = match change {
            Change::Gone(pod) => {
                engines.pod_gone(pod);
                ledger.pod_gone(pod)
            }
            Change::Appeared(pod) => {
                engines.pod(pod);
                ledger.pod(pod)
            }
            Change::Changed { old, new } => {
                engines.pod(new);
                let another = old.uid != new.uid;
                if another {
                    engines.pod_gone(old);
                }
                (another && ledger.pod_gone(old)) | ledger.pod(new)
            }
        };
        self.child(change);
        if freed {
            self.waiting();
        }
    }

    /// A claim of ours: its owner. A stranger's: who is on its nodes and who waits, if its devices changed.
    pub fn claim(&self, change: &Change<LiveClaim>) {
        if change.object().owner().is_some() {
            self.child(change);
            return;
        }
        let (before, after) = match change {
            Change::Appeared(claim) => (&[][..], claim.devices()),
            Change::Gone(claim) => (claim.devices(), &[][..]),
            Change::Changed { old, new } => (old.devices(), new.devices()),
        };
        if before == after {
            return;
        }
        let pools: BTreeSet<(&str, &str)> =
            before.iter().chain(after).map(|device| (&*device.driver, &*device.pool)).collect();
        for slice in self.sources.stores.slices.all() {
            if pools.contains(&(slice.spec.driver.as_str(), slice.spec.pool.name.as_str())) {
                self.node_named(slice.spec.node_name.as_deref());
            }
        }
        self.waiting();
    }

    /// Devices that are offered: who is on the node, and who waits.
    pub fn slice(&self, change: &Change<ResourceSlice>) {
        if let Change::Changed { old, new } = change
            && (&old.spec.devices, &old.spec.node_name) == (&new.spec.devices, &new.spec.node_name)
        {
            return;
        }
        self.node_named(change.object().spec.node_name.as_deref());
        self.waiting();
    }

    /// A node: who is on it, and who waits. Only what is kept of a node can have changed.
    pub fn node(&self, change: &Change<Node>) {
        self.node_named(change.object().metadata.name.as_deref());
        self.waiting();
    }

    /// A namespace that admits other pods than before: all objects in it.
    pub fn namespace(&self, change: &Change<PartialObjectMeta<Namespace>>) {
        let level =
            |namespace: &PartialObjectMeta<Namespace>| label(&namespace.metadata, ENFORCE).map(str::to_owned);
        if let Change::Changed { old, new } = change
            && level(old) == level(new)
        {
            return;
        }
        let Some(name) = change.object().metadata.name.as_deref() else { return };
        for cluster in self.sources.stores.clusters.all() {
            let key = cluster.key();
            if &*key.namespace == name {
                self.queue.wake(&key, Cause::Surroundings);
            }
        }
    }

    /// Facts of these nodes changed in a way that matters, or grew stale, or are fresh again.
    pub fn facts(&self, nodes: &BTreeSet<String>) {
        for node in nodes {
            self.node_named(Some(node));
        }
        self.waiting();
    }

    /// An engine pod of this owner said something new.
    pub fn engine(&self, owner: &str) {
        self.owner(Some(owner));
    }

    /// An agent's pod changed.
    pub fn agent_pod(&self) {
        self.agents_changed.notify_one();
    }

    /// Tells the streams which agents there are, until the end of the process: all of them once for each burst of changes.
    pub async fn keep_agents(&self) {
        loop {
            self.agents_changed.notified().await;
            tokio::time::sleep(AGENTS_DEBOUNCE).await;
            let agents = self.sources.stores.agent_pods.all();
            self.sources.agents.set_pods(agents.iter().filter_map(|pod| agent(pod)).collect());
        }
    }

    fn owner(&self, uid: Option<&str>) {
        if let Some(key) = uid.and_then(|uid| self.sources.stores.owner(uid)) {
            self.queue.wake(&key, Cause::Surroundings);
        }
    }

    fn node_named(&self, name: Option<&str>) {
        for key in name.map(|name| self.sources.ledger.on_node(name)).unwrap_or_default() {
            self.queue.wake(&key, Cause::Surroundings);
        }
    }

    fn waiting(&self) {
        for key in self.sources.ledger.waiting() {
            self.queue.wake(&key, Cause::Surroundings);
        }
    }
}

/// Where an agent can be reached, once its pod has an address.
fn agent(pod: &LivePod) -> Option<AgentPod> {
    let (name, node) = (pod.name().to_owned(), pod.content.node.to_string());
    let address = SocketAddr::new(pod.content.ip?, AGENT_PORT);
    (!node.is_empty() && !pod.has_ended() && !pod.ending).then_some(AgentPod { name, node, address })
}

#[cfg(test)]
mod tests;
