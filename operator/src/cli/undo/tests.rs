use std::path::Path;

use expect_test::expect;
use fathom_crds::InferenceClusterStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use super::*;
use crate::cli::planning;

fn story() -> InferenceCluster {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/examples/story.yaml");
    let mut object = planning::read(&path).unwrap();
    object.status = Some(InferenceClusterStatus {
        current_inputs: Some("flash-new".to_owned()),
        last_good_inputs: Some("flash-old".to_owned()),
        ..InferenceClusterStatus::default()
    });
    object
}

fn kept(name: &str, number: i64, image: &str) -> Recorded {
    let mut spec = story().spec;
    spec.decode.cpus = Some(8);
    Recorded { name: name.to_owned(), number, spec, image: image.to_owned(), revision: "r1".to_owned() }
}

#[test]
fn the_last_good_inputs_are_taken_unless_others_are_named() {
    let all = [kept("flash-new", 5, "i:1"), kept("flash-old", 4, "i:1"), kept("flash-older", 3, "i:1")];
    let object = story();
    assert_eq!(target(&object, None, &all).unwrap().name, "flash-old");
    assert_eq!(target(&object, Some("flash-older"), &all).unwrap().name, "flash-older");
    let error = target(&object, Some("flash-gone"), &all).unwrap_err().to_string();
    assert!(error.contains("flash-new, flash-old, flash-older"), "{error}");
    let never = InferenceCluster { status: None, ..object };
    let error = target(&never, None, &all).unwrap_err().to_string();
    assert!(error.contains("nothing was Ready yet"), "{error}");
}

#[test]
fn rollout_stays_and_an_image_is_named_only_where_the_default_moved() {
    let mut object = story();
    object.spec.rollout.mode = fathom_crds::inference_cluster::RolloutMode::Plan;
    let old = kept("flash-old", 4, "i:1");
    let same = restored(&object, &old, Some("i:1"));
    assert_eq!((same.spec.rollout.clone(), same.spec.runtime.image), (object.spec.rollout.clone(), None));
    let newer = kept("flash-new", 5, "i:2");
    let moved = restored(&object, &old, default_image(&[newer, old.clone()]));
    assert_eq!(moved.spec.runtime.image.as_deref(), Some("i:1"));
    assert_eq!(moved.spec.decode.cpus, Some(8));
    let mut named = kept("flash-named", 6, "other:1");
    named.spec.runtime.image = Some("other:1".to_owned());
    let back = restored(&object, &old, default_image(&[named, old.clone()]));
    assert_eq!(back.spec.runtime.image, None, "an image that somebody named is not the operator's default");
}

#[test]
fn what_changes_is_said_and_who_would_take_it_back() {
    let mut object = story();
    let manager = Some("argocd-controller".to_owned());
    object.metadata.managed_fields =
        Some(vec![ManagedFieldsEntry { manager, ..ManagedFieldsEntry::default() }]);
    let old = kept("flash-old", 4, "i:1");
    let back = restored(&object, &old, Some("i:1"));
    expect![[r#"
        flash has the spec of flash-old again
          ~ spec.decode.cpus: 16 -> 8
        argocd-controller applies this object and will take this back: change it in its source as well
    "#]]
    .assert_eq(&told(&object, &back, &old, false).unwrap());
    expect![[r#"
        flash has the spec of flash-old already
    "#]]
    .assert_eq(&told(&back, &back, &old, true).unwrap());
}
