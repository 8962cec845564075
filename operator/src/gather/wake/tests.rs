//! A17: every kind that an object depends on, changed in every way, wakes the object and nobody else.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::runtime::watcher::Event;
use tokio::time::Instant;

use super::super::fixtures::{engine_pod, refuse, replica, run};
use super::super::kept;
use super::super::shelf::{ObjectKey, Shelf};
use super::*;
use crate::live::child::LiveChild;

/// Two objects, `a` on node n1 and `b` on node n2; `c` waits for room.
struct World {
    waker: Waker,
}

impl World {
    fn new() -> Self {
        let (agents, _streams) =
            crate::agents::Agents::new(crate::agents::AgentSettings::new("/none".into()));
        let sources = Arc::new(Sources {
            stores: Arc::default(),
            ledger: Arc::default(),
            engines: Arc::default(),
            agents,
            claims_served: true.into(),
        });
        let world = Self {
            waker: Waker {
                sources,
                queue: Arc::default(),
                gone: Box::new(|_| {}),
                agents_changed: Notify::new(),
            },
        };
        for name in ["a", "b", "c"] {
            world.take(|s| &s.clusters, cluster(name, json!({})), Waker::cluster);
        }
        let ledger = &world.waker.sources.ledger;
        ledger.promise("uid-a", &ObjectKey::new("ns", "a"), &[replica("a-decode-0", "n1")], false);
        ledger.promise("uid-b", &ObjectKey::new("ns", "b"), &[replica("b-decode-0", "n2")], false);
        ledger.promise("uid-c", &ObjectKey::new("ns", "c"), &[], true);
        world.woken();
        world
    }

    fn event<K: Kept>(
        &self,
        shelf: fn(&super::super::stores::Stores) -> &Shelf<K>,
        event: Event<K>,
        wake: fn(&Waker, &Change<K>),
    ) {
        for change in shelf(&self.waker.sources.stores).take(&"".into(), event) {
            wake(&self.waker, &change);
        }
    }

    fn take<K: Kept>(
        &self,
        shelf: fn(&super::super::stores::Stores) -> &Shelf<K>,
        object: K,
        wake: fn(&Waker, &Change<K>),
    ) {
        self.event(shelf, Event::Apply(object), wake);
    }

    /// Who has been woken since the last look.
    fn woken(&self) -> Vec<String> {
        let later = Instant::now() + std::time::Duration::from_secs(1);
        let mut names = Vec::new();
        while let Some(key) = self.waker.queue.take_due(later) {
            names.push(key.name.to_string());
            self.waker.queue.done(&key, crate::reconcile::queue::Next::Forget);
        }
        names.sort();
        names
    }
}

fn cluster(name: &str, changes: Value) -> Stored {
    let mut cluster = fathom_crds::read(include_str!("../../../../crds/examples/story.yaml")).unwrap();
    cluster.metadata.name = Some(name.into());
    cluster.metadata.namespace = Some("ns".into());
    cluster.metadata.uid = Some(format!("uid-{name}"));
    cluster.metadata.generation = changes["generation"].as_i64().or(Some(1));
    cluster.metadata.resource_version = Some(changes.to_string());
    cluster.metadata.finalizers = changes["finalizers"].as_str().map(|name| vec![name.to_owned()]);
    if let Some(status) = changes.get("status") {
        cluster.status = Some(serde_json::from_value(status.clone()).unwrap());
    }
    if changes["deleted"] == true {
        let time = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        cluster.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    }
    Stored::Decoded(Arc::new(cluster))
}

fn child<K: DeserializeOwned>(name: &str, owner: &str, more: Value) -> K {
    let mut object = json!({"metadata": {
        "name": name, "namespace": "ns", "uid": format!("uid of {name}"),
        "labels": {"fathom.dev/owner-uid": owner},
    }});
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

#[test]
fn the_object_itself_by_spec_deletion_and_finalizer_and_not_by_its_status() {
    let world = World::new();
    let take = |changes: Value| {
        world.take(|s| &s.clusters, cluster("a", changes), Waker::cluster);
        world.woken()
    };
    assert_eq!(take(json!({"status": {"endpoint": "x"}})), [""; 0]);
    assert_eq!(take(json!({"generation": 2})), ["a"]);
    assert_eq!(take(json!({"generation": 2, "finalizers": "x"})), ["a"]);
    assert_eq!(take(json!({"generation": 2, "finalizers": "x", "deleted": true})), ["a"], "A19");
    world.event(|s| &s.clusters, Event::Delete(cluster("a", json!({}))), Waker::cluster);
    assert_eq!(world.woken(), ["a", "c"], "its room may be what c waits for");
}

/// Appears, changes (as `more` says), goes: each wakes the owner.
macro_rules! each_child {
    ($($shelf:ident: $kind:ty, $more:expr;)*) => {$({
        let world = World::new();
        let seen = |more: Value| LiveChild::from(child::<$kind>("x", "uid-a", more));
        world.take(|s| &s.$shelf, seen(json!({})), Waker::child);
        assert_eq!(world.woken(), ["a"], "{} appears", stringify!($shelf));
        world.take(|s| &s.$shelf, seen(json!({})), Waker::child);
        assert_eq!(world.woken(), [""; 0], "{} again as it was", stringify!($shelf));
        world.take(|s| &s.$shelf, seen($more), Waker::child);
        assert_eq!(world.woken(), ["a"], "{} changes", stringify!($shelf));
        world.event(|s| &s.$shelf, Event::Delete(seen(json!({}))), Waker::child);
        assert_eq!(world.woken(), ["a"], "{} goes", stringify!($shelf));
    })*};
}

#[test]
fn a_child_of_each_kind_that_appears_changes_or_goes() {
    use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
    use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use k8s_openapi::api::rbac::v1::{Role, RoleBinding};

    let edited = json!({"metadata": {
        "name": "x", "namespace": "ns", "uid": "uid of x",
        "labels": {"fathom.dev/owner-uid": "uid-a"}, "annotations": {"fathom.dev/applied": "other"},
    }});
    each_child! {
        services: Service, json!({"spec": {"clusterIP": "10.0.0.1"}});
        deployments: Deployment, json!({"status": {"readyReplicas": 1}});
        disruption_budgets: PodDisruptionBudget, edited.clone();
        network_policies: NetworkPolicy, edited.clone();
        service_accounts: ServiceAccount, edited.clone();
        roles: Role, edited.clone();
        config_maps: PartialObjectMeta<ConfigMap>, edited.clone();
    }
    // Kinds that need more than metadata to be read at all.
    let world = World::new();
    let binding = |mut more: Value| {
        more["roleRef"] = json!({"apiGroup": "g", "kind": "Role", "name": "r"});
        LiveChild::from(child::<RoleBinding>("x", "uid-a", more))
    };
    world.take(|s| &s.role_bindings, binding(json!({})), Waker::child);
    assert_eq!(world.woken(), ["a"]);
    world.event(|s| &s.role_bindings, Event::Delete(binding(edited)), Waker::child);
    assert_eq!(world.woken(), ["a"]);
    let revision =
        |number: i64| LiveChild::from(child::<ControllerRevision>("x", "uid-b", json!({"revision": number})));
    world.take(|s| &s.revisions, revision(1), Waker::child);
    assert_eq!(world.woken(), ["b"]);
    world.take(|s| &s.revisions, revision(2), Waker::child);
    assert_eq!(world.woken(), ["b"]);
}

#[test]
fn a_pod_wakes_its_owner_and_one_that_ends_wakes_who_waits_for_room() {
    let world = World::new();
    let mut pod = engine_pod("a-decode-0", "uid-a", "n1");
    world.take(|s| &s.pods, LivePod::from(pod.clone()), Waker::pod);
    assert_eq!(world.woken(), ["a"]);
    run(&mut pod, "10.0.0.1", 0, true);
    world.take(|s| &s.pods, LivePod::from(pod.clone()), Waker::pod);
    assert_eq!(world.woken(), ["a"]);
    refuse(&mut pod, "Evicted");
    world.take(|s| &s.pods, LivePod::from(pod.clone()), Waker::pod);
    assert_eq!(world.woken(), ["a", "c"]);
    world.event(|s| &s.pods, Event::Delete(pod.into()), Waker::pod);
    assert_eq!(world.woken(), ["a"], "it held nothing any more");
    let stranger = child::<Pod>("s", "somebody", json!({}));
    world.take(|s| &s.pods, stranger.into(), Waker::pod);
    assert_eq!(world.woken(), [""; 0]);
}

#[test]
fn a_node_wakes_who_is_on_it_and_who_waits_by_label_taint_cordon_readiness_and_existence() {
    let node = |edit: Value| -> Node {
        let mut node = json!({
            "metadata": {"name": "n1"}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        for (pointer, value) in edit.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            node.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        serde_json::from_value(node).unwrap()
    };
    let world = World::new();
    world.take(|s| &s.nodes, kept::node(node(json!({}))), Waker::node);
    assert_eq!(world.woken(), ["a", "c"]);
    for edit in [
        json!({"/metadata/labels": {"rack": "1"}}),
        json!({"/spec/taints": [{"key": "k", "effect": "NoSchedule"}]}),
        json!({"/spec/unschedulable": true}),
        json!({"/status/conditions": [{"type": "Ready", "status": "Unknown"}]}),
        json!({"/status/allocatable": {"nvidia.com/gpu": "8"}}),
    ] {
        world.take(|s| &s.nodes, kept::node(node(edit.clone())), Waker::node);
        assert_eq!(world.woken(), ["a", "c"], "{edit}");
    }
    let beat = json!({
        "/status/allocatable": {"nvidia.com/gpu": "8", "cpu": "4"},
        "/status/conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
    });
    world.take(|s| &s.nodes, kept::node(node(beat)), Waker::node);
    assert_eq!(world.woken(), [""; 0], "a heartbeat");
    world.event(|s| &s.nodes, Event::Delete(node(json!({}))), Waker::node);
    assert_eq!(world.woken(), ["a", "c"]);
}

#[test]
fn a_strangers_claim_wakes_who_is_on_the_node_of_its_devices_and_who_waits() {
    let world = World::new();
    let slice = |uuid: &str| -> ResourceSlice {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "n2",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}],
        }}))
        .unwrap()
    };
    world.take(|s| &s.slices, slice("GPU-1"), Waker::slice);
    assert_eq!(world.woken(), ["b", "c"]);
    world.take(|s| &s.slices, slice("GPU-2"), Waker::slice);
    assert_eq!(world.woken(), ["b", "c"], "a GPU was exchanged");
    let claim = |owner: &str, allocated: bool| -> ResourceClaim {
        let result = json!({"driver": "gpu.nvidia.com", "pool": "p", "device": "gpu-0", "request": "r"});
        let status = json!({"allocation": {"devices": {"results": [result]}}});
        child("x", owner, json!({"spec": {}, "status": if allocated { status } else { json!({}) }}))
    };
    let mut stranger = claim("", false);
    stranger.metadata.labels = None;
    world.take(|s| &s.claims, LiveClaim::from(stranger.clone()), Waker::claim);
    assert_eq!(world.woken(), [""; 0], "it holds nothing yet");
    stranger.status = claim("", true).status;
    world.take(|s| &s.claims, LiveClaim::from(stranger.clone()), Waker::claim);
    assert_eq!(world.woken(), ["b", "c"]);
    world.event(|s| &s.claims, Event::Delete(stranger.into()), Waker::claim);
    assert_eq!(world.woken(), ["b", "c"]);
    let mut ours = claim("uid-a", true);
    ours.metadata.name = Some("ours".into());
    world.take(|s| &s.claims, ours.into(), Waker::claim);
    assert_eq!(world.woken(), ["a"]);
}

#[test]
fn a_namespace_that_admits_other_pods_wakes_the_objects_in_it() {
    let world = World::new();
    let namespace = |labels: Value| -> PartialObjectMeta<Namespace> {
        serde_json::from_value(json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "ns", "labels": labels},
        }))
        .unwrap()
    };
    world.take(|s| &s.namespaces, namespace(json!({})), Waker::namespace);
    assert_eq!(world.woken(), ["a", "b", "c"]);
    world.take(|s| &s.namespaces, namespace(json!({"team": "x"})), Waker::namespace);
    assert_eq!(world.woken(), [""; 0]);
    world.take(|s| &s.namespaces, namespace(json!({ENFORCE: "restricted"})), Waker::namespace);
    assert_eq!(world.woken(), ["a", "b", "c"]);
}

#[test]
fn facts_of_a_node_and_an_answer_of_an_engine() {
    let world = World::new();
    world.waker.facts(&["n1".to_owned()].into());
    assert_eq!(world.woken(), ["a", "c"]);
    world.waker.engine("uid-b");
    assert_eq!(world.woken(), ["b"]);
}
