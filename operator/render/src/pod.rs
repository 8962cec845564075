//! The pod of one engine replica.
//! In: a plan entry. Out: a pod that passes Pod Security "restricted" (unless it binds memory or mounts a folder of the
//! node), on the planned node, with the planned memory. Never: `nodeName` (it skips the scheduler, and with it claims
//! and cordons), a token.

mod parts;
mod resources;
mod volumes;

use engine_spec::Role;
use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodResourceClaim, PodSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_plan::{ComputeDevice, ReplicaPlan, placement_inputs};

use crate::desired::RenderInput;
use crate::names;
use crate::owned::{Texts, texts};

pub(crate) use parts::{Loading, container, environment, pod_base, without_overwriting};
pub(crate) use resources::{amounts, has_claim, whole_cpus};
pub(crate) use volumes::{config_mount, config_volume};

/// The pod of a plan entry. `metadata` carries the labels that the three objects of a replica share.
pub(crate) fn pod(input: &RenderInput<'_>, entry: &ReplicaPlan, mut metadata: ObjectMeta) -> Pod {
    let name = metadata.name.clone().unwrap_or_default();
    let template = &input.spec.pod_template;
    metadata.labels = Some(without_overwriting(metadata.labels.take().unwrap_or_default(), &template.labels));
    metadata.annotations = Some(without_overwriting(annotations(input, entry), &template.annotations));
    let claimed = has_claim(&input.enforcement.mode, entry);
    let claim = PodResourceClaim {
        name: names::CLAIM.to_owned(),
        resource_claim_name: Some(name.clone()),
        ..PodResourceClaim::default()
    };
    let spec = PodSpec {
        affinity: Some(on_node(&entry.node)),
        automount_service_account_token: Some(false),
        containers: vec![engine(input, entry)],
        resource_claims: claimed.then(|| vec![claim]),
        volumes: Some(volumes::volumes(input.spec, entry, &name)),
        ..pod_base(template)
    };
    Pod { metadata, spec: Some(spec), status: None }
}

fn engine(input: &RenderInput<'_>, entry: &ReplicaPlan) -> Container {
    let loading = Loading { weight_bytes: weight_bytes(input, entry) };
    let ports: &[_] =
        if entry.role == Role::Prefill { &[names::PORT_HTTP, names::PORT_GRPC] } else { &[names::PORT_HTTP] };
    let mut engine = container(input.image, ports, loading);
    engine.env = environment(&input.spec.pod_template.env, entry.gpus.len());
    engine.resources = Some(resources::resources(input, entry));
    if input.enforcement.bind_memory {
        // Under the default seccomp profile the calls that bind memory need it in the bounding set.
        parts::add_capability(&mut engine, "SYS_NICE");
    }
    engine.volume_mounts = Some(volumes::mounts(input.spec, entry));
    engine
}

/// What the operator reads back, instead of remembering.
fn annotations(input: &RenderInput<'_>, entry: &ReplicaPlan) -> Texts {
    let json =
        |text: Result<String, serde_json::Error>| text.expect("plain structs with string keys serialise");
    texts([
        (names::ANNOTATION_PLAN, json(serde_json::to_string(entry)).as_str()),
        (names::ANNOTATION_INPUTS, placement_inputs(input.spec, entry.role == Role::Prefill).as_str()),
        (names::ANNOTATION_ENFORCEMENT, json(serde_json::to_string(input.enforcement)).as_str()),
    ])
}

/// By the node's name, not by its label `kubernetes.io/hostname`, which may differ.
fn on_node(node: &str) -> Affinity {
    let named = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![named]), ..NodeSelectorTerm::default() };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Bytes that a replica loads before it is alive; 0 where the report does not say.
fn weight_bytes(input: &RenderInput<'_>, entry: &ReplicaPlan) -> u64 {
    let size = input.planned.report.sizes.iter().find(|size| size.role == entry.role);
    let ranks = match entry.device {
        ComputeDevice::Cuda => entry.gpus.len().max(1) as u64,
        ComputeDevice::Cpu => 1,
    };
    size.map_or(0, |size| size.weight_bytes_per_rank.saturating_mul(ranks))
}
