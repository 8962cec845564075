//! What changes a pod and what does not; what is read back is what was written.

use fathom_crds::inference_cluster::RolloutMode;
use k8s_openapi::api::core::v1::{Pod, Service};
use operator_render::{enforced, image_for, owner_uid, plan_entry, record_name, recorded, sealed_hash};
use serde_json::json;

use crate::scene::{Scene, dra, kubelet, needle, story, unified};

/// If this fails, an upgrade of the operator restarts every engine there is.
#[test]
fn the_hash_of_the_story_is_what_it_was() {
    assert_eq!(story(dra()).pod_hashes(), ["flash-prefill-0-92af2", "flash-decode-0-b8759"]);
}

#[test]
fn the_same_input_twice_gives_the_same_bytes() {
    let scene = story(dra());
    assert_eq!(format!("{:?}", scene.render()), format!("{:?}", scene.clone().render()));
}

#[test]
fn scaling_admission_router_and_policies_change_no_pod() {
    let before = story(dra());
    let mut after = before.clone();
    let spec = &mut after.cluster.spec;
    spec.decode.replicas = 2;
    spec.router.replicas = 3;
    spec.rollout.mode = RolloutMode::Plan;
    spec.network_policy.enabled = false;
    spec.admission.max_queued_requests = Some(1);
    after.planned.plan.routers = 3;
    after.planned.plan.queue_limit.requests = 1;
    after.enforcement.because = "told otherwise".to_owned();
    assert_eq!(before.pod_hashes(), after.pod_hashes());
}

#[test]
fn another_place_size_image_or_template_is_another_pod() {
    let changes: [fn(&mut Scene); 8] = [
        |scene| scene.planned.plan.revision = "0123456789".to_owned(),
        |scene| scene.planned.plan.replicas[0].node = "n1".to_owned(),
        |scene| scene.planned.plan.replicas[0].gpus.swap(0, 1),
        |scene| scene.planned.plan.replicas[0].memory_bytes += 1,
        |scene| scene.image = "fathom.dev/fathom-engine:0.2.0".to_owned(),
        |scene| scene.enforcement.mode = kubelet(),
        |scene| scene.enforcement.bind_memory = false,
        |scene| drop(scene.cluster.spec.pod_template.labels.insert("a".to_owned(), "b".to_owned())),
    ];
    let before = story(dra()).pod_hashes();
    for (number, change) in changes.iter().enumerate() {
        let mut scene = story(dra());
        change(&mut scene);
        assert_ne!(scene.pod_hashes()[0], before[0], "change {number}");
    }
}

#[test]
fn a_gpu_that_got_another_number_is_the_same_gpu() {
    let before = story(dra());
    let mut after = before.clone();
    after.planned.plan.replicas[0].gpus[0].index = 7;
    assert_eq!(before.pod_hashes(), after.pod_hashes());
}

#[test]
fn a_driver_of_gpus_that_appears_touches_no_pod_without_gpus() {
    let before = needle();
    let mut after = before.clone();
    after.enforcement.mode = dra();
    assert_eq!(before.pod_hashes(), after.pod_hashes());
}

/// A23: what can change is in no selector.
#[test]
fn selectors_hold_only_what_never_changes() {
    let before = needle();
    let mut after = before.clone();
    after.cluster.spec.model.name = "another".to_owned();
    after.image = "other:1".to_owned();
    after.planned.plan.revision = "0123456789".to_owned();
    after.cluster.spec.pod_template.labels.insert("fathom.dev/owner-uid".to_owned(), "x".to_owned());
    let selectors = |scene: &Scene| {
        let desired = scene.render();
        let services: Vec<_> = desired.services.iter().map(selector).collect();
        let router = desired.router.unwrap().spec.unwrap();
        let labels = router.template.metadata.unwrap().labels.unwrap();
        for (key, value) in router.selector.match_labels.iter().flatten() {
            assert_eq!(labels.get(key), Some(value));
        }
        let policies: Vec<_> =
            desired.network_policies.into_iter().map(|policy| policy.spec.unwrap().pod_selector).collect();
        (services, router.selector, policies)
    };
    assert_eq!(selectors(&before), selectors(&after));
    let uid = "0b7c4a52-30a5-4f5e-9d0c-8b8d0ab5f001";
    assert_eq!(
        json!(selectors(&before).0),
        json!([
            {"fathom.dev/owner-uid": uid, "fathom.dev/role": "router"},
            {"fathom.dev/owner-uid": uid, "fathom.dev/owns-requests": "true"},
            {"fathom.dev/owner-uid": uid, "fathom.dev/role": "prefill"},
        ])
    );
}

#[test]
fn the_decode_service_finds_decode_and_unified_pods_with_one_selector() {
    let decode_service = |scene: &Scene| {
        scene.render().services.into_iter().find(|service| name(service) == "needle-decode").unwrap()
    };
    assert_eq!(decode_service(&needle()), decode_service(&unified()));
    for (scene, expected) in [(needle(), [false, true].as_slice()), (unified(), [true].as_slice())] {
        let selected = selector(&decode_service(&scene));
        let found: Vec<bool> =
            scene.render().replicas.iter().map(|replica| matches(&replica.pod, &selected)).collect();
        assert_eq!(found, expected);
    }
}

/// A21: an object that the API server has filled with defaults still carries the hash of what was sent.
#[test]
fn defaults_of_the_server_do_not_change_the_hash() {
    let desired = needle().render();
    let mut live = desired.router.clone().unwrap();
    let spec = live.spec.as_mut().unwrap();
    spec.progress_deadline_seconds = Some(600);
    spec.template.spec.as_mut().unwrap().scheduler_name = Some("default-scheduler".to_owned());
    assert_eq!(sealed_hash(&live.metadata), sealed_hash(&needle().render().router.unwrap().metadata));
    assert!(sealed_hash(&live.metadata).is_some());
}

/// A22: only `podTemplate` reaches the children.
#[test]
fn annotations_and_labels_of_the_object_reach_no_child() {
    let before = needle();
    let mut after = before.clone();
    after.cluster.metadata.annotations = Some([("note".to_owned(), "x".to_owned())].into());
    after.cluster.metadata.labels = Some([("team".to_owned(), "x".to_owned())].into());
    assert_eq!(format!("{:?}", before.render()), format!("{:?}", after.render()));
}

#[test]
fn what_a_pod_was_made_from_is_read_back() {
    let scene = story(dra());
    let desired = scene.render();
    for (replica, entry) in desired.replicas.iter().zip(&scene.planned.plan.replicas) {
        assert_eq!(&plan_entry(&replica.pod).unwrap(), entry);
        assert_eq!(enforced(&replica.pod).unwrap(), scene.enforcement);
        assert_eq!(owner_uid(&replica.pod.metadata), Some("0b7c4a52-30a5-4f5e-9d0c-8b8d0ab5f001"));
    }
    assert!(plan_entry(&Pod::default()).is_none());
}

#[test]
fn a_recorded_change_is_read_back_without_its_rollout() {
    let mut scene = needle();
    scene.cluster.spec.rollout.mode = RolloutMode::Plan;
    let revision = scene.render().revision;
    let again = recorded(&revision).unwrap();
    assert_eq!(again.image, scene.image);
    assert_eq!(again.revision, "b3a9dceef6");
    assert_eq!(again.spec.rollout.mode, RolloutMode::Apply);
    assert_eq!(again.name, record_name("needle", &scene.cluster.spec, &scene.image));
    let digits = again.name.strip_prefix("needle-").unwrap();
    assert!(digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digits}");
    scene.cluster.spec.rollout.mode = RolloutMode::Apply;
    assert_eq!(scene.render().revision, revision);
}

#[test]
fn an_image_stays_until_the_spec_changes() {
    let mut scene = needle();
    scene.image = "engine:1".to_owned();
    let newest = recorded(&scene.render().revision).unwrap();
    let spec = &mut scene.cluster.spec;
    assert_eq!(image_for(spec, None, "engine:2"), "engine:2");
    assert_eq!(image_for(spec, Some(&newest), "engine:2"), "engine:1");
    spec.rollout.mode = RolloutMode::Plan;
    assert_eq!(image_for(spec, Some(&newest), "engine:2"), "engine:1");
    spec.decode.replicas = 2;
    assert_eq!(image_for(spec, Some(&newest), "engine:2"), "engine:2");
    spec.runtime.image = Some("mine:3".to_owned());
    assert_eq!(image_for(spec, Some(&newest), "engine:2"), "mine:3");
}

fn selector(service: &Service) -> std::collections::BTreeMap<String, String> {
    service.spec.as_ref().unwrap().selector.clone().unwrap()
}

fn name(service: &Service) -> &str {
    service.metadata.name.as_deref().unwrap()
}

fn matches(pod: &Pod, selected: &std::collections::BTreeMap<String, String>) -> bool {
    let labels = pod.metadata.labels.as_ref().unwrap();
    selected.iter().all(|(key, value)| labels.get(key) == Some(value))
}
