//! Soft binding on CPUs and memory that are real: what the plan says, the kernel says too.

use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, process};
use serde_json::{Value, json};

use crate::READY;

/// One engine on one CPU: this machine may have two, of which other pods ask for a part.
fn on_one_cpu() -> Value {
    needle("needle", |spec| {
        spec["placement"] = json!({"mode": "Soft"});
        spec["prefill"]["replicas"] = json!(0);
        spec["decode"] = json!({"replicas": 1, "gpus": 0, "cpus": 1});
    })
    .unwrap()
}

#[test]
fn engines_run_on_the_cpus_of_the_plan_and_memory_is_bound_where_that_is_allowed() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    for (level, memory) in [(Level::Privileged, "Achieved"), (Level::Restricted, "NotAsked")] {
        let namespace = Namespace::create(&kubernetes, "binding", level).unwrap();
        namespace.apply(&on_one_cpu()).unwrap();
        namespace.wait_ready("needle", READY).unwrap();
        let status = namespace.cluster("needle").unwrap()["status"].clone();
        let engines = namespace.engines("needle").unwrap();
        let replica = &status["plan"]["replicas"][0];
        let achieved = &replica["achieved"];
        assert_eq!(achieved["cpus"]["state"], "Achieved", "{level:?}: {replica}");
        let bound = achieved["memory"]["state"].as_str().unwrap_or("NotAsked");
        assert_eq!(bound, memory, "{level:?}: {replica}");
        let pod = &engines["needle-unified-0"];
        let cpus = process::engine_status(&pod.uid, "Cpus_allowed_list").unwrap();
        assert_eq!(json!(cpus), replica["cpus"], "the kernel lets {} use {cpus}", pod.name);
        assert!(cpus.parse::<u32>().is_ok(), "more than one CPU: {cpus}");
        namespace.remove(READY).unwrap();
    }
}

/// Where a restricted namespace forbids the capability, Required is refused before a pod is made.
#[test]
fn required_memory_binding_in_a_restricted_namespace_is_refused_with_what_to_do() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "no-capability", Level::Restricted).unwrap();
    let mut object = on_one_cpu();
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
