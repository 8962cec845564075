//! Children as the API server is told of them: a kind, a name, JSON.
//! In: typed objects. Out: [`Child`]. Never: a typed copy of the server's answer (it may hold more than our types know).

use std::fmt::{self, Display, Formatter};

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::ApiResource;
use operator_render::sealed_hash;
use serde::Serialize;
use serde_json::Value;

use crate::live::child::LiveChild;

/// The kinds of children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ControllerRevision,
    ConfigMap,
    ResourceClaim,
    Pod,
    ServiceAccount,
    Role,
    RoleBinding,
    NetworkPolicy,
    Service,
    Deployment,
    PodDisruptionBudget,
}

impl Kind {
    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Kind::ControllerRevision => ApiResource::erase::<ControllerRevision>(&()),
            Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Kind::ResourceClaim => ApiResource::erase::<ResourceClaim>(&()),
            Kind::Pod => ApiResource::erase::<Pod>(&()),
            Kind::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Kind::Role => ApiResource::erase::<Role>(&()),
            Kind::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
            Kind::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Kind::Service => ApiResource::erase::<Service>(&()),
            Kind::Deployment => ApiResource::erase::<Deployment>(&()),
            Kind::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
        }
    }

    /// Whether a change means another object: most of what these hold cannot be changed, or must not be.
    pub(crate) fn is_immutable(self) -> bool {
        matches!(self, Kind::ControllerRevision | Kind::ConfigMap | Kind::ResourceClaim | Kind::Pod)
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A child that is to be written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Child {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// Hash of what was rendered, where the object carries it.
    pub(crate) hash: Option<String>,
    pub(crate) object: Value,
}

impl Child {
    pub(crate) fn new<K: Resource<DynamicType = ()> + Serialize>(kind: Kind, object: &K) -> Self {
        Self {
            kind,
            name: name(object.meta()).to_owned(),
            hash: sealed_hash(object.meta()).map(str::to_owned),
            object: serde_json::to_value(object).expect("typed objects serialise"),
        }
    }
}

impl Display for Child {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A live child, by the identity that names do not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Target {
    pub(crate) fn new(kind: Kind, meta: &ObjectMeta) -> Self {
        Self { kind, name: name(meta).to_owned(), uid: meta.uid.clone().unwrap_or_default() }
    }

    pub(crate) fn of<C>(kind: Kind, child: &LiveChild<C>) -> Self {
        Self { kind, name: child.name().to_owned(), uid: child.uid.to_string() }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

pub(crate) fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}
