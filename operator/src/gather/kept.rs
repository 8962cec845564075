//! What is kept of an object: only what some step reads, so that a thousand objects fit into little memory, and so that
//! two versions are equal when nothing that matters differs.
//! In: an object of a watch. Out: the same, pruned; children become a [`crate::live::child::LiveChild`].
//! Never: a field dropped that some step reads.

use std::sync::Arc;

use fathom_crds::InferenceCluster;
use k8s_openapi::api::core::v1::{Namespace, Node, NodeStatus};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, PartialObjectMeta};

use super::shelf::ObjectKey;

/// An object that a [`crate::gather::shelf::Shelf`] keeps.
pub trait Kept: Send + Sync + 'static {
    fn key(&self) -> ObjectKey;

    /// Uid of the InferenceCluster that it says it belongs to: a child's.
    fn owner(&self) -> Option<&str> {
        None
    }

    /// Whether nothing that is kept differs.
    fn same(&self, other: &Self) -> bool;
}

/// Kinds of which so much is read that they stay what they are.
macro_rules! kept_whole {
    ($($kind:ty: $($field:ident),+;)*) => {$(
        impl Kept for $kind {
            fn key(&self) -> ObjectKey {
                ObjectKey::of(&self.metadata)
            }

            fn same(&self, other: &Self) -> bool {
                true $(&& self.$field == other.$field)+
            }
        }
    )*};
}

kept_whole! {
    ResourceSlice: metadata, spec;
    Node: metadata, spec, status;
    PartialObjectMeta<Namespace>: metadata;
}

/// Metadata without what changes with every write.
fn prune_meta(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    meta.resource_version = None;
    meta.self_link = None;
    meta.generate_name = None;
}

pub fn namespace(mut namespace: PartialObjectMeta<Namespace>) -> PartialObjectMeta<Namespace> {
    prune_meta(&mut namespace.metadata);
    namespace
}

pub fn slice(mut slice: ResourceSlice) -> ResourceSlice {
    prune_meta(&mut slice.metadata);
    for device in slice.spec.devices.iter_mut().flatten() {
        device.capacity = None;
        if let Some(attributes) = &mut device.attributes {
            attributes.retain(|name, _| names_uuid(name));
        }
    }
    slice
}

/// `uuid`, or `gpu.nvidia.com/uuid`.
pub(super) fn names_uuid(attribute: &str) -> bool {
    attribute.rsplit('/').next() == Some("uuid")
}

/// Of a node: labels, taints, cordon, readiness, GPUs that it offers. Its heartbeat is no change.
pub fn node(mut node: Node) -> Node {
    prune_meta(&mut node.metadata);
    node.metadata.annotations = None;
    node.metadata.finalizers = None;
    if let Some(spec) = &mut node.spec {
        spec.pod_cidr = None;
        spec.pod_cidrs = None;
        spec.provider_id = None;
    }
    node.status = node.status.map(pruned_node_status);
    node
}

fn pruned_node_status(status: NodeStatus) -> NodeStatus {
    let ready = status.conditions.into_iter().flatten().filter(|condition| condition.type_ == "Ready");
    let ready = ready.map(|mut condition| {
        condition.last_heartbeat_time = None;
        condition.last_transition_time = None;
        condition.message = None;
        condition.reason = None;
        condition
    });
    let mut offered = status.allocatable.unwrap_or_default();
    offered.retain(|resource, _| resource.ends_with("/gpu"));
    NodeStatus { conditions: Some(ready.collect()), allocatable: Some(offered), ..NodeStatus::default() }
}

/// An InferenceCluster as it is stored, or why it does not decode.
#[derive(Debug, Clone)]
pub enum Stored {
    Decoded(Arc<InferenceCluster>),
    Undecodable { metadata: Box<ObjectMeta>, error: String },
}

impl Kept for Stored {
    fn key(&self) -> ObjectKey {
        ObjectKey::of(self.meta())
    }

    fn same(&self, other: &Self) -> bool {
        self.meta().resource_version == other.meta().resource_version && self.meta().uid == other.meta().uid
    }
}

/// An InferenceCluster as a watch shows it.
pub fn stored(guard: DeserializeGuard<InferenceCluster>) -> Stored {
    match guard.0 {
        Ok(mut cluster) => {
            cluster.metadata.managed_fields = None;
            Stored::Decoded(Arc::new(cluster))
        }
        Err(InvalidObject { mut metadata, error }) => {
            metadata.managed_fields = None;
            Stored::Undecodable { metadata: Box::new(metadata), error }
        }
    }
}

impl Stored {
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Stored::Decoded(cluster) => &cluster.metadata,
            Stored::Undecodable { metadata, .. } => metadata,
        }
    }

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
            let node: Node = serde_json::from_value(serde_json::json!({
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
            super::node(node)
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
