//! Kubelet mode: device plugin, static CPU manager, topology manager. Workers a and b give out one real CPU each, which
//! their scene has on NUMA node 0 (a) and 1 (b).

use std::time::Duration;

use e2e::kubernetes::api::PODS;
use e2e::kubernetes::chart;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};
use serde_json::{Value, json};

use crate::{READY, SOON};

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

/// A36, A37: the kubelet refuses for good, so replacements are few, and the object says what would fit. The planner knows
/// what a kubelet gave to whom, so it is the agents' silence that lets it ask for what cannot be had.
#[test]
fn a_topology_that_the_kubelet_refuses_is_reported_and_never_loops() {
    let kubernetes = Kubernetes::with_fathom(Shape::Kubelet).unwrap();
    let namespace = Namespace::create(&kubernetes, "affinity", Level::Restricted).unwrap();
    chart::upgrade(&kubernetes, &["nodeAgent.nodeSelector.nowhere=here"]).unwrap();
    // Strangers hold the four GPUs beside the one CPU; the four that are free have none beside them. The kubelet gives
    // GPUs of the lowest NUMA node to who asks for no whole CPU, and worker b has its CPU on the other.
    let held = ["a-0", "b-0", "b-1"];
    for name in held {
        stranger(&namespace, name, &name[..1], 4);
        namespace
            .wait(&format!("stranger {name} to run"), READY, || {
                let pod = kubernetes.api.get(PODS, &namespace.name, name)?;
                Ok((pod["status"]["phase"] == "Running").then_some(()))
            })
            .unwrap();
    }
    kubernetes.api.delete(PODS, &namespace.name, "b-0", Some(0)).unwrap();

    namespace.apply(&aligned("flash", 4)).unwrap();
    let rejected =
        namespace.wait_condition("flash", "Degraded", "True", "TopologyRejected", SOON * 2).unwrap();
    assert!(rejected.message.contains("TopologyAffinityError"), "{}", rejected.message);
    let engines = || {
        namespace
            .pods("fathom.dev/cluster=flash")
            .map(|pods| pods.into_iter().filter(|p| p.role != "router").count())
    };
    namespace
        .holds_for(Duration::from_secs(20), || {
            let now = engines()?;
            Ok((now > 6).then(|| format!("{now} engine pods")))
        })
        .unwrap();

    // The agents back, the plan knows better, and says what would fit.
    chart::upgrade(&kubernetes, &[]).unwrap();
    let planned = namespace.wait_condition("flash", "Planned", "False", "NotFeasible", READY).unwrap();
    assert!(planned.message.contains("4 GPUs on one NUMA node"), "{}", planned.message);
    for name in ["a-0", "b-1"] {
        kubernetes.api.delete(PODS, &namespace.name, name, Some(0)).unwrap();
    }
    namespace.wait_ready("flash", READY * 3).unwrap();
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
                "resources": {"limits": {"nvidia.com/gpu": gpus, "memory": "16Mi"}},
            }],
        },
    });
    namespace.kubernetes().api.create(PODS, &namespace.name, &pod).unwrap();
}
