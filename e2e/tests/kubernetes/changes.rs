//! Changes of a running object: what restarts, what does not, and who pairs with whom meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::kubernetes::api::CLUSTERS;
use e2e::kubernetes::chart;
use e2e::kubernetes::faults::{self, OPERATOR};
use e2e::kubernetes::namespace::PodState;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, audit, images};
use serde_json::{Value, json};

use crate::{READY, SOON};

/// A second tag of the engine's image: the same program, another reference, so another revision.
const OTHER_ENGINE: &str = "fathom.dev/fathom-engine:e2e-other";

#[test]
fn a_new_image_replaces_both_roles_and_revisions_never_pair_across() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    images::tag(images::ENGINE, OTHER_ENGINE).unwrap();
    changed(&kubernetes, "image", &json!({"runtime": {"image": OTHER_ENGINE}}));
}

#[test]
fn an_engine_setting_replaces_both_roles_and_revisions_never_pair_across() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    changed(&kubernetes, "setting", &json!({"model": {"indexer": {"keyFormat": "bf16"}}}));
}

/// Changes a Ready object of two decodes, watching every pairing until it is Ready again.
fn changed(kubernetes: &Kubernetes, name: &str, change: &Value) {
    let namespace = Namespace::create(kubernetes, name, Level::Restricted).unwrap();
    let object = needle("needle", |spec| spec["decode"]["replicas"] = json!(2)).unwrap();
    namespace.apply(&object).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let before = namespace.engines("needle").unwrap();
    let old_revision = one_revision(&before);

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch_pairs(&namespace, &done));
        namespace.change("needle", change).unwrap();
        let ready = namespace.wait_ready("needle", READY);
        done.store(true, Ordering::Relaxed);
        let seen = watcher.join().unwrap();
        ready.unwrap();
        assert!(seen.len() >= 2, "the watch of pairs saw only {seen:?}");
    });
    let after = namespace.engines("needle").unwrap();
    assert_ne!(one_revision(&after), old_revision);
    let uids =
        |pods: &BTreeMap<String, PodState>| pods.values().map(|p| p.uid.clone()).collect::<BTreeSet<_>>();
    assert!(
        uids(&before).is_disjoint(&uids(&after)),
        "a pod of the old revision serves the new one: {after:?}"
    );
}

fn one_revision(pods: &BTreeMap<String, PodState>) -> String {
    let revisions: BTreeSet<_> = pods.values().map(|pod| pod.revision.clone()).collect();
    assert_eq!(revisions.len(), 1, "{pods:?}");
    revisions.into_iter().next().unwrap()
}

/// Looks at every decode's prefills until `done`; the revisions of paired decodes seen. A pair of two revisions panics,
/// and so does one with a pod that never was.
fn watch_pairs(namespace: &Namespace<'_>, done: &AtomicBool) -> BTreeSet<String> {
    let (mut paired, mut revisions) = (BTreeSet::new(), BTreeMap::new());
    loop {
        // One more look after the end: new decodes are Ready as soon as they pair.
        let last = done.load(Ordering::Relaxed);
        let pods = namespace.pods("fathom.dev/cluster=needle").unwrap_or_default();
        // Pods that are gone by now may still be in a decode's answer, so what was seen stays known.
        revisions.extend(pods.iter().map(|pod| (pod.address.clone(), pod.revision.clone())));
        for pod in pods.iter().filter(|pod| pod.role == "decode") {
            // A pod that starts or ends does not answer.
            let Ok(info) = namespace.server_info(&pod.name) else { continue };
            assert_eq!(info["revision"], json!(pod.revision), "{}", pod.name);
            let peers = info["prefills"]["peers"].as_array().into_iter().flatten();
            for peer in peers.filter(|peer| peer["standing"] == "paired") {
                let address = peer["address"].as_str().unwrap().split(':').next().unwrap();
                let prefill = revisions.get(address);
                assert_eq!(prefill, Some(&pod.revision), "{} pairs with {peer}", pod.name);
                paired.insert(pod.revision.clone());
            }
        }
        if last {
            return paired;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn scaling_one_role_restarts_no_engine_pod() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "scale", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let before = namespace.engines("needle").unwrap();
    for (change, engines) in [
        (json!({"decode": {"replicas": 2}}), 3),
        (json!({"prefill": {"replicas": 2}}), 4),
        (json!({"router": {"replicas": 2}}), 4),
        (json!({"decode": {"replicas": 1}, "prefill": {"replicas": 1}, "router": {"replicas": 1}}), 2),
    ] {
        namespace.change("needle", &change).unwrap();
        namespace.wait_ready("needle", READY).unwrap();
        let now = namespace.engines("needle").unwrap();
        assert_eq!(now.len(), engines, "{change}: {now:?}");
        for (replica, pod) in &before {
            let same = now.get(replica).is_some_and(|p| p.uid == pod.uid && p.restarts == pod.restarts);
            assert!(same, "{change} restarted {replica}: {now:?}");
        }
    }
}

/// The image an object got when it was made stays its image: another default touches nothing.
#[test]
fn an_operator_with_another_default_engine_restarts_nothing() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    images::tag(images::ENGINE, OTHER_ENGINE).unwrap();
    let namespace = Namespace::create(&kubernetes, "default-engine", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let before = namespace.engines("needle").unwrap();
    let old = faults::uids(&kubernetes, OPERATOR).unwrap();

    chart::upgrade(&kubernetes, &["engine.image.tag=e2e-other"]).unwrap();
    faults::wait_replaced(&kubernetes, OPERATOR, &old).unwrap();
    namespace
        .holds_for(Duration::from_secs(10), || {
            let now = namespace.engines("needle")?;
            Ok((now != before).then(|| format!("engine pods were {before:?}, are {now:?}")))
        })
        .unwrap();
    // A change of the spec takes the new default.
    namespace.change("needle", &json!({"model": {"contextTokens": 16384}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let pods =
        kubernetes.api.list(e2e::kubernetes::api::PODS, &namespace.name, "fathom.dev/role=decode").unwrap();
    assert_eq!(pods[0]["spec"]["containers"][0]["image"], OTHER_ENGINE);
    chart::upgrade(&kubernetes, &[]).unwrap();
}

/// A28, A29, A30: a bad image stops at its gate, says so, and the way back and a second change both work unaided.
#[test]
fn a_bad_image_is_reported_and_reverting_works_without_hands() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    images::tag(images::ENGINE, OTHER_ENGINE).unwrap();
    let namespace = Namespace::create(&kubernetes, "bad-image", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let good = namespace.cluster("needle").unwrap()["status"]["currentRevision"].clone();

    namespace.change("needle", &json!({"runtime": {"image": "fathom.dev/no-such-image:1"}})).unwrap();
    let progressing = namespace.wait_condition("needle", "Progressing", "True", "", SOON).unwrap();
    println!("{progressing:?}");
    namespace.wait_condition("needle", "Degraded", "True", "", READY).unwrap();
    let status = namespace.cluster("needle").unwrap()["status"].clone();
    assert_eq!(status["lastGoodRevision"], good, "{status}");

    // B to C before B ever worked (A30).
    namespace.change("needle", &json!({"runtime": {"image": OTHER_ENGINE}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.engines("needle").unwrap().len(), 2);
    // And back to what it was at first.
    namespace.change("needle", &json!({"runtime": {"image": null}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.engines("needle").unwrap().len(), 2);
}

/// A01, A03: what is absent has a default, and zero is a number like any other.
#[test]
fn an_object_at_zero_is_content_also_after_a_restart_of_the_operator() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "zero", Level::Restricted).unwrap();
    let object = needle("needle", |spec| {
        spec["decode"] = json!({"gpus": 0});
        spec.as_object_mut().unwrap().remove("prefill");
        spec.as_object_mut().unwrap().remove("router");
    });
    namespace.apply(&object.unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.engines("needle").unwrap().len(), 1);

    namespace.change("needle", &json!({"decode": {"replicas": 0}, "router": {"replicas": 0}})).unwrap();
    namespace.wait_condition("needle", "Ready", "False", "ScaledToZero", READY).unwrap();
    // The last pod takes its time to end, and Progressing says so.
    namespace.wait_condition("needle", "Progressing", "False", "ScaledToZero", READY).unwrap();
    let before = faults::uids(&kubernetes, OPERATOR).unwrap();
    faults::kill(&kubernetes, OPERATOR).unwrap();
    faults::wait_replaced(&kubernetes, OPERATOR, &before).unwrap();
    let settled = namespace.cluster("needle").unwrap();
    namespace
        .holds_for(Duration::from_secs(5), || {
            let now = namespace.cluster("needle")?;
            Ok((now["metadata"]["resourceVersion"] != settled["metadata"]["resourceVersion"])
                .then(|| format!("the status changed: {now}")))
        })
        .unwrap();
    namespace.change("needle", &json!({"decode": {"replicas": 1}, "router": {"replicas": 1}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
}

/// A24: replicas and everything else of the spec belong to the user.
#[test]
fn the_operator_never_writes_a_spec() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "spec", Level::Restricted).unwrap();
    let mark = audit::mark().unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    for replicas in [2, 3, 1] {
        namespace.change("needle", &json!({"decode": {"replicas": replicas}})).unwrap();
    }
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.cluster("needle").unwrap()["spec"]["decode"]["replicas"], 1);
    let calls = audit::calls_since(mark, ":fathom-operator").unwrap();
    assert!(calls.iter().any(|call| call.resource == "inferenceclusters/status" && call.writes()));
    let wrong: Vec<_> = calls.iter().filter(|c| c.resource == CLUSTERS.plural && c.writes()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let object = kubernetes.kubectl(&[
        "get",
        "icl",
        "needle",
        "-n",
        &namespace.name,
        "-o",
        "json",
        "--show-managed-fields",
    ]);
    let object: Value = serde_json::from_str(&object.unwrap()).unwrap();
    for entry in object["metadata"]["managedFields"].as_array().unwrap() {
        let operators = entry["manager"].as_str().unwrap().starts_with("fathom-operator");
        assert!(!operators || entry["fieldsV1"]["f:spec"].is_null(), "{entry}");
    }
}
