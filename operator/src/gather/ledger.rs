//! What is spoken for: by pods that run, by plans whose pods do not exist yet. Two objects planned in the same moment
//! must not get the same GPU.
//! In: pods as they come and go, plans as they are made. Out: what others hold, and who waits for room.
//! Never: remembered across a restart (pods carry their plan entry); an entry of an object that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use operator_plan::{Present, ReplicaPlan, Taken, has_own_cpus};

use super::shelf::ObjectKey;
use crate::live::pod::LivePod;

/// Reservations; bounded by pods and objects that exist.
#[derive(Debug, Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Engine pods that hold something, by uid; a terminating one still does.
    pods: BTreeMap<Arc<str>, Arc<LivePod>>,
    /// By uid of the object.
    plans: BTreeMap<Arc<str>, PlanEntry>,
    /// Objects with replicas on a node.
    on_node: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Objects that found no place.
    waiting: BTreeSet<ObjectKey>,
}

#[derive(Debug)]
struct PlanEntry {
    key: ObjectKey,
    promised: Vec<ReplicaPlan>,
}

impl Ledger {
    /// A pod as it now is. Returns whether room came free.
    pub fn pod(&self, pod: &Arc<LivePod>) -> bool {
        let mut inner = self.lock();
        if pod.owner.is_none() || pod.content.made_from.is_none() || pod.has_ended() {
            return inner.pods.remove(&pod.uid).is_some();
        }
        inner.pods.insert(pod.uid.clone(), pod.clone());
        false
    }

    /// A pod that is gone. Returns whether room came free.
    pub fn pod_gone(&self, pod: &LivePod) -> bool {
        self.lock().pods.remove(&pod.uid).is_some()
    }

    /// The plan of an object that is about to be carried out; empty: it found no place.
    pub fn promise(&self, uid: &str, key: &ObjectKey, replicas: &[ReplicaPlan], waits: bool) {
        let mut inner = self.lock();
        inner.forget(uid);
        for replica in replicas {
            inner.on_node.entry(replica.node.clone()).or_default().insert(key.clone());
        }
        if waits {
            inner.waiting.insert(key.clone());
        }
        inner.plans.insert(uid.into(), PlanEntry { key: key.clone(), promised: replicas.to_vec() });
    }

    /// An object that is gone. Its pods hold what they have until they are gone too.
    pub fn forget(&self, uid: &str) {
        self.lock().forget(uid);
    }

    /// What objects other than this one hold or were promised.
    pub fn taken_by_others(&self, uid: &str) -> Vec<Taken> {
        let inner = self.lock();
        let mut running = BTreeSet::new();
        let mut taken = Vec::new();
        for pod in inner.pods.values().filter(|pod| pod.owner.as_deref() != Some(uid)) {
            let (Some(owner), Some(made_from)) = (&pod.owner, &pod.content.made_from) else { continue };
            let replica = &made_from.entry;
            running.insert((&**owner, replica.name.as_str(), replica.node.as_str(), replica.numa_node));
            taken.push(held(&pod.key.namespace, replica, pod.untouched_bytes()));
        }
        for (owner, plan) in inner.plans.iter().filter(|(owner, _)| &***owner != uid) {
            for replica in &plan.promised {
                let is = (&**owner, replica.name.as_str(), replica.node.as_str(), replica.numa_node);
                if !running.contains(&is) {
                    taken.push(held(&plan.key.namespace, replica, replica.memory_bytes));
                }
            }
        }
        taken
    }

    /// Replicas of this object that have a pod which stays, with its name, by name.
    pub fn present(&self, uid: &str) -> Vec<(String, Present)> {
        let inner = self.lock();
        let own = inner.pods.values().filter(|pod| pod.owner.as_deref() == Some(uid) && !pod.ending);
        let mut present: Vec<(String, Present)> =
            own.filter_map(|pod| Some((pod.name().to_owned(), pod.present()?))).collect();
        present.sort_by(|a, b| a.0.cmp(&b.0));
        present
    }

    /// Objects with planned replicas on a node.
    pub fn on_node(&self, node: &str) -> Vec<ObjectKey> {
        self.lock().on_node.get(node).into_iter().flatten().cloned().collect()
    }

    /// Objects that found no place.
    pub fn waiting(&self) -> Vec<ObjectKey> {
        self.lock().waiting.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self, uid: &str) {
        let Some(plan) = self.plans.remove(uid) else { return };
        self.waiting.remove(&plan.key);
        for replica in &plan.promised {
            if let Some(keys) = self.on_node.get_mut(&replica.node) {
                keys.remove(&plan.key);
                if keys.is_empty() {
                    self.on_node.remove(&replica.node);
                }
            }
        }
    }
}

/// What a replica has for itself.
fn held(namespace: &str, replica: &ReplicaPlan, untouched_bytes: u64) -> Taken {
    Taken {
        by: format!("{namespace}/{}", replica.name),
        node: replica.node.clone(),
        numa_node: replica.numa_node,
        gpus: replica.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        cpus: if has_own_cpus(replica) { replica.cpus.clone() } else { Vec::new() },
        promised_bytes: replica.memory_bytes,
        untouched_bytes,
    }
}

#[cfg(test)]
mod tests;
