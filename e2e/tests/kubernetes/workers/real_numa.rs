//! A worker of two real NUMA nodes: a guest in QEMU. What is bound there is bound by a real kernel.

use std::time::Duration;

use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, cluster_command};
use serde_json::json;

/// Emulated CPUs are some thirty times slower.
const EMULATED: Duration = Duration::from_secs(900);

#[test]
#[ignore = "slow: boots a guest whose CPUs are emulated"]
fn cpus_and_memory_of_each_engine_are_those_planned_on_a_real_numa_machine() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    cluster_command(&["qemu"]).unwrap();
    let namespace = Namespace::create(&kubernetes, "real-numa", Level::Privileged).unwrap();
    let object = needle("needle", |spec| {
        spec["placement"] = json!({"mode": "Soft", "numa": "Required", "memoryBinding": "Required"});
        spec["podTemplate"] = json!({"nodeSelector": {"kubernetes.io/hostname": "qemu"}});
        spec["model"]["contextTokens"] = json!(4096);
        for role in ["prefill", "decode"] {
            spec[role] = json!({"replicas": 1, "gpus": 0, "cpus": 1});
        }
    });
    namespace.apply(&object.unwrap()).unwrap();
    namespace.wait_ready("needle", EMULATED).unwrap();

    let status = namespace.cluster("needle").unwrap()["status"].clone();
    let engines = namespace.engines("needle").unwrap();
    let mut nodes = Vec::new();
    for replica in status["plan"]["replicas"].as_array().unwrap() {
        let planned = replica["numaNode"].as_u64().unwrap();
        for resource in ["cpus", "memory"] {
            assert_eq!(replica["achieved"][resource]["state"], "Achieved", "{replica}");
        }
        let info = namespace.server_info(&engines[replica["name"].as_str().unwrap()].name).unwrap();
        assert_eq!(info["binding"]["cpus"]["state"], "achieved", "{info}");
        let kib = &info["memoryByNode"]["kib"];
        let on = |node: u64| kib[node.to_string()].as_u64().unwrap_or_default();
        // The device pool is most of a process's own memory; libraries touched a little before anything was bound.
        assert!(on(planned) > 10 * on(1 - planned), "planned on node {planned}: {kib}");
        nodes.push(planned);
    }
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 1], "prefill and decode share a NUMA node");
    namespace.remove(EMULATED).unwrap();
    cluster_command(&["qemu", "off"]).unwrap();
}
