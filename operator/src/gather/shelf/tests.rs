use k8s_openapi::api::core::v1::Service;

use super::*;
use crate::live::child::{ClusterIp, LiveChild};

fn service(namespace: &str, name: &str, owner: &str, version: &str) -> LiveChild<ClusterIp> {
    let json = serde_json::json!({"metadata": {
        "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "resourceVersion": version,
        "labels": {"fathom.dev/owner-uid": owner},
    }});
    LiveChild::from(serde_json::from_value::<Service>(json).unwrap())
}

fn scope(name: &str) -> Arc<str> {
    name.into()
}

/// A68.
#[test]
fn a_replayed_list_changes_nothing_and_what_it_lacks_is_gone() {
    let shelf = Shelf::default();
    let all = scope("");
    for event in [Event::Init, Event::InitApply(service("a", "x", "u", "1")), Event::InitDone] {
        shelf.take(&all, event);
    }
    shelf.take(&all, Event::Apply(service("a", "y", "u", "2")));
    assert!(shelf.take(&all, Event::Init).is_empty());
    let replayed = shelf.take(&all, Event::InitApply(service("a", "x", "u", "1")));
    assert!(replayed.is_empty(), "the same object again is no change: {replayed:?}");
    assert_eq!(shelf.len(), 2, "nothing vanishes while a list goes on");
    let done = shelf.take(&all, Event::InitDone);
    assert!(matches!(&done[..], [Change::Gone(object)] if object.name() == "y"));
    assert_eq!(shelf.owned_by("u").len(), 1);
}

#[test]
fn the_list_of_one_namespace_leaves_the_others_alone() {
    let shelf = Shelf::default();
    shelf.take(&scope("a"), Event::Apply(service("a", "x", "u", "1")));
    shelf.take(&scope("b"), Event::Apply(service("b", "x", "v", "1")));
    shelf.take(&scope("a"), Event::Init);
    assert_eq!(shelf.take(&scope("a"), Event::InitDone).len(), 1);
    assert!(shelf.get(&ObjectKey::new("b", "x")).is_some());
    assert!(shelf.owned_by("u").is_empty());
}

#[test]
fn an_object_that_changes_hands_is_found_under_its_new_owner_only() {
    let shelf = Shelf::default();
    shelf.take(&scope(""), Event::Apply(service("a", "x", "u", "1")));
    let changes = shelf.take(&scope(""), Event::Apply(service("a", "x", "v", "2")));
    assert!(matches!(&changes[..], [Change::Changed { .. }]));
    assert!(shelf.owned_by("u").is_empty());
    assert_eq!(shelf.owned_by("v").len(), 1);
    assert!(shelf.take(&scope(""), Event::Delete(service("a", "x", "v", "3"))).len() == 1);
    assert!(shelf.owned_by("v").is_empty());
    assert!(shelf.take(&scope(""), Event::Delete(service("a", "x", "v", "3"))).is_empty());
}
