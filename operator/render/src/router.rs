//! The router: a Deployment of equal pods without GPUs, and the right to see which engines are ready.
//! In: the plan. Out: [`RouterChildren`]; nothing when no router is asked for.
//! The Deployment replaces one pod after another and keeps the number of ready ones: routers hold no state worth a pause.

use fathom_crds::inference_cluster::PodTemplateSpec;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    ConfigMap, PodSpec, PodTemplateSpec as PodTemplate, ResourceRequirements, ServiceAccount,
    TopologySpreadConstraint,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::desired::RenderInput;
use crate::owned::{Children, Texts, sealed, selector};
use crate::pod::without_overwriting;
use crate::pod::{Loading, amounts, config_mount, config_volume, container, environment, pod_base};
use crate::{config, names};

const ROUTER: &str = "router";
const RBAC: &str = "rbac.authorization.k8s.io";

/// What a router holds for a request is its prompt while it is forwarded.
const MEMORY_REQUEST: &str = "64Mi";
const MEMORY_LIMIT: &str = "512Mi";

/// The router and what it needs.
#[derive(Debug, Default)]
pub(crate) struct RouterChildren {
    pub(crate) config: Option<ConfigMap>,
    pub(crate) deployment: Option<Deployment>,
    pub(crate) budget: Option<PodDisruptionBudget>,
    pub(crate) account: Option<ServiceAccount>,
    pub(crate) role: Option<Role>,
    pub(crate) binding: Option<RoleBinding>,
}

/// None when no router is asked for.
pub(crate) fn router(input: &RenderInput<'_>, children: &Children<'_>) -> Option<RouterChildren> {
    let routers = i32::try_from(input.planned.plan.routers).ok().filter(|routers| *routers > 0)?;
    let name = names::router(children.cluster());
    let meta = || children.meta(&name, children.labels(ROUTER));
    let config = config::router(input, children);
    let config_name = config.metadata.name.clone().unwrap_or_default();
    Some(RouterChildren {
        deployment: Some(deployment(input, children, meta(), routers, &config_name)),
        config: Some(config),
        budget: budget(children, meta(), routers),
        account: Some(sealed(ServiceAccount {
            metadata: meta(),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        })),
        role: Some(sealed(Role { metadata: meta(), rules: Some(vec![sees_endpoints()]) })),
        binding: Some(sealed(binding(children, meta(), &name))),
    })
}

fn deployment(
    input: &RenderInput<'_>,
    children: &Children<'_>,
    metadata: ObjectMeta,
    routers: i32,
    config_name: &str,
) -> Deployment {
    let template = &input.spec.pod_template;
    let mut labels = children.labels(ROUTER);
    labels.insert(names::LABEL_ROLE.to_owned(), ROUTER.to_owned());
    let template = PodTemplate {
        metadata: Some(ObjectMeta {
            labels: Some(without_overwriting(labels, &template.labels)),
            annotations: Some(template.annotations.clone()).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        }),
        spec: Some(pod_spec(input.image, template, own(children), config_name, children)),
    };
    sealed(Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(routers),
            selector: selector(own(children)),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            revision_history_limit: Some(2),
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    })
}

/// Labels that the router's pods never lose.
fn own(children: &Children<'_>) -> Texts {
    children.select(names::LABEL_ROLE, ROUTER)
}

fn pod_spec(
    image: &str,
    template: &PodTemplateSpec,
    own: Texts,
    config_name: &str,
    children: &Children<'_>,
) -> PodSpec {
    let mut router = container(image, &[names::PORT_HTTP], Loading { weight_bytes: 0 });
    router.env = environment(&[], 0);
    router.volume_mounts = Some(vec![config_mount()]);
    router.resources = Some(ResourceRequirements {
        requests: Some(amounts([("cpu", "100m".to_owned()), ("memory", MEMORY_REQUEST.to_owned())])),
        limits: Some(amounts([("memory", MEMORY_LIMIT.to_owned())])),
        claims: None,
    });
    PodSpec {
        automount_service_account_token: Some(true),
        service_account_name: Some(names::router(children.cluster())),
        containers: vec![router],
        volumes: Some(vec![config_volume(config_name)]),
        // Soft: two routers on one node are better than one router.
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            label_selector: Some(selector(own)),
            match_label_keys: Some(vec!["pod-template-hash".to_owned()]),
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            ..TopologySpreadConstraint::default()
        }]),
        ..pod_base(template)
    }
}

/// A budget for one pod would make draining its node wait for ever.
fn budget(children: &Children<'_>, metadata: ObjectMeta, routers: i32) -> Option<PodDisruptionBudget> {
    let spec = PodDisruptionBudgetSpec {
        min_available: Some(IntOrString::Int(routers - 1)),
        selector: Some(selector(own(children))),
        ..PodDisruptionBudgetSpec::default()
    };
    let budget = PodDisruptionBudget { metadata, spec: Some(spec), status: None };
    (routers > 1).then(|| sealed(budget))
}

/// Endpoint slices carry no names of their own, so the rule covers those of the namespace.
fn sees_endpoints() -> PolicyRule {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    PolicyRule {
        api_groups: Some(owned(&["discovery.k8s.io"])),
        resources: Some(owned(&["endpointslices"])),
        verbs: owned(&["get", "list", "watch"]),
        ..PolicyRule::default()
    }
}

fn binding(children: &Children<'_>, metadata: ObjectMeta, name: &str) -> RoleBinding {
    RoleBinding {
        metadata,
        role_ref: RoleRef { api_group: RBAC.to_owned(), kind: "Role".to_owned(), name: name.to_owned() },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(children.namespace().to_owned()),
            api_group: None,
        }]),
    }
}
