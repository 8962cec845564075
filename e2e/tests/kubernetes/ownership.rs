//! Children: they come back, they go with their owner, and a stranger's object is left alone.

use e2e::kubernetes::api::{
    CONFIG_MAPS, DEPLOYMENTS, NETWORK_POLICIES, PODS, ROLE_BINDINGS, ROLES, Resource, SERVICE_ACCOUNTS,
    SERVICES,
};
use e2e::kubernetes::objects::{is_owned_by, needle, uid};
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};
use serde_json::json;

use crate::{READY, SOON};

#[test]
fn what_is_deleted_comes_back_and_a_deleted_object_leaves_nothing() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "heal", Level::Restricted).unwrap();
    let owner = namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let before = namespace.owned(&owner).unwrap();

    for (resource, name) in [
        (SERVICES, "needle"),
        (SERVICES, "needle-decode"),
        (NETWORK_POLICIES, "needle-engine"),
        (ROLES, "needle-router"),
        (ROLE_BINDINGS, "needle-router"),
        (SERVICE_ACCOUNTS, "needle-router"),
        (DEPLOYMENTS, "needle-router"),
    ] {
        namespace.delete_and_see_return(resource, name, SOON).unwrap();
    }
    for (map, _) in named(&namespace, CONFIG_MAPS, &owner) {
        namespace.delete_and_see_return(CONFIG_MAPS, &map, SOON).unwrap();
    }
    let engines = namespace.engines("needle").unwrap();
    for pod in engines.values() {
        kubernetes.api.delete(PODS, &namespace.name, &pod.name, None).unwrap();
    }
    namespace
        .wait("other engine pods", READY, || {
            let now = namespace.engines("needle")?;
            let fresh = |(replica, pod): (&String, &e2e::kubernetes::namespace::PodState)| {
                pod.ready && engines.get(replica).is_some_and(|old| old.uid != pod.uid)
            };
            Ok((now.len() == engines.len() && now.iter().all(fresh)).then_some(()))
        })
        .unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    namespace
        .wait("the same children as before", SOON, || Ok((namespace.owned(&owner)? == before).then_some(())))
        .unwrap();

    namespace.delete_whole("needle", &owner, READY).unwrap();
}

/// Names and uids of the children of one kind.
fn named(namespace: &Namespace<'_>, resource: Resource, owner: &str) -> Vec<(String, String)> {
    let all = namespace.kubernetes().api.list(resource, &namespace.name, "").unwrap();
    let own = all.iter().filter(|object| is_owned_by(object, owner));
    own.map(|object| (object["metadata"]["name"].as_str().unwrap().to_owned(), uid(object))).collect()
}

#[test]
fn a_strangers_service_of_the_same_name_is_left_alone() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "name-taken", Level::Restricted).unwrap();
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "needle", "labels": {"of": "a-stranger"}},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]},
    });
    let theirs = kubernetes.api.create(SERVICES, &namespace.name, &foreign).unwrap();

    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    let refused = namespace.wait_condition("needle", "Accepted", "False", "NameTaken", SOON).unwrap();
    assert!(refused.message.contains("Service") && refused.message.contains("needle"), "{}", refused.message);
    let now = kubernetes.api.get(SERVICES, &namespace.name, "needle").unwrap();
    assert_eq!(now["metadata"]["resourceVersion"], theirs["metadata"]["resourceVersion"]);

    // The name free again, the object goes on by itself (A17).
    kubernetes.api.delete(SERVICES, &namespace.name, "needle", None).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
}

/// What an object owns is exactly what operator.md names.
#[test]
fn children_have_the_names_and_labels_that_were_agreed() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "names", Level::Restricted).unwrap();
    let object = needle("flash", |spec| spec["router"]["replicas"] = json!(2)).unwrap();
    let owner = namespace.apply(&object).unwrap();
    namespace.wait_ready("flash", READY).unwrap();
    let owned = namespace.owned(&owner).unwrap();
    for name in [
        "deployments/flash-router",
        "networkpolicies/flash-engine",
        "networkpolicies/flash-router",
        "poddisruptionbudgets/flash-router",
        "rolebindings/flash-router",
        "roles/flash-router",
        "serviceaccounts/flash-router",
        "services/flash",
        "services/flash-decode",
        "services/flash-prefill",
    ] {
        assert!(owned.iter().any(|child| child == name), "{name} is missing in {owned:?}");
    }
    for prefix in ["pods/flash-prefill-0-", "pods/flash-decode-0-", "configmaps/flash-prefill-0-"] {
        assert!(owned.iter().any(|child| child.starts_with(prefix)), "{prefix}* is missing in {owned:?}");
    }
    let engines = namespace.engines("flash").unwrap();
    let revisions: std::collections::BTreeSet<_> = engines.values().map(|pod| pod.revision.clone()).collect();
    assert_eq!(revisions.len(), 1, "{engines:?}");
    let status = namespace.cluster("flash").unwrap()["status"]["currentRevision"].clone();
    assert_eq!(Some(status.as_str().unwrap().to_owned()), revisions.into_iter().next());

    // A53: a pod without GPUs sees none, whatever its image says.
    for pod in kubernetes.api.list(PODS, &namespace.name, "fathom.dev/cluster=flash").unwrap() {
        let environment = pod["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
        let void = |v: &serde_json::Value| v["name"] == "NVIDIA_VISIBLE_DEVICES" && v["value"] == "void";
        assert!(environment.iter().any(void), "{}: {environment:?}", pod["metadata"]["name"]);
    }

    // One replica: no budget, or a drain would wait for ever.
    namespace.change("flash", &json!({"router": {"replicas": 1}})).unwrap();
    namespace
        .wait("the budget to go", SOON, || {
            let owned = namespace.owned(&owner)?;
            Ok((!owned.iter().any(|child| child.starts_with("poddisruptionbudgets/"))).then_some(()))
        })
        .unwrap();
}
