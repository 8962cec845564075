//! Three workers of different machines: the right one is chosen, and the others' reasons are told.

use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, command_line, images};
use serde_json::{Value, json};

use crate::{READY, SOON};

fn with_gpus(name: &str, gpus: u32) -> Value {
    needle(name, |spec| {
        spec["runtime"] = json!({"device": "Cpu"});
        spec["placement"] = json!({"numa": "Preferred"});
        spec["prefill"]["replicas"] = json!(0);
        spec["decode"] = json!({"replicas": 1, "gpus": gpus, "cpus": 4});
    })
    .unwrap()
}

#[test]
fn placement_is_right_on_three_different_machines_and_explained() {
    let kubernetes = Kubernetes::with_fathom(Shape::ThreeScenes).unwrap();
    let namespace = Namespace::create(&kubernetes, "scenes", Level::Privileged).unwrap();
    let workers = images::workers().unwrap();
    namespace.apply(&with_gpus("four", 4)).unwrap();
    namespace.wait_ready("four", READY).unwrap();
    // Four GPUs on one NUMA node: the story's machine alone has them.
    assert_eq!(namespace.engines("four").unwrap()["four-unified-0"].node, workers[0]);
    let explained = command_line::fathom_ok(&["explain", "four", "-n", &namespace.name]).unwrap();
    for worker in &workers {
        assert!(explained.contains(worker.as_str()), "{worker} is missing in\n{explained}");
    }
    assert!(explained.contains("of 4 GPUs"), "{explained}");
}

#[test]
fn a_strict_wish_that_no_machine_meets_stays_pending_with_the_reason() {
    let kubernetes = Kubernetes::with_fathom(Shape::ThreeScenes).unwrap();
    let namespace = Namespace::create(&kubernetes, "too-strict", Level::Privileged).unwrap();
    let mut object = with_gpus("six", 6);
    object["spec"]["placement"]["numa"] = json!("Required");
    namespace.apply(&object).unwrap();
    let pending = namespace.wait_condition("six", "Planned", "False", "NotFeasible", SOON).unwrap();
    assert!(pending.message.contains("6 GPUs on one NUMA node"), "{}", pending.message);
    let status = namespace.cluster("six").unwrap()["status"].clone();
    let rejected = status["plan"]["rejected"].as_array().unwrap_or_else(|| panic!("{status}")).clone();
    for worker in images::workers().unwrap() {
        assert!(rejected.iter().any(|r| r["node"] == worker), "{worker} is missing in {rejected:?}");
    }
    assert!(namespace.engines("six").unwrap().is_empty());
    // Less strict, it runs across the NUMA nodes of the machine that has six.
    namespace.change("six", &json!({"placement": {"numa": "Preferred"}})).unwrap();
    namespace.wait_ready("six", READY).unwrap();
}
