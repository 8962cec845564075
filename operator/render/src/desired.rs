//! What is rendered from, and what comes out.

use fathom_crds::InferenceClusterSpec;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use operator_plan::{Enforcement, Planned};

/// Everything that the children of one object depend on.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    pub owner: Owner<'a>,
    pub spec: &'a InferenceClusterSpec,
    pub planned: &'a Planned,
    pub enforcement: &'a Enforcement,
    /// Resolved image of engine and router.
    pub image: &'a str,
    /// [`operator_plan::placement_inputs`] of each role, for the pods' annotation, is computed by render.
    pub neighbours: &'a Neighbours,
}

/// The InferenceCluster that owns the children.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// Who besides the object's own pods may connect to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Namespace of the operator.
    pub operator_namespace: String,
}

/// The children that shall exist: nothing else with the owner's uid shall.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The inputs, kept for undo and for healing in mode Plan.
    pub revision: ControllerRevision,
    /// In the plan's order.
    pub replicas: Vec<DesiredReplica>,
    /// `flash` for clients, `flash-prefill`, `flash-decode` (headless) for the router.
    pub services: Vec<Service>,
    /// The router's configuration, named by its content: `flash-router-<hash5>`.
    pub router_config: Option<ConfigMap>,
    pub router: Option<Deployment>,
    pub disruption_budget: Option<PodDisruptionBudget>,
    pub network_policies: Vec<NetworkPolicy>,
    pub service_account: Option<ServiceAccount>,
    pub role: Option<Role>,
    pub role_binding: Option<RoleBinding>,
}

/// One engine pod with what must exist before it. All carry the pod's name.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredReplica {
    /// Name in the plan: `flash-prefill-0`.
    pub replica: String,
    pub config: ConfigMap,
    pub claim: Option<ResourceClaim>,
    pub pod: Pod,
}
