//! A small object, its children as they are rendered, and as they are when all is well.

use std::sync::Arc;

use engine_spec::Role;
use engine_spec::admission::SpeedSource;
use fathom_crds::InferenceCluster;
use k8s_openapi::api::apps::v1::DeploymentStatus;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodCondition, PodStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::PartialObjectMeta;
use operator_plan::{
    ComputeDevice, DevicePool, Enforcement, Mode, Plan, Planned, PlannedGpu, QueueLimit, ReplicaPlan, Report,
};
use operator_render::{Desired, Neighbours, Owner, RenderInput, render};

use super::super::child::name;
use crate::live::Live;
use crate::live::child::LiveChild;
use crate::live::pod::LivePod;

pub(super) const UID: &str = "0b7c4a52-30a5-4f5e-9d0c-8b8d0ab5f001";

const OBJECT: &str = "
apiVersion: fathom.dev/v1alpha1
kind: InferenceCluster
metadata: {name: flash}
spec:
  model: {name: deepseek-v4-flash, source: {image: {reference: 'models:1'}}}
  prefill: {replicas: 1, gpus: 1}
  decode: {replicas: 1, gpus: 1}
";

/// What is rendered from; each decode and prefill has a GPU of its own.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) cluster: InferenceCluster,
    pub(super) replicas: Vec<ReplicaPlan>,
    pub(super) routers: u32,
    pub(super) image: String,
    pub(super) first_token_ms: u64,
}

impl Scene {
    /// One prefill, so many decodes.
    pub(super) fn new(decodes: u32) -> Self {
        let decode = (0..decodes).map(|index| entry(Role::Decode, index, index + 1));
        Self {
            cluster: fathom_crds::read(OBJECT).unwrap(),
            replicas: [entry(Role::Prefill, 0, 0)].into_iter().chain(decode).collect(),
            routers: 1,
            image: "engine:1".to_owned(),
            first_token_ms: 10_000,
        }
    }

    pub(super) fn with_image(mut self, image: &str) -> Self {
        image.clone_into(&mut self.image);
        self
    }

    pub(super) fn render(&self) -> Desired {
        let queue_limit = QueueLimit {
            tokens: None,
            given: false,
            requests: 32,
            time_to_first_token_ms: self.first_token_ms,
            prefill_tokens_per_second: None,
            source: SpeedSource::WarmUp,
            derivation: String::new(),
        };
        let plan = Plan {
            name: "flash".to_owned(),
            revision: "b3a9dceef6".to_owned(),
            context_tokens: 1024,
            replicas: self.replicas.clone(),
            routers: self.routers,
            queue_limit,
        };
        let mode =
            Mode::Dra { driver: "gpu.nvidia.com".to_owned(), device_class: "gpu.nvidia.com".to_owned() };
        render(&RenderInput {
            owner: Owner { namespace: "serving", name: "flash", uid: UID },
            spec: &self.cluster.spec,
            planned: &Planned { plan, report: Report::default() },
            enforcement: &Enforcement {
                mode,
                because: String::new(),
                bind_memory: false,
                memory_because: String::new(),
            },
            image: &self.image,
            neighbours: &Neighbours { operator_namespace: "fathom-system".to_owned() },
        })
    }

    /// All children there and well.
    pub(super) fn live(&self) -> Live {
        live(&self.render())
    }
}

pub(super) fn entry(role: Role, index: u32, gpu: u32) -> ReplicaPlan {
    ReplicaPlan {
        name: format!("flash-{role}-{index}"),
        role,
        index,
        node: "n0".to_owned(),
        numa_node: Some(0),
        device: ComputeDevice::Cuda,
        gpus: vec![PlannedGpu { index: gpu, uuid: format!("GPU-{gpu}") }],
        cpus: vec![gpu],
        cpus_shared: false,
        memory_bytes: 1 << 30,
        memory_node: Some(0),
        device_pool: DevicePool { pages: 64, slots: 8, bytes: 1 << 30 },
        host_cache_bytes: 0,
        host_cache_limit: None,
    }
}

pub(super) fn live(desired: &Desired) -> Live {
    let mut revision = desired.revision.clone();
    revision.revision = 1;
    let configs = desired.replicas.iter().map(|replica| &replica.config).chain(&desired.router_config);
    let mut deployment = desired.router.clone();
    if let Some(deployment) = &mut deployment {
        deployment.metadata.generation = Some(1);
        deployment.status = Some(DeploymentStatus {
            observed_generation: Some(1),
            replicas: Some(1),
            updated_replicas: Some(1),
            ..DeploymentStatus::default()
        });
    }
    let claims: Vec<ResourceClaim> =
        desired.replicas.iter().filter_map(|replica| replica.claim.clone()).collect();
    Live {
        pods: desired.replicas.iter().map(|replica| pod(&replica.pod, "Running", true)).collect(),
        claims: seen(&claims),
        config_maps: seen(
            &configs
                .map(|config| PartialObjectMeta::<ConfigMap> {
                    metadata: config.metadata.clone(),
                    ..Default::default()
                })
                .collect::<Vec<_>>(),
        ),
        services: seen(&desired.services),
        deployments: seen(deployment.as_slice()),
        disruption_budgets: seen(desired.disruption_budget.as_slice()),
        network_policies: seen(&desired.network_policies),
        service_accounts: seen(desired.service_account.as_slice()),
        roles: seen(desired.role.as_slice()),
        role_bindings: seen(desired.role_binding.as_slice()),
        revisions: seen(&[revision]),
    }
}

/// Children as a watch has shown them.
fn seen<K, C>(objects: &[K]) -> Vec<Arc<LiveChild<C>>>
where
    K: Resource + Clone,
    LiveChild<C>: From<K>,
{
    let seen = |object: &K| {
        let mut object = object.clone();
        *object.meta_mut() = with_uid(object.meta());
        Arc::new(LiveChild::from(object))
    };
    objects.iter().map(seen).collect()
}

fn with_uid(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { uid: Some(format!("uid of {}", name(meta))), ..meta.clone() }
}

/// A live pod.
pub(super) fn pod(rendered: &Pod, phase: &str, ready: bool) -> Arc<LivePod> {
    let condition = PodCondition {
        type_: "Ready".to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        ..PodCondition::default()
    };
    let pod = Pod {
        metadata: with_uid(&rendered.metadata),
        spec: rendered.spec.clone(),
        status: Some(PodStatus {
            phase: Some(phase.to_owned()),
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        }),
    };
    Arc::new(pod.into())
}

pub(super) fn ending(pod: &Arc<LivePod>) -> Arc<LivePod> {
    Arc::new(LivePod { ending: true, ..LivePod::clone(pod) })
}
