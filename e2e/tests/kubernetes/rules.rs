//! What the API server refuses, with which sentence, and that a bad object harms no other.

use e2e::kubernetes::api::{CLUSTERS, DEFINITIONS, Patch};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};
use serde_json::{Value, json};

use crate::{READY, SOON};

/// A change of the needle's spec, and the part of the sentence that must come back.
const REFUSED: &[(&str, &str)] = &[
    (
        r#"{"runtime": {"device": "Cuda"}}"#,
        "spec.runtime.device Cuda needs gpus above 0 for prefill and decode",
    ),
    (
        r#"{"runtime": {"device": "Cuda"}, "decode": {"gpus": 1}}"#,
        "spec.runtime.device Cuda needs gpus above 0 for prefill and decode",
    ),
    (r#"{"decode": {"replicas": 0}}"#, "a prefill without a decode serves nobody"),
    (
        r#"{"model": {"source": {"hostPath": "/models/needle"}}}"#,
        "must have exactly one of hostPath, pvc, image, huggingFace",
    ),
    (
        r#"{"model": {"source": {"image": null}}}"#,
        "must have exactly one of hostPath, pvc, image, huggingFace",
    ),
    (
        r#"{"model": {"source": {"image": null, "hostPath": "models/needle"}}}"#,
        "hostPath must be absolute in a cluster",
    ),
    (r#"{"hostCache": {"mode": "Size"}}"#, "spec.hostCache.size belongs to mode Size"),
    (r#"{"hostCache": {"mode": "Off", "size": "1Gi"}}"#, "spec.hostCache.size belongs to mode Size"),
    (r#"{"hostCache": {"mode": "Ratio"}}"#, "spec.hostCache.ratio belongs to mode Ratio"),
    (r#"{"hostCache": {"ratio": 2}}"#, "spec.hostCache.ratio belongs to mode Ratio"),
    (r#"{"placement": {"mode": "Quantum"}}"#, "Unsupported value: \"Quantum\""),
    (r#"{"decode": {"gpus": -1}}"#, "should be greater than or equal to 0"),
    (r#"{"decode": {"replicas": 513}}"#, "should be less than or equal to 512"),
    (r#"{"admission": {"timeToFirstToken": "soon"}}"#, "timeToFirstToken"),
    (r#"{"model": {"contextTokens": 0}}"#, "should be greater than or equal to 1"),
];

/// Names that children could not be named after.
const BAD_NAMES: &[&str] = &["1needle", "a.b", "a23456789012345678901234567890123456789012"];

#[test]
fn every_rule_refuses_its_bad_example_with_a_sentence() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "rules", Level::Restricted).unwrap();
    for (change, sentence) in REFUSED {
        let change: Value = serde_json::from_str(change).unwrap();
        let object = needle("bad", |spec| json_patch::merge(spec, &change)).unwrap();
        let answer = namespace.try_apply(&object).unwrap();
        assert!(answer.status == 422 || answer.status == 400, "{change}: {} {}", answer.status, answer.text);
        assert!(answer.sentence().contains(sentence), "{change}: {}", answer.sentence());
    }
    for name in BAD_NAMES {
        let answer = namespace.try_apply(&needle(name, |_| {}).unwrap()).unwrap();
        assert!(
            answer.sentence().contains("must be a DNS label that starts with a letter"),
            "{name}: {}",
            answer.text
        );
    }
    let typo = needle("bad", |spec| spec["decode"]["gpu"] = json!(1)).unwrap();
    let path = format!("{}?fieldValidation=Strict", CLUSTERS.path(&namespace.name, ""));
    let answer = kubernetes.api.request("POST", &path, "application/json", typo.to_string()).unwrap();
    assert!(answer.sentence().contains("spec.decode.gpu"), "{}", answer.text);
}

/// A02: a stored object that this version cannot read is reported on itself, and is no one else's business.
#[test]
fn an_object_that_does_not_decode_is_reported_and_its_neighbour_runs() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "undecodable", Level::Restricted).unwrap();
    let shipped = kubernetes.api.get(DEFINITIONS, "", DEFINITION).unwrap();
    store_quantum(&namespace, "quantum", &shipped);

    let refused = namespace.wait_condition("quantum", "Accepted", "False", "DecodeFailed", SOON).unwrap();
    assert!(refused.message.contains("Quantum"), "{}", refused.message);

    let neighbour = needle("needle", |spec| spec["prefill"]["replicas"] = json!(0)).unwrap();
    namespace.apply(&neighbour).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.condition("quantum", "Accepted").unwrap().unwrap().reason, "DecodeFailed");

    // Corrected, it is like any other.
    namespace
        .change("quantum", &json!({"placement": {"mode": "Auto"}, "rollout": {"mode": "Plan"}}))
        .unwrap();
    namespace.wait_condition("quantum", "Accepted", "True", "", SOON).unwrap();
    namespace.wait_condition("quantum", "Planned", "True", "", SOON).unwrap();
}

const DEFINITION: &str = "inferenceclusters.fathom.dev";

/// Stores an object as a newer version of the definition would: the enum is widened, the object created, the
/// definition put back.
pub(crate) fn store_quantum(namespace: &Namespace<'_>, name: &str, shipped: &Value) {
    let api = &namespace.kubernetes().api;
    let path =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/placement/properties/mode/enum";
    let modes = shipped.pointer(path).unwrap_or_else(|| panic!("no {path}")).clone();
    let mut wider = modes.as_array().unwrap().clone();
    wider.push(json!("Quantum"));
    let replace = |value: &Value| json!([{"op": "replace", "path": path, "value": value}]);
    api.patch(DEFINITIONS, "", DEFINITION, Patch::Json, &replace(&wider.into())).unwrap();
    let object = needle(name, |spec| spec["placement"] = json!({"mode": "Quantum"})).unwrap();
    // The API server takes a moment to serve the wider schema.
    let stored = namespace.wait("the wider schema", SOON, || {
        let answer = namespace.try_apply(&object)?;
        Ok((answer.status < 300).then_some(()))
    });
    api.patch(DEFINITIONS, "", DEFINITION, Patch::Json, &replace(&modes)).unwrap();
    stored.unwrap();
}
