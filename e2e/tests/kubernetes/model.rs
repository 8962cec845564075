//! Where the model comes from: what is missing is named, and what comes later is found.

use e2e::cluster::root;
use e2e::kubernetes::api::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};
use serde_json::json;

use crate::{READY, SOON};

/// A04.
#[test]
fn a_missing_claim_is_named_and_found_once_it_is_there() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "model-claim", Level::Restricted).unwrap();
    let cluster = needle("needle", |spec| {
        spec["model"]["source"] = json!({"pvc": {"claimName": "weights", "path": "needle"}});
    });
    namespace.apply(&cluster.unwrap()).unwrap();
    let named = namespace.wait_condition("needle", "Ready", "False", "Unschedulable", SOON).unwrap();
    assert!(named.message.contains(r#"persistentvolumeclaim "weights" not found"#), "{}", named.message);
    let engines = namespace.engines("needle").unwrap();

    // The workers see this machine's disk, so the volume is the folder that the image was made from.
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": &namespace.name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": "",
            "hostPath": {"path": root().join("engine/testdata"), "type": "Directory"},
            "claimRef": {"namespace": &namespace.name, "name": "weights"},
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"},
        "spec": {
            "accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": &namespace.name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    kubernetes.api.delete(PERSISTENT_VOLUMES, "", &namespace.name, None).unwrap();
    kubernetes.api.create(PERSISTENT_VOLUMES, "", &volume).unwrap();
    kubernetes.api.create(PERSISTENT_VOLUME_CLAIMS, &namespace.name, &claim).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    // The pods of before were good all the time.
    let uids = |engines: std::collections::BTreeMap<_, e2e::kubernetes::namespace::PodState>| {
        engines.into_values().map(|pod| pod.uid).collect::<Vec<_>>()
    };
    assert_eq!(uids(namespace.engines("needle").unwrap()), uids(engines));
    kubernetes.api.delete(PERSISTENT_VOLUMES, "", &namespace.name, None).unwrap();
}
