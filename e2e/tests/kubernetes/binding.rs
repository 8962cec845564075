//! Soft binding on CPUs and memory that are real: what the plan says, the kernel says too.

use std::path::Path;

use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};
use serde_json::{Value, json};

use crate::READY;

fn one_cpu_each() -> Value {
    needle("needle", |spec| {
        spec["placement"] = json!({"mode": "Soft"});
        for role in ["prefill", "decode"] {
            spec[role] = json!({"replicas": 1, "gpus": 0, "cpus": 1});
        }
    })
    .unwrap()
}

#[test]
#[ignore = "slow: `./dev test slow`"]
fn engines_run_on_the_cpus_of_the_plan_and_memory_is_bound_where_that_is_allowed() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    for (level, memory) in [(Level::Privileged, "Achieved"), (Level::Restricted, "NotAsked")] {
        let namespace = Namespace::create(&kubernetes, "binding", level).unwrap();
        namespace.apply(&one_cpu_each()).unwrap();
        namespace.wait_ready("needle", READY).unwrap();
        let status = namespace.cluster("needle").unwrap()["status"].clone();
        let engines = namespace.engines("needle").unwrap();
        let mut seen = Vec::new();
        for replica in status["plan"]["replicas"].as_array().unwrap() {
            let achieved = &replica["achieved"];
            assert_eq!(achieved["cpus"]["state"], "Achieved", "{level:?}: {replica}");
            let bound = achieved["memory"]["state"].as_str().unwrap_or("NotAsked");
            assert_eq!(bound, memory, "{level:?}: {replica}");
            let pod = &engines[replica["name"].as_str().unwrap()];
            let cpus = cpus_of_engine(&pod.uid);
            assert_eq!(json!(cpus), replica["cpus"], "the kernel lets {} use {cpus}", pod.name);
            seen.push(cpus);
        }
        assert_ne!(seen[0], seen[1], "prefill and decode share a CPU");
        namespace.remove(READY).unwrap();
    }
}

/// Where a restricted namespace forbids the capability, Required is refused before a pod is made.
#[test]
#[ignore = "slow: `./dev test slow`"]
fn required_memory_binding_in_a_restricted_namespace_is_refused_with_what_to_do() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "no-capability", Level::Restricted).unwrap();
    let mut object = one_cpu_each();
    object["spec"]["placement"]["memoryBinding"] = json!("Required");
    let uid = namespace.apply(&object).unwrap();
    let message = namespace
        .wait("a refusal that names the capability or the namespace", READY, || {
            let told = ["Planned", "Progressing"].map(|kind| namespace.condition("needle", kind));
            let told = told.into_iter().flatten().flatten();
            let names =
                |m: &str| m.contains("SYS_NICE") || m.contains("pod-security") || m.contains("restricted");
            Ok(told.into_iter().find(|c| c.status == "False" && names(&c.message)).map(|c| c.message))
        })
        .unwrap();
    println!("{message}");
    assert!(!namespace.owned(&uid).unwrap().iter().any(|child| child.starts_with("pods/")));
}

/// CPUs that the kernel lets a pod's engine use, as /proc prints them: workers share this machine's process table.
fn cpus_of_engine(pod_uid: &str) -> String {
    let of_pod = |folder: &Path| {
        let cgroup = std::fs::read_to_string(folder.join("cgroup")).ok()?;
        let command = std::fs::read_to_string(folder.join("cmdline")).ok()?;
        (cgroup.contains(pod_uid) && command.starts_with("/fathom-engine\0")).then_some(())
    };
    let folders = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let found: Vec<_> = folders.filter(|folder| of_pod(folder).is_some()).collect();
    assert_eq!(found.len(), 1, "processes of pod {pod_uid}: {found:?}");
    let status = std::fs::read_to_string(found[0].join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}
