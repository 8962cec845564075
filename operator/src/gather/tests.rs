use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceClaim;
use node_facts::Reading;
use serde_json::json;

use super::fixtures::{engine_pod, replica, seen};
use super::*;
use crate::live::claim::LiveClaim;

fn facts(node: &str) -> NodeFacts {
    fathom_node_agent::scene::facts("story")
        .map(|facts| NodeFacts { node: node.to_owned(), ..facts })
        .unwrap()
}

fn node(name: &str, json: serde_json::Value) -> Arc<Node> {
    let mut node = json;
    node["metadata"]["name"] = json!(name);
    Arc::new(serde_json::from_value(node).unwrap())
}

fn live_claim(json: serde_json::Value) -> Arc<LiveClaim> {
    Arc::new(serde_json::from_value::<ResourceClaim>(json).unwrap().into())
}

#[test]
fn a_node_is_told_with_its_cordon_taints_readiness_and_the_age_of_its_facts() {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let nodes = [
        node("n1", json!({"status": {"conditions": ready}, "metadata": {"labels": {"rack": "1"}}})),
        node(
            "n2",
            json!({
                "spec": {"unschedulable": true, "taints": [
                    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                    {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                ]},
                "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            }),
        ),
    ];
    let reported = [(Arc::new(facts("n1")), Duration::from_millis(1500))];
    let states = node_states(&nodes, &reported);
    let n1 = &states["n1"];
    assert!(n1.ready && !n1.unschedulable && n1.taints.is_empty() && n1.labels["rack"] == "1");
    assert_eq!(n1.facts_age_ms, Some(1500));
    let n2 = &states["n2"];
    assert!(!n2.ready && n2.unschedulable);
    assert_eq!(n2.taints.len(), 1, "the cordon is told once");
    assert_eq!(n2.facts_age_ms, None, "no agent has reported");
}

#[test]
fn the_resource_of_gpus_is_the_well_known_one_before_others() {
    let offering = |resource: &str| node("n", json!({"status": {"allocatable": {resource: "8"}}}));
    assert_eq!(
        gpu_resource(&[offering("amd.com/gpu"), offering("nvidia.com/gpu")]).as_deref(),
        Some("nvidia.com/gpu")
    );
    assert_eq!(gpu_resource(&[offering("amd.com/gpu")]).as_deref(), Some("amd.com/gpu"));
    assert_eq!(gpu_resource(&[]), None);
}

#[test]
fn a_kubelet_aligns_only_with_the_topology_policy_and_exclusive_cpus_in_force() {
    let with = |topology: &str, cpus: &str| {
        let mut facts = facts("n");
        let value = |text: &str| Reading::Value(text.to_owned());
        facts.kubelet = Reading::Value(node_facts::KubeletFacts {
            cpu_manager: value(cpus),
            topology_manager: value(topology),
            reserved_cpus: Reading::Value(Vec::new()),
            memory_manager: Reading::Absent(String::new()),
            devices: Reading::Absent(String::new()),
            pods: Reading::Absent(String::new()),
            cgroups: Reading::Absent(String::new()),
        });
        aligning_nodes(&[(Arc::new(facts), Duration::ZERO)])
    };
    assert_eq!(with("single-numa-node", "static"), ["n"]);
    assert_eq!(with("restricted", "static"), ["n"]);
    assert!(with("single-numa-node", "none").is_empty(), "A40: the policy in force counts");
    assert!(with("best-effort", "static").is_empty());
}

#[test]
fn a_pod_with_an_allocated_claim_has_its_place_before_it_runs() {
    let ledger = Ledger::default();
    ledger.pod(&seen(&engine_pod("a-decode-0", "uid-a", "n1")));
    assert!(!present(&ledger, "uid-a", &Live::default())[0].holds);
    let claim = json!({
        "metadata": {"name": "a-decode-0-abcde"}, "spec": {}, "status": {"allocation": {}},
    });
    let live = Live { claims: vec![live_claim(claim)], ..Live::default() };
    let present = present(&ledger, "uid-a", &live);
    assert!(present[0].holds);
    assert_eq!(present[0].replica, replica("a-decode-0", "n1"));
}

#[test]
fn a_driver_whose_claims_run_is_not_forgotten_when_its_slices_vanish() {
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    });
    let live = Live { claims: vec![live_claim(claim)], ..Live::default() };
    assert_eq!(running_driver(&live).unwrap().device_class, "gpu.nvidia.com");
    assert_eq!(running_driver(&Live::default()), None);
}

#[test]
fn the_enforcement_of_what_runs_is_read_back_and_a_mixture_is_none() {
    let pod = |name: &str, bind_memory: bool| {
        let enforcement = Enforcement {
            mode: operator_plan::Mode::Unmanaged,
            because: "b".into(),
            bind_memory,
            memory_because: "m".into(),
        };
        let mut pod = engine_pod(name, "uid-a", "n1");
        let annotations: &mut BTreeMap<String, String> = pod.metadata.annotations.as_mut().unwrap();
        annotations.insert(
            operator_render::names::ANNOTATION_ENFORCEMENT.into(),
            serde_json::to_string(&enforcement).unwrap(),
        );
        seen(&pod)
    };
    let live = |pods: Vec<_>| Live { pods, ..Live::default() };
    let one = live(vec![pod("a-decode-0", true), pod("a-prefill-0", true)]);
    assert!(running_enforcement(&one).unwrap().bind_memory);
    let mixed = live(vec![pod("a-decode-0", true), pod("a-prefill-0", false)]);
    assert_eq!(running_enforcement(&mixed), None);
}
