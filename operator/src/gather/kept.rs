//! What is kept of an object: only what some step reads, so that a thousand objects fit into little memory, and so that
//! two versions are equal when nothing that matters differs.
//! In: an object of a watch. Out: the same, pruned. Never: a field dropped that `apply` or `status` reads.

use std::sync::Arc;

use fathom_crds::InferenceCluster;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, Pod, PodSpec, Service, ServiceAccount, ServiceSpec,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use operator_render::names::{LABEL_COMPONENT, LABEL_OWNER_UID, LABEL_REPLICA, LABEL_REVISION, LABEL_ROLE};

/// An object that a [`crate::gather::shelf::Shelf`] keeps.
pub trait Kept: Send + Sync + 'static {
    fn meta(&self) -> &ObjectMeta;

    /// Drops what nobody reads.
    fn prune(&mut self);

    /// Whether nothing that is kept differs.
    fn same(&self, other: &Self) -> bool;

    /// Uid of the InferenceCluster that it says it belongs to.
    fn owner(&self) -> Option<&str> {
        self.meta().labels.as_ref()?.get(LABEL_OWNER_UID).map(String::as_str)
    }
}

/// Labels of children that some step reads.
const READ_LABELS: [&str; 5] = [LABEL_OWNER_UID, LABEL_COMPONENT, LABEL_ROLE, LABEL_REPLICA, LABEL_REVISION];

/// Metadata without what changes with every write. The generation stays: whether a Deployment's status speaks of its
/// spec is told by it.
fn prune_meta(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    meta.resource_version = None;
    meta.self_link = None;
    meta.generate_name = None;
}

/// The same of a child, of which there are fifteen an object: a label says whose it is.
fn prune_child(meta: &mut ObjectMeta) {
    prune_meta(meta);
    meta.owner_references = None;
    meta.creation_timestamp = None;
    meta.labels.get_or_insert_default().retain(|label, _| READ_LABELS.contains(&label.as_str()));
}

/// A kind, what becomes of its metadata, and of the rest.
macro_rules! kept {
    ($kind:ty, $meta:path, $object:ident => $prune:block) => {
        impl Kept for $kind {
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn prune(&mut self) {
                let $object = self;
                $prune
                $meta(&mut $object.metadata);
            }

            fn same(&self, other: &Self) -> bool {
                self == other
            }
        }
    };
}

kept!(Service, prune_child, service => {
    service.status = None;
    if let Some(spec) = service.spec.take() {
        service.spec = Some(ServiceSpec { cluster_ip: spec.cluster_ip, ..ServiceSpec::default() });
    }
});
kept!(Deployment, prune_child, deployment => {
    if let Some(spec) = deployment.spec.take() {
        deployment.spec = Some(DeploymentSpec { replicas: spec.replicas, ..DeploymentSpec::default() });
    }
    if let Some(status) = &mut deployment.status {
        status.collision_count = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_update_time = None;
            condition.last_transition_time = None;
        }
    }
});
kept!(PodDisruptionBudget, prune_child, budget => {
    budget.status = None;
    budget.spec = None;
});
kept!(NetworkPolicy, prune_child, policy => {
    policy.spec = None;
});
kept!(ServiceAccount, prune_child, account => {
    account.secrets = None;
});
kept!(Role, prune_child, role => {
    role.rules = None;
});
kept!(RoleBinding, prune_child, binding => {
    binding.subjects = None;
});
kept!(ControllerRevision, prune_child, revision => {
    operator_render::compact(revision);
});
kept!(ResourceClaim, prune_meta, claim => {
    if let Some(status) = &mut claim.status {
        status.devices = None;
    }
});
kept!(ResourceSlice, prune_meta, slice => {
    for device in slice.spec.devices.iter_mut().flatten() {
        device.capacity = None;
        if let Some(attributes) = &mut device.attributes {
            attributes.retain(|name, _| names_uuid(name));
        }
    }
});
kept!(Pod, prune_child, pod => {
    prune_pod(pod);
});
kept!(Node, prune_meta, node => {
    prune_node(node);
});

/// `uuid`, or `gpu.nvidia.com/uuid`.
pub(super) fn names_uuid(attribute: &str) -> bool {
    attribute.rsplit('/').next() == Some("uuid")
}

/// Of a pod: where it is, what it mounts, how its containers are.
fn prune_pod(pod: &mut Pod) {
    if let Some(spec) = pod.spec.take() {
        let node_name = spec.node_name;
        pod.spec = Some(PodSpec { node_name, ..PodSpec::default() });
    }
    let Some(status) = &mut pod.status else { return };
    status.observed_generation = None;
    status.pod_ips = None;
    status.host_ips = None;
    status.host_ip = None;
    status.qos_class = None;
    status.start_time = None;
    for condition in status.conditions.iter_mut().flatten() {
        condition.observed_generation = None;
        condition.last_probe_time = None;
        condition.last_transition_time = None;
    }
    let containers = status.container_statuses.iter_mut().chain(&mut status.init_container_statuses);
    for container in containers.flatten() {
        container.image_id = String::new();
        container.volume_mounts = None;
        container.allocated_resources = None;
        container.allocated_resources_status = None;
        container.resources = None;
        container.user = None;
    }
}

/// Of a node: labels, taints, cordon, readiness, GPUs that it offers. Its heartbeat is no change.
fn prune_node(node: &mut Node) {
    node.metadata.annotations = None;
    node.metadata.finalizers = None;
    if let Some(spec) = &mut node.spec {
        spec.pod_cidr = None;
        spec.pod_cidrs = None;
        spec.provider_id = None;
    }
    let Some(status) = &mut node.status else { return };
    let mut kept = k8s_openapi::api::core::v1::NodeStatus::default();
    let ready = status.conditions.take().into_iter().flatten().filter(|condition| condition.type_ == "Ready");
    let ready = ready.map(|mut condition| {
        condition.last_heartbeat_time = None;
        condition.last_transition_time = None;
        condition.message = None;
        condition.reason = None;
        condition
    });
    kept.conditions = Some(ready.collect());
    let mut offered = status.allocatable.take().unwrap_or_default();
    offered.retain(|resource, _| resource.ends_with("/gpu"));
    kept.allocatable = Some(offered);
    *status = kept;
}

/// Metadata alone: kinds whose content nobody reads.
macro_rules! kept_metadata {
    ($kind:ty, $prune:path) => {
        impl Kept for PartialObjectMeta<$kind> {
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn prune(&mut self) {
                $prune(&mut self.metadata);
            }

            fn same(&self, other: &Self) -> bool {
                self.metadata == other.metadata
            }
        }
    };
}

kept_metadata!(ConfigMap, prune_child);
kept_metadata!(Namespace, prune_meta);

/// An InferenceCluster as it is stored, or why it does not decode.
#[derive(Debug, Clone)]
pub enum Stored {
    Decoded(Arc<InferenceCluster>),
    Undecodable { metadata: Box<ObjectMeta>, error: String },
}

impl Kept for Stored {
    fn meta(&self) -> &ObjectMeta {
        match self {
            Stored::Decoded(cluster) => &cluster.metadata,
            Stored::Undecodable { metadata, .. } => metadata,
        }
    }

    fn prune(&mut self) {
        match self {
            Stored::Decoded(cluster) => Arc::make_mut(cluster).metadata.managed_fields = None,
            Stored::Undecodable { metadata, .. } => metadata.managed_fields = None,
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.meta().resource_version == other.meta().resource_version && self.meta().uid == other.meta().uid
    }
}

impl Stored {
    /// Whether a reconcile of `self` can come to something else than one of `old` did: a new status alone does not.
    pub fn differs_materially(&self, old: &Self) -> bool {
        let matters = |meta: &ObjectMeta| {
            (
                meta.uid.clone(),
                meta.generation,
                meta.deletion_timestamp.is_some(),
                meta.labels.clone(),
                meta.annotations.clone(),
                meta.finalizers.clone(),
            )
        };
        matters(self.meta()) != matters(old.meta())
            || matches!((self, old), (Stored::Decoded(_), Stored::Undecodable { .. }))
            || matches!((self, old), (Stored::Undecodable { .. }, Stored::Decoded(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_of_a_node_is_no_change_and_a_cordon_is() {
        let node = |beat: &str, cordoned: bool| {
            let mut node: Node = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "n", "resourceVersion": beat.len().to_string()},
                "spec": {"unschedulable": cordoned},
                "status": {
                    "allocatable": {"cpu": "4", "nvidia.com/gpu": "8"},
                    "conditions": [
                        {"type": "Ready", "status": "True", "lastHeartbeatTime": beat},
                        {"type": "MemoryPressure", "status": "False"},
                    ],
                },
            }))
            .unwrap();
            node.prune();
            node
        };
        let early = node("2026-01-01T00:00:00Z", false);
        assert!(early.same(&node("2026-01-01T00:05:00Z", false)));
        assert!(!early.same(&node("2026-01-01T00:05:00Z", true)));
        let offered = early.status.unwrap().allocatable.unwrap();
        assert_eq!(offered.into_keys().collect::<Vec<_>>(), ["nvidia.com/gpu"]);
    }

    /// A14, A19.
    #[test]
    fn the_status_of_an_object_is_not_material_and_its_deletion_is() {
        let cluster = |edit: &dyn Fn(&mut InferenceCluster)| {
            let mut cluster = fathom_crds::read(include_str!("../../../crds/examples/story.yaml")).unwrap();
            cluster.metadata.generation = Some(1);
            edit(&mut cluster);
            Stored::Decoded(Arc::new(cluster))
        };
        let old = cluster(&|_| {});
        assert!(!cluster(&|c| c.status = Some(Default::default())).differs_materially(&old));
        assert!(cluster(&|c| c.metadata.generation = Some(2)).differs_materially(&old));
        let deleted = cluster(&|c| {
            let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
            c.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        });
        assert!(deleted.differs_materially(&old));
        let broken = Stored::Undecodable { metadata: Box::default(), error: "x".into() };
        assert!(broken.differs_materially(&old));
    }
}
