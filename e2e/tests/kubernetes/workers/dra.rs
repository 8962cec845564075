//! DRA on the machine of the story: the scheduler obeys the plan, and what cannot be had is said.

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::kubernetes::api::{CLAIMS, PODS, SLICES};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, command_line, devices};
use serde_json::{Value, json};

use crate::{READY, SOON};

/// The needle with the story's four GPUs a role; it computes on CPUs, the GPUs are claimed.
fn story(name: &str, edit: impl FnOnce(&mut Value)) -> Value {
    needle(name, |spec| {
        spec["runtime"] = json!({"device": "Cpu"});
        spec["placement"] = json!({"mode": "DRA", "numa": "Preferred"});
        for role in ["prefill", "decode"] {
            spec[role] = json!({"replicas": 1, "gpus": 4, "cpus": 16});
        }
        edit(spec);
    })
    .unwrap()
}

fn planned(namespace: &Namespace<'_>, name: &str, replica: &str) -> Value {
    let status = namespace.cluster(name).unwrap()["status"].clone();
    let replicas = status["plan"]["replicas"].as_array().unwrap_or_else(|| panic!("no plan: {status}"));
    let found = replicas.iter().find(|r| r["name"] == replica);
    found.unwrap_or_else(|| panic!("no {replica}: {status}")).clone()
}

/// UUIDs that the claim of a pod was given: its devices joined with the slices.
fn claimed(namespace: &Namespace<'_>, pod: &str) -> BTreeSet<String> {
    let api = &namespace.kubernetes().api;
    let claim = api.get(CLAIMS, &namespace.name, pod).unwrap();
    let slices = api.list(SLICES, "", "").unwrap();
    let results = claim["status"]["allocation"]["devices"]["results"].as_array();
    let results = results.unwrap_or_else(|| panic!("claim {pod} is not allocated: {claim}"));
    results.iter().map(|result| devices::uuid(&slices, result).unwrap()).collect()
}

#[test]
fn prefill_gets_the_gpus_of_numa_node_0_and_decode_those_of_node_1_as_planned() {
    let kubernetes = Kubernetes::with_fathom(Shape::Story).unwrap();
    let namespace = Namespace::create(&kubernetes, "story", Level::Privileged).unwrap();
    namespace.apply(&story("flash", |_| {})).unwrap();
    namespace.wait_ready("flash", READY).unwrap();
    let engines = namespace.engines("flash").unwrap();
    for (replica, node) in [("flash-prefill-0", 0), ("flash-decode-0", 1)] {
        let plan = planned(&namespace, "flash", replica);
        assert_eq!(plan["numaNode"], node, "{plan}");
        let gpus: BTreeSet<String> =
            plan["gpus"].as_array().unwrap().iter().map(|g| g.as_str().unwrap().to_owned()).collect();
        assert_eq!(gpus, devices::scene_gpus("story", node).unwrap(), "{plan}");
        assert_eq!(claimed(&namespace, &engines[replica].name), gpus);
        let achieved = &plan["achieved"];
        assert_eq!(achieved["gpus"]["state"], "Achieved", "{plan}");
        // Most CPUs of the scene do not exist on this machine: the kernel refuses, and that is reported.
        assert_eq!(achieved["cpus"]["state"], "Refused", "{plan}");
        let binding = namespace.server_info(&engines[replica].name).unwrap()["binding"].clone();
        assert_eq!(binding["cpus"]["state"], "refused", "{binding}");
        // Every machine has a NUMA node 0; this one has no other.
        let memory = if node == 0 { "Achieved" } else { "Refused" };
        assert_eq!(achieved["memory"]["state"], memory, "{plan}");
        assert_eq!(binding["memory"]["state"], memory.to_lowercase(), "{binding}");
    }
    let decode = &planned(&namespace, "flash", "flash-decode-0")["achieved"];
    for resource in ["cpus", "memory"] {
        let message = decode[resource]["message"].as_str().unwrap_or_default();
        assert!(message.contains("EINVAL"), "{decode}");
    }
    let satisfied = namespace.condition("flash", "PlacementSatisfied").unwrap().unwrap();
    assert!(satisfied.message.contains("EINVAL"), "{satisfied:?}");
    let explained = command_line::fathom_ok(&["explain", "flash", "-n", &namespace.name]).unwrap();
    for part in ["NUMA node 0", "NUMA node 1", "DRA"] {
        assert!(explained.contains(part), "{part:?} is missing in\n{explained}");
    }
}

#[test]
fn required_binding_that_is_refused_leaves_pods_not_ready_saying_why_without_a_crash_loop() {
    let kubernetes = Kubernetes::with_fathom(Shape::Story).unwrap();
    let namespace = Namespace::create(&kubernetes, "strict", Level::Privileged).unwrap();
    namespace.apply(&story("flash", |spec| spec["placement"]["numa"] = json!("Required"))).unwrap();
    // Whichever engine answers first is told first; decode's NUMA node is the one that does not exist here.
    namespace
        .wait("decode's refused binding to be told", READY, || {
            let satisfied = namespace.condition("flash", "PlacementSatisfied")?;
            Ok(satisfied.filter(|c| c.status == "False" && c.message.contains("EINVAL")))
        })
        .unwrap();
    let engines = namespace.engines("flash").unwrap();
    namespace
        .holds_for(Duration::from_secs(15), || {
            let now = namespace.engines("flash")?;
            let calm = now.values().all(|pod| !pod.ready && pod.restarts == 0) && now.len() == engines.len();
            Ok((!calm).then(|| format!("engine pods are {now:?}")))
        })
        .unwrap();
    assert_eq!(namespace.condition("flash", "Ready").unwrap().unwrap().status, "False");
}

#[test]
fn a_gpu_that_a_stranger_holds_is_planned_around_or_waited_for() {
    let kubernetes = Kubernetes::with_fathom(Shape::Story).unwrap();
    let namespace = Namespace::create(&kubernetes, "stranger", Level::Privileged).unwrap();
    let gpu = devices::scene_gpus("story", 0).unwrap().into_iter().next().unwrap();
    devices::hold(&namespace, "stranger", &gpu).unwrap();

    // One role of four fits beside it; two do not.
    namespace.apply(&story("one", |spec| spec["prefill"]["replicas"] = json!(0))).unwrap();
    namespace.wait_ready("one", READY).unwrap();
    let one = planned(&namespace, "one", "one-unified-0");
    assert!(!one["gpus"].as_array().unwrap().iter().any(|g| *g == json!(gpu)), "{one}");
    namespace.apply(&story("two", |spec| spec["prefill"]["replicas"] = json!(0))).unwrap();
    let pending = namespace.wait_condition("two", "Planned", "False", "NotFeasible", SOON).unwrap();
    assert!(pending.message.contains("4 GPUs on one"), "{}", pending.message);

    // Given back, it is used without a hand.
    kubernetes.api.delete(PODS, &namespace.name, "stranger", Some(0)).unwrap();
    kubernetes.api.delete(CLAIMS, &namespace.name, "stranger", None).unwrap();
    namespace.wait_ready("two", READY).unwrap();
}

#[test]
fn a_gpu_that_vanishes_degrades_the_object_and_leaves_the_running_pod() {
    let kubernetes = Kubernetes::with_fathom(Shape::Story).unwrap();
    let namespace = Namespace::create(&kubernetes, "gpu-lost", Level::Privileged).unwrap();
    namespace.apply(&story("flash", |_| {})).unwrap();
    namespace.wait_ready("flash", READY).unwrap();
    let engines = namespace.engines("flash").unwrap();
    let lost = planned(&namespace, "flash", "flash-decode-0")["gpus"][2].as_str().unwrap().to_owned();

    let vanished = devices::vanish(&lost).unwrap();
    let degraded = namespace.wait_condition("flash", "Degraded", "True", "GpuLost", SOON);
    let now = namespace.engines("flash").unwrap();
    vanished.bring_back().unwrap();
    let degraded = degraded.unwrap();
    assert!(degraded.message.contains(&lost), "{}", degraded.message);
    assert_eq!(now, engines);
    namespace.wait_condition("flash", "Degraded", "False", "", SOON).unwrap();
    assert_eq!(namespace.engines("flash").unwrap(), engines);
}
