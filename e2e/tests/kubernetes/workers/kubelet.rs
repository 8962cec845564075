//! Kubelet mode: device plugin, static CPU manager, topology manager. Workers a and b give out one real CPU each.

use std::time::Duration;

use e2e::kubernetes::api::PODS;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};
use serde_json::{Value, json};

use crate::READY;

fn aligned(name: &str, gpus: u32) -> Value {
    needle(name, |spec| {
        spec["runtime"] = json!({"device": "Cpu"});
        spec["placement"] = json!({"mode": "Kubelet", "memoryBinding": "Off"});
        for role in ["prefill", "decode"] {
            spec[role] = json!({"replicas": 1, "gpus": gpus, "cpus": 1});
        }
    })
    .unwrap()
}

#[test]
#[ignore = "slow: `./dev test slow`"]
fn the_kubelet_gives_gpus_and_cpu_of_one_numa_node_and_the_status_says_which() {
    let kubernetes = Kubernetes::with_fathom(Shape::Kubelet).unwrap();
    let namespace = Namespace::create(&kubernetes, "kubelet", Level::Restricted).unwrap();
    namespace.apply(&aligned("flash", 4)).unwrap();
    namespace.wait_ready("flash", READY).unwrap();
    let engines = namespace.engines("flash").unwrap();
    assert_ne!(engines["flash-prefill-0"].node, engines["flash-decode-0"].node, "{engines:?}");
    let status = namespace.cluster("flash").unwrap()["status"].clone();
    for replica in status["plan"]["replicas"].as_array().unwrap() {
        let pod = kubernetes
            .api
            .get(PODS, &namespace.name, &engines[replica["name"].as_str().unwrap()].name)
            .unwrap();
        assert_eq!(pod["status"]["qosClass"], "Guaranteed");
        // The fact of PodResources, not the wish of the plan.
        for resource in ["gpus", "cpus"] {
            assert_eq!(replica["achieved"][resource]["state"], "Achieved", "{replica}");
        }
        assert_eq!(replica["gpus"].as_array().map(Vec::len), Some(4), "{replica}");
    }
    assert_eq!(namespace.condition("flash", "PlacementSatisfied").unwrap().unwrap().status, "True");
}

/// A36, A37: the kubelet refuses for good, so replacements are few, and the object says what would fit.
#[test]
#[ignore = "slow: `./dev test slow`"]
fn a_topology_that_the_kubelet_refuses_is_reported_and_never_loops() {
    let kubernetes = Kubernetes::with_fathom(Shape::Kubelet).unwrap();
    let namespace = Namespace::create(&kubernetes, "affinity", Level::Restricted).unwrap();
    // Strangers hold two GPUs of each NUMA node's four, so that six are free and no node has four.
    for (index, worker) in e2e::kubernetes::images::workers().unwrap().iter().enumerate() {
        stranger(&namespace, &format!("stranger-{index}"), worker, 6);
    }
    namespace.apply(&aligned("flash", 4)).unwrap();
    let trouble = namespace
        .wait("a refusal that names the topology", READY, || {
            let planned = namespace.condition("flash", "Planned")?;
            let degraded = namespace.condition("flash", "Degraded")?;
            let told = |c: &e2e::kubernetes::namespace::Condition| {
                c.reason == "TopologyRejected" || c.reason == "NotFeasible"
            };
            Ok(degraded.filter(told).or(planned.filter(told)))
        })
        .unwrap();
    println!("{trouble:?}");
    let count =
        || namespace.pods("fathom.dev/cluster=flash").unwrap().iter().filter(|p| p.role != "router").count();
    let before = count();
    assert!(before <= 6, "{before} engine pods");
    namespace
        .holds_for(Duration::from_secs(20), || {
            let now = count();
            Ok((now > before).then(|| format!("{before} engine pods became {now}")))
        })
        .unwrap();
}

fn stranger(namespace: &Namespace<'_>, name: &str, node: &str, gpus: u32) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "box", "image": "fathom.dev/box:1", "command": ["/bin/busybox", "sleep", "100000"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "resources": {"limits": {"nvidia.com/gpu": gpus, "memory": "16Mi", "cpu": "10m"}},
            }],
        },
    });
    namespace.kubernetes().api.create(PODS, &namespace.name, &pod).unwrap();
}
