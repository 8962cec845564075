//! Everything that watches have seen, one shelf a kind.
//! In: changes. Out: the children of an object; who owns a uid. Never: I/O.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use fathom_crds::{InferenceCluster, InferenceClusterStatus};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::core::PartialObjectMeta;
use operator_render::RecordText;

use super::kept::Stored;
use super::shelf::{Change, ObjectKey, Shelf};
use crate::live::Live;
use crate::live::child::{ClusterIp, LiveChild, Mounted, Rollout};
use crate::live::claim::LiveClaim;
use crate::live::pod::LivePod;

/// One shelf a kind.
#[derive(Debug, Default)]
pub struct Stores {
    pub clusters: Shelf<Stored>,
    pub pods: Shelf<LivePod>,
    pub services: Shelf<LiveChild<ClusterIp>>,
    pub config_maps: Shelf<LiveChild<Mounted>>,
    pub deployments: Shelf<LiveChild<Rollout>>,
    pub disruption_budgets: Shelf<LiveChild>,
    pub network_policies: Shelf<LiveChild>,
    pub service_accounts: Shelf<LiveChild>,
    pub roles: Shelf<LiveChild>,
    pub role_bindings: Shelf<LiveChild>,
    pub revisions: Shelf<LiveChild<RecordText>>,
    /// Ours and strangers': strangers' hold GPUs too.
    pub claims: Shelf<LiveClaim>,
    pub slices: Shelf<ResourceSlice>,
    pub nodes: Shelf<Node>,
    pub namespaces: Shelf<PartialObjectMeta<Namespace>>,
    pub agent_pods: Shelf<LivePod>,
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
