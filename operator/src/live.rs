//! The children of one object as the watches last saw them.
//! Never: objects without the owner's uid; data of ConfigMaps (they are named by their content).

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::core::PartialObjectMeta;

/// Sorted by name, each kind.
#[derive(Debug, Clone, Default)]
pub struct Live {
    /// Engine pods and router pods: label `fathom.dev/role` tells.
    pub pods: Vec<Arc<Pod>>,
    pub claims: Vec<Arc<ResourceClaim>>,
    pub config_maps: Vec<Arc<PartialObjectMeta<ConfigMap>>>,
    pub services: Vec<Arc<Service>>,
    pub deployments: Vec<Arc<Deployment>>,
    pub disruption_budgets: Vec<Arc<PodDisruptionBudget>>,
    pub network_policies: Vec<Arc<NetworkPolicy>>,
    pub service_accounts: Vec<Arc<ServiceAccount>>,
    pub roles: Vec<Arc<Role>>,
    pub role_bindings: Vec<Arc<RoleBinding>>,
    pub revisions: Vec<Arc<ControllerRevision>>,
}
