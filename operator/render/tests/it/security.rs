//! What every pod and every child has, whatever the mode.

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_plan::Mode;
use operator_render::{Desired, owner_uid};

use crate::scene::{Scene, dra, kubelet, needle, soft, story, unified};

fn scenes() -> Vec<Scene> {
    vec![story(dra()), story(kubelet()), story(soft()), story(Mode::Unmanaged), needle(), unified()]
}

fn pods(desired: &Desired) -> Vec<PodSpec> {
    let engines = desired.replicas.iter().map(|replica| replica.pod.spec.clone().unwrap());
    let router = desired.router.clone().unwrap().spec.unwrap().template.spec.unwrap();
    engines.chain([router]).collect()
}

#[test]
fn every_container_is_restricted_and_only_bound_memory_adds_a_capability() {
    for scene in scenes() {
        for (index, pod) in pods(&scene.render()).iter().enumerate() {
            let context = pod.security_context.as_ref().unwrap();
            assert_eq!(context.run_as_non_root, Some(true));
            assert_eq!(context.run_as_user, Some(65_532));
            assert_eq!(context.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
            let own = pod.containers[0].security_context.as_ref().unwrap();
            assert_eq!(own.allow_privilege_escalation, Some(false));
            assert_eq!(own.read_only_root_filesystem, Some(true));
            let capabilities = own.capabilities.as_ref().unwrap();
            assert_eq!(capabilities.drop.as_deref(), Some(["ALL".to_owned()].as_slice()));
            let router = index == scene.planned.plan.replicas.len();
            let bound = scene.enforcement.bind_memory && !router;
            assert_eq!(capabilities.add.is_some(), bound);
            assert_eq!(pod.automount_service_account_token, Some(router));
            assert_eq!(pod.enable_service_links, Some(false));
            assert!(pod.node_name.is_none());
        }
    }
}

/// A53: an image that shows all GPUs by default shows none to a pod that has asked for none.
#[test]
fn a_pod_without_gpus_sees_none() {
    for scene in scenes() {
        let desired = scene.render();
        for (index, pod) in pods(&desired).iter().enumerate() {
            let gpus = scene.planned.plan.replicas.get(index).map_or(0, |entry| entry.gpus.len());
            let env = pod.containers[0].env.clone().unwrap_or_default();
            let void = env
                .iter()
                .any(|env| env.name == "NVIDIA_VISIBLE_DEVICES" && env.value.as_deref() == Some("void"));
            assert_eq!(void, gpus == 0);
        }
    }
}

/// A25: every child is in its owner's namespace and belongs to it.
#[test]
fn every_child_belongs_to_its_owner_in_its_namespace() {
    for mut scene in scenes() {
        scene.planned.plan.routers = 2;
        let desired = scene.render();
        let mut all: Vec<&ObjectMeta> = vec![desired.revision.metadata()];
        for replica in &desired.replicas {
            all.extend([replica.config.metadata(), replica.pod.metadata()]);
            all.extend(replica.claim.iter().map(Metadata::metadata));
        }
        all.extend(desired.services.iter().map(Metadata::metadata));
        all.extend(desired.network_policies.iter().map(Metadata::metadata));
        all.push(desired.router_config.as_ref().unwrap().metadata());
        all.push(desired.router.as_ref().unwrap().metadata());
        all.push(desired.disruption_budget.as_ref().unwrap().metadata());
        all.push(desired.service_account.as_ref().unwrap().metadata());
        all.push(desired.role.as_ref().unwrap().metadata());
        all.push(desired.role_binding.as_ref().unwrap().metadata());
        for meta in all {
            let name = meta.name.as_deref().unwrap();
            assert!(name.len() <= 63, "{name}");
            assert_eq!(meta.namespace.as_deref(), Some("serving"), "{name}");
            assert_eq!(owner_uid(meta), Some("0b7c4a52-30a5-4f5e-9d0c-8b8d0ab5f001"), "{name}");
            let labels = meta.labels.as_ref().unwrap();
            assert_eq!(labels["app.kubernetes.io/managed-by"], "fathom", "{name}");
            assert_eq!(labels["fathom.dev/cluster"], scene.cluster.name(), "{name}");
        }
    }
}
