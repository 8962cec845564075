//! What is kept of a child: who it is, whose, what it was rendered from, and of its content what some step reads. There
//! are a dozen for each object; as typed objects they take ten times the memory.
//! In: objects of a watch. Out: [`LiveChild`]. Never: a field that no step reads.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use operator_render::names::{LABEL_COMPONENT, LABEL_OWNER_UID};
use operator_render::{RecordText, sealed_hash};

use super::pod::ROUTER;
use crate::gather::kept::Kept;
use crate::gather::shelf::ObjectKey;

/// A child as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveChild<C = ()> {
    pub key: ObjectKey,
    pub uid: Arc<str>,
    /// Uid of the InferenceCluster that it says it belongs to.
    pub owner: Option<Arc<str>>,
    /// Hash of what was rendered when it was written last.
    pub applied: Option<Arc<str>>,
    /// Being deleted.
    pub ending: bool,
    pub content: C,
}

impl<C> LiveChild<C> {
    pub(super) fn new(meta: &ObjectMeta, content: C) -> Self {
        Self {
            key: ObjectKey::of(meta),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            owner: label(meta, LABEL_OWNER_UID).map(Into::into),
            applied: sealed_hash(meta).map(Into::into),
            ending: meta.deletion_timestamp.is_some(),
            content,
        }
    }

    pub fn name(&self) -> &str {
        &self.key.name
    }
}

impl<C: PartialEq + Send + Sync + 'static> Kept for LiveChild<C> {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

/// The child of this name.
pub(crate) fn find<'l, C>(live: &'l [Arc<LiveChild<C>>], wanted: &str) -> Option<&'l LiveChild<C>> {
    live.iter().map(AsRef::as_ref).find(|seen| seen.name() == wanted)
}

pub(crate) fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// Kinds whose content nobody reads.
macro_rules! without_content {
    ($($kind:ty),*) => {$(
        impl From<$kind> for LiveChild {
            fn from(object: $kind) -> Self {
                Self::new(&object.metadata, ())
            }
        }
    )*};
}

without_content!(PodDisruptionBudget, NetworkPolicy, ServiceAccount, Role, RoleBinding);

/// Whose pods read a ConfigMap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounted {
    ByRouters,
    ByEngine,
}

impl From<PartialObjectMeta<ConfigMap>> for LiveChild<Mounted> {
    fn from(config: PartialObjectMeta<ConfigMap>) -> Self {
        let of_router = label(&config.metadata, LABEL_COMPONENT) == Some(ROUTER);
        Self::new(&config.metadata, if of_router { Mounted::ByRouters } else { Mounted::ByEngine })
    }
}

/// Where a Service is reached; `None` for one without an address of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterIp(pub Option<IpAddr>);

impl From<Service> for LiveChild<ClusterIp> {
    fn from(service: Service) -> Self {
        let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()?.parse().ok());
        Self::new(&service.metadata, ClusterIp(address))
    }
}

/// How far a Deployment's controller has come; a figure that was never told is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rollout {
    /// The controller has seen the newest spec: until then its figures speak of an earlier one.
    pub is_observed: bool,
    pub replicas: usize,
    pub updated: usize,
    pub ready: usize,
    pub terminating: usize,
}

impl From<Deployment> for LiveChild<Rollout> {
    fn from(deployment: Deployment) -> Self {
        let generation = deployment.metadata.generation;
        let status = deployment.status.unwrap_or_default();
        let figure = |figure: Option<i32>| usize::try_from(figure.unwrap_or(0)).unwrap_or(0);
        let rollout = Rollout {
            is_observed: status.observed_generation.is_some() && status.observed_generation >= generation,
            replicas: figure(status.replicas),
            updated: figure(status.updated_replicas),
            ready: figure(status.ready_replicas),
            terminating: figure(status.terminating_replicas),
        };
        Self::new(&deployment.metadata, rollout)
    }
}

impl From<ControllerRevision> for LiveChild<RecordText> {
    fn from(revision: ControllerRevision) -> Self {
        Self::new(&revision.metadata, RecordText::of(&revision))
    }
}
