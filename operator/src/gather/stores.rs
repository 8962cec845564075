//! Everything that watches have seen, one shelf a kind.
//! In: changes. Out: the children of an object; who owns a uid. Never: I/O.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use fathom_crds::{InferenceCluster, InferenceClusterStatus};
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::core::PartialObjectMeta;

use super::kept::{Kept as _, Stored};
use super::shelf::{Change, ObjectKey, Shelf};
use crate::live::Live;

/// One shelf a kind.
#[derive(Debug, Default)]
pub struct Stores {
    pub clusters: Shelf<Stored>,
    pub pods: Shelf<Pod>,
    pub services: Shelf<Service>,
    pub config_maps: Shelf<PartialObjectMeta<ConfigMap>>,
    pub deployments: Shelf<Deployment>,
    pub disruption_budgets: Shelf<PodDisruptionBudget>,
    pub network_policies: Shelf<NetworkPolicy>,
    pub service_accounts: Shelf<ServiceAccount>,
    pub roles: Shelf<Role>,
    pub role_bindings: Shelf<RoleBinding>,
    pub revisions: Shelf<ControllerRevision>,
    /// Ours and strangers': strangers' hold GPUs too.
    pub claims: Shelf<ResourceClaim>,
    pub slices: Shelf<ResourceSlice>,
    pub nodes: Shelf<Node>,
    pub namespaces: Shelf<PartialObjectMeta<Namespace>>,
    pub agent_pods: Shelf<Pod>,
    owners: RwLock<BTreeMap<Arc<str>, ObjectKey>>,
}

impl Stores {
    /// The decoded object of a name.
    pub fn cluster(&self, key: &ObjectKey) -> Option<Arc<InferenceCluster>> {
        match &*self.clusters.get(key)? {
            Stored::Decoded(cluster) => Some(Arc::clone(cluster)),
            Stored::Undecodable { .. } => None,
        }
    }

    /// A status that was written, until the watch shows it: so that the next pass does not write it again.
    pub fn remember_status(&self, key: &ObjectKey, seen: &InferenceCluster, status: InferenceClusterStatus) {
        self.clusters.edit(key, |stored| {
            let same = stored.meta().uid == seen.metadata.uid
                && stored.meta().resource_version == seen.metadata.resource_version;
            if let Stored::Decoded(cluster) = stored
                && same
            {
                Arc::make_mut(cluster).status = Some(status);
            }
        });
    }

    /// Keeps the names of owners in step; a changed object is both.
    pub fn note_owner(&self, change: &Change<Stored>) {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        if let Change::Gone(object) | Change::Changed { old: object, .. } = change
            && let Some(uid) = object.meta().uid.as_deref()
        {
            owners.remove(uid);
        }
        if let Change::Appeared(object) | Change::Changed { new: object, .. } = change
            && let Some(uid) = object.meta().uid.as_deref()
        {
            owners.insert(uid.into(), ObjectKey::of(object.meta()));
        }
    }

    /// The object that has a uid, if it is still there.
    pub fn owner(&self, uid: &str) -> Option<ObjectKey> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    /// The children of an object.
    pub fn live(&self, uid: &str) -> Live {
        Live {
            pods: self.pods.owned_by(uid),
            claims: self.claims.owned_by(uid),
            config_maps: self.config_maps.owned_by(uid),
            services: self.services.owned_by(uid),
            deployments: self.deployments.owned_by(uid),
            disruption_budgets: self.disruption_budgets.owned_by(uid),
            network_policies: self.network_policies.owned_by(uid),
            service_accounts: self.service_accounts.owned_by(uid),
            roles: self.roles.owned_by(uid),
            role_bindings: self.role_bindings.owned_by(uid),
            revisions: self.revisions.owned_by(uid),
        }
    }
}
