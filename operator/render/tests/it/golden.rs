//! What is rendered, in full. `UPDATE_EXPECT=1` rewrites the files; read what changed.

use expect_test::{ExpectFile, expect_file};
use fathom_crds::inference_cluster::{ImageSource, ModelSource, PvcSource};
use operator_render::Desired;
use serde::Serialize;

use crate::scene::{Scene, dra, kubelet, needle, story, unified};

#[test]
fn the_story_with_claims() {
    check(&story(dra()).render(), &expect_file!["../golden/story-dra.yaml"]);
}

#[test]
fn the_story_by_the_kubelet() {
    let mut scene = story(kubelet());
    scene.enforcement.bind_memory = false;
    check_replicas(&scene, &expect_file!["../golden/story-kubelet.yaml"]);
}

#[test]
fn the_needle_model_from_an_image() {
    check(&needle().render(), &expect_file!["../golden/needle.yaml"]);
}

#[test]
fn one_process_for_both_jobs() {
    let desired = unified().render();
    let mut text = String::new();
    add_replicas(&mut text, &desired);
    add_all(&mut text, &desired.services);
    add_all(&mut text, desired.router_config.as_slice());
    expect_file!["../golden/unified.yaml"].assert_eq(&text);
}

#[test]
fn two_routers_have_a_budget() {
    let mut scene = needle();
    scene.planned.plan.routers = 2;
    let desired = scene.render();
    let mut text = String::new();
    add_all(&mut text, desired.disruption_budget.as_slice());
    add_all(&mut text, desired.router.as_slice());
    expect_file!["../golden/two-routers.yaml"].assert_eq(&text);
}

#[test]
fn the_model_on_a_claim_and_additions_of_the_user() {
    let mut scene = needle();
    scene.cluster.spec.model.source = ModelSource {
        pvc: Some(PvcSource { claim_name: "models".to_owned(), path: Some("/v4/needle/".to_owned()) }),
        ..ModelSource::default()
    };
    scene.cluster.spec.pod_template = serde_saphyr::from_str(
        "
labels: {team: search, fathom.dev/role: router}
annotations: {note: ours, fathom.dev/plan: theirs}
nodeSelector: {disk: fast}
tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
priorityClassName: high
imagePullSecrets: [{name: registry}]
env: [{name: RUST_LOG, value: debug}, {name: NVIDIA_VISIBLE_DEVICES, value: all}]
",
    )
    .unwrap();
    let mut text = String::new();
    let desired = scene.render();
    add_all(&mut text, &[&desired.replicas[0].pod]);
    add_all(&mut text, desired.router.as_slice());
    expect_file!["../golden/pvc-and-template.yaml"].assert_eq(&text);
}

#[test]
fn without_network_policies_there_are_none_and_no_router_leaves_nothing_of_it() {
    let mut scene = needle();
    scene.cluster.spec.network_policy.enabled = false;
    scene.planned.plan.routers = 0;
    let desired = scene.render();
    assert!(desired.network_policies.is_empty());
    assert!(desired.router.is_none() && desired.router_config.is_none());
    assert!(desired.service_account.is_none() && desired.role.is_none() && desired.role_binding.is_none());
    let names: Vec<_> =
        desired.services.iter().map(|service| service.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["needle", "needle-decode", "needle-prefill"]);
}

#[test]
fn scrapers_are_those_that_the_object_names() {
    let mut scene = needle();
    let from = &mut scene.cluster.spec.network_policy.scrape_from;
    from.namespace_labels.insert("kubernetes.io/metadata.name".to_owned(), "monitoring".to_owned());
    from.pod_labels.insert("app".to_owned(), "prometheus".to_owned());
    let mut text = String::new();
    add_all(&mut text, &scene.render().network_policies);
    expect_file!["../golden/scrapers.yaml"].assert_eq(&text);
}

#[test]
fn an_image_volume_names_its_reference() {
    let mut scene = needle();
    scene.cluster.spec.model.source = ModelSource {
        image: Some(ImageSource { reference: "models.example/v4@sha256:00".to_owned() }),
        ..ModelSource::default()
    };
    let pod = scene.render().replicas.remove(0).pod.spec.unwrap();
    let volume = pod.volumes.unwrap().into_iter().find(|volume| volume.name == "model").unwrap();
    assert_eq!(volume.image.unwrap().reference.as_deref(), Some("models.example/v4@sha256:00"));
}

fn check(desired: &Desired, expected: &ExpectFile) {
    let mut text = String::new();
    add_all(&mut text, std::slice::from_ref(&desired.revision));
    add_replicas(&mut text, desired);
    add_all(&mut text, &desired.services);
    add_all(&mut text, desired.router_config.as_slice());
    add_all(&mut text, desired.router.as_slice());
    add_all(&mut text, desired.disruption_budget.as_slice());
    add_all(&mut text, &desired.network_policies);
    add_all(&mut text, desired.service_account.as_slice());
    add_all(&mut text, desired.role.as_slice());
    add_all(&mut text, desired.role_binding.as_slice());
    expected.assert_eq(&text);
}

fn check_replicas(scene: &Scene, expected: &ExpectFile) {
    let mut text = String::new();
    add_replicas(&mut text, &scene.render());
    expected.assert_eq(&text);
}

fn add_replicas(text: &mut String, desired: &Desired) {
    for replica in &desired.replicas {
        add_all(text, std::slice::from_ref(&replica.config));
        add_all(text, replica.claim.as_slice());
        add_all(text, std::slice::from_ref(&replica.pod));
    }
}

fn add_all<T: Serialize>(text: &mut String, objects: &[T]) {
    for object in objects {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(object).unwrap());
    }
}
