//! The objects of one kind as its watch last saw them, findable by name and by the InferenceCluster that owns them.
//! In: events of a watch. Out: what changed, and objects. Never: I/O, a lock held across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;

use crate::gather::kept::Kept;

/// Namespace and name; the namespace is empty for cluster-wide kinds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an event came to. Replayed objects that are as they were come to nothing.
#[derive(Debug, Clone)]
pub enum Change<K> {
    Appeared(Arc<K>),
    Changed { old: Arc<K>, new: Arc<K> },
    Gone(Arc<K>),
}

impl<K> Change<K> {
    /// The object as it is, or as it last was.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Change::Appeared(object) | Change::Gone(object) | Change::Changed { new: object, .. } => object,
        }
    }
}

/// The objects of one kind.
#[derive(Debug)]
pub struct Shelf<K> {
    inner: RwLock<Inner<K>>,
}

#[derive(Debug)]
struct Inner<K> {
    items: BTreeMap<ObjectKey, Arc<K>>,
    /// Owner's uid and name. One flat set: a set for each owner would take more memory than most children.
    owned: BTreeSet<(Arc<str>, ObjectKey)>,
    /// Names seen since a list began, by the namespace of its watch (empty: all).
    listing: BTreeMap<Arc<str>, BTreeSet<ObjectKey>>,
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        let inner = Inner { items: BTreeMap::new(), owned: BTreeSet::new(), listing: BTreeMap::new() };
        Self { inner: RwLock::new(inner) }
    }
}

impl<K: Kept> Shelf<K> {
    /// Takes an event of the watch over `scope` (a namespace, or empty for all).
    pub fn take(&self, scope: &Arc<str>, event: Event<K>) -> Vec<Change<K>> {
        let mut inner = self.write();
        match event {
            Event::Init => {
                inner.listing.insert(scope.clone(), BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                let key = object.key();
                if let Some(seen) = inner.listing.get_mut(scope) {
                    seen.insert(key.clone());
                }
                inner.put(key, object).into_iter().collect()
            }
            Event::Apply(object) => {
                let key = object.key();
                inner.put(key, object).into_iter().collect()
            }
            Event::Delete(object) => inner.drop_key(&object.key()).into_iter().collect(),
            Event::InitDone => inner.end_listing(scope),
        }
    }

    /// Changes an object in place, ahead of the watch, which has the last word.
    pub fn edit(&self, key: &ObjectKey, edit: impl FnOnce(&mut K))
    where
        K: Clone,
    {
        if let Some(object) = self.write().items.get_mut(key) {
            edit(Arc::make_mut(object));
        }
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().items.get(key).cloned()
    }

    /// Children of an owner, by name.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let first = (Arc::from(uid), ObjectKey::new("", ""));
        let own = inner.owned.range(first..).take_while(|(owner, _)| &**owner == uid);
        own.filter_map(|(_, key)| inner.items.get(key).cloned()).collect()
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().items.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.read().items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<K: Kept> Inner<K> {
    fn put(&mut self, key: ObjectKey, object: K) -> Option<Change<K>> {
        let new = Arc::new(object);
        if let Some(old) = self.items.get(&key) {
            if old.same(&new) {
                return None;
            }
            if old.owner() != new.owner() {
                self.disown(&key);
            }
        }
        if let Some(owner) = new.owner() {
            self.owned.insert((owner.into(), key.clone()));
        }
        Some(match self.items.insert(key, new.clone()) {
            Some(old) => Change::Changed { old, new },
            None => Change::Appeared(new),
        })
    }

    fn drop_key(&mut self, key: &ObjectKey) -> Option<Change<K>> {
        self.disown(key);
        self.items.remove(key).map(Change::Gone)
    }

    fn disown(&mut self, key: &ObjectKey) {
        let Some(owner) = self.items.get(key).and_then(|object| object.owner()) else { return };
        let entry = (owner.into(), key.clone());
        self.owned.remove(&entry);
    }

    /// What a list did not show is gone.
    fn end_listing(&mut self, scope: &Arc<str>) -> Vec<Change<K>> {
        let Some(seen) = self.listing.remove(scope) else { return Vec::new() };
        let here = |key: &&ObjectKey| scope.is_empty() || key.namespace == *scope;
        let gone: Vec<ObjectKey> =
            self.items.keys().filter(here).filter(|key| !seen.contains(*key)).cloned().collect();
        gone.iter().filter_map(|key| self.drop_key(key)).collect()
    }
}

#[cfg(test)]
mod tests;
