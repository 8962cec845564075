//! What is spoken for: by pods that run, by plans whose pods do not exist yet. Two objects planned in the same moment
//! must not get the same GPU.
//! In: pods as they come and go, plans as they are made. Out: what others hold, and who waits for room.
//! Never: remembered across a restart (pods carry their plan entry); an entry of an object that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use operator_plan::{Present, ReplicaPlan, Taken, has_own_cpus};

use super::pods;
use super::shelf::ObjectKey;

/// Reservations; bounded by pods and objects that exist.
#[derive(Debug, Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By pod uid.
    pods: BTreeMap<Arc<str>, PodEntry>,
    /// By uid of the object.
    plans: BTreeMap<Arc<str>, PlanEntry>,
    /// Objects with replicas on a node.
    on_node: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Objects that found no place.
    waiting: BTreeSet<ObjectKey>,
}

#[derive(Debug)]
struct PodEntry {
    name: String,
    owner: Arc<str>,
    present: Present,
    taken: Taken,
    /// It runs or is about to; a terminating one still holds what it has.
    stays: bool,
}

#[derive(Debug)]
struct PlanEntry {
    key: ObjectKey,
    promised: Vec<(ReplicaPlan, Taken)>,
}

impl Ledger {
    /// A pod as it now is. Returns whether room came free.
    pub fn pod(&self, pod: &Pod) -> bool {
        let Some(uid) = pod.metadata.uid.as_deref() else { return false };
        let entry = pods::present(pod).zip(pods::owner(pod)).filter(|_| !pods::ended(pod));
        let mut inner = self.lock();
        let Some((present, owner)) = entry else { return inner.pods.remove(uid).is_some() };
        let by = format!("{}/{}", namespace(pod), present.replica.name);
        let taken = taken(&present.replica, by, present.untouched_bytes);
        let stays = !pods::ending(pod);
        let name = pod.metadata.name.clone().unwrap_or_default();
        inner.pods.insert(uid.into(), PodEntry { name, owner: owner.into(), present, taken, stays });
        false
    }

    /// A pod that is gone. Returns whether room came free.
    pub fn pod_gone(&self, pod: &Pod) -> bool {
        pod.metadata.uid.as_deref().is_some_and(|uid| self.lock().pods.remove(uid).is_some())
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
        let promise = |replica: &ReplicaPlan| {
            let by = format!("{}/{}", key.namespace, replica.name);
            (replica.clone(), taken(replica, by, replica.memory_bytes))
        };
        let promised = replicas.iter().map(promise).collect();
        inner.plans.insert(uid.into(), PlanEntry { key: key.clone(), promised });
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
        for pod in inner.pods.values().filter(|pod| &*pod.owner != uid) {
            let replica = &pod.present.replica;
            running.insert((&*pod.owner, replica.name.as_str(), replica.node.as_str(), replica.numa_node));
            taken.push(pod.taken.clone());
        }
        for (owner, plan) in inner.plans.iter().filter(|(owner, _)| &***owner != uid) {
            for (replica, promise) in &plan.promised {
                let is = (&**owner, replica.name.as_str(), replica.node.as_str(), replica.numa_node);
                if !running.contains(&is) {
                    taken.push(promise.clone());
                }
            }
        }
        taken
    }

    /// Replicas of this object that have a pod which stays, with its name, by name.
    pub fn present(&self, uid: &str) -> Vec<(String, Present)> {
        let inner = self.lock();
        let own = inner.pods.values().filter(|pod| &*pod.owner == uid && pod.stays);
        let mut present: Vec<(String, Present)> =
            own.map(|pod| (pod.name.clone(), pod.present.clone())).collect();
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
        for (replica, _) in &plan.promised {
            if let Some(keys) = self.on_node.get_mut(&replica.node) {
                keys.remove(&plan.key);
                if keys.is_empty() {
                    self.on_node.remove(&replica.node);
                }
            }
        }
    }
}

fn taken(replica: &ReplicaPlan, by: String, untouched_bytes: u64) -> Taken {
    Taken {
        by,
        node: replica.node.clone(),
        numa_node: replica.numa_node,
        gpus: replica.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        cpus: if has_own_cpus(replica) { replica.cpus.clone() } else { Vec::new() },
        promised_bytes: replica.memory_bytes,
        untouched_bytes,
    }
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
