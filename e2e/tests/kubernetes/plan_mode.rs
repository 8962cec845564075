//! `rollout.mode: Plan`, healing while it holds, and the way back.

use e2e::kubernetes::api::{CONFIG_MAPS, PODS};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, command_line};
use serde_json::json;

use crate::{READY, SOON};

#[test]
fn a_new_object_in_mode_plan_gets_a_plan_and_no_pod() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "plan-new", Level::Restricted).unwrap();
    let uid = namespace
        .apply(&needle("needle", |spec| spec["rollout"] = json!({"mode": "Plan"})).unwrap())
        .unwrap();
    namespace.wait_condition("needle", "Progressing", "False", "PlanOnly", SOON).unwrap();
    let status = namespace.cluster("needle").unwrap()["status"].clone();
    assert_eq!(status["plan"]["replicas"].as_array().map(Vec::len), Some(2), "{status}");
    let owned = namespace.owned(&uid).unwrap();
    assert!(!owned.iter().any(|c| c.starts_with("pods/") || c.starts_with("services/")), "{owned:?}");
    namespace.change("needle", &json!({"rollout": {"mode": "Apply"}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
}

#[test]
fn mode_plan_shows_the_new_plan_and_heals_what_runs_by_the_old_one() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "plan-running", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let before = namespace.engines("needle").unwrap();

    let change =
        json!({"rollout": {"mode": "Plan"}, "decode": {"replicas": 2}, "model": {"contextTokens": 16384}});
    namespace.change("needle", &change).unwrap();
    namespace.wait_condition("needle", "Progressing", "False", "PlanOnly", SOON).unwrap();
    let status = namespace.cluster("needle").unwrap()["status"].clone();
    assert_eq!(status["plan"]["replicas"].as_array().map(Vec::len), Some(3), "{status}");
    assert_eq!(namespace.condition("needle", "Ready").unwrap().unwrap().status, "True");
    assert_eq!(namespace.engines("needle").unwrap(), before);

    // What runs is still cared for, as it was made.
    let decode = &before["needle-decode-0"];
    kubernetes.api.delete(PODS, &namespace.name, &decode.name, None).unwrap();
    let healed = namespace
        .wait("the decode pod of the old revision", READY, || {
            let now = namespace.engines("needle")?;
            Ok(now.get("needle-decode-0").filter(|pod| pod.ready && pod.uid != decode.uid).cloned())
        })
        .unwrap();
    assert_eq!((&healed.name, &healed.revision), (&decode.name, &decode.revision));
    namespace.delete_and_see_return(CONFIG_MAPS, &decode.name, SOON).unwrap();

    namespace.change("needle", &json!({"rollout": {"mode": "Apply"}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.engines("needle").unwrap().len(), 3);
}

#[test]
fn undo_brings_back_the_last_good_spec() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "undo", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let good = namespace.cluster("needle").unwrap();

    // A value beside what is added: who only takes a field away owns nothing afterwards.
    let bad = json!({"runtime": {"image": "fathom.dev/no-such-image:1"}, "model": {"contextTokens": 16384}});
    namespace.change("needle", &bad).unwrap();
    namespace.wait_condition("needle", "Degraded", "True", "", READY).unwrap();
    let said = command_line::fathom_ok(&["undo", "needle", "-n", &namespace.name]).unwrap();
    println!("{said}");
    namespace.wait_ready("needle", READY).unwrap();
    let now = namespace.cluster("needle").unwrap();
    assert_eq!(now["spec"]["runtime"], good["spec"]["runtime"]);
    assert_eq!(now["status"]["currentRevision"], good["status"]["currentRevision"]);
    let object = kubernetes.kubectl(&[
        "get",
        "icl",
        "needle",
        "-n",
        &namespace.name,
        "-o",
        "yaml",
        "--show-managed-fields",
    ]);
    assert!(object.unwrap().contains("manager: kubectl-fathom"));
}
