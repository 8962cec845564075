//! The chart, as README says it, and the first answer.

use std::time::{Duration, Instant};

use e2e::kubernetes::api::{CLUSTERS, DEFINITIONS, DEPLOYMENTS, PODS};
use e2e::kubernetes::chart::{self, CHART};
use e2e::kubernetes::client_pod::ClientPod;
use e2e::kubernetes::faults::{self, OPERATOR};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape};
use e2e::needle::rows;

use crate::READY;

#[test]
fn install_without_values_then_a_needle_answers_a_pod_of_another_namespace() {
    let kubernetes = Kubernetes::bare(Shape::Plain).unwrap();
    chart::remove_all(&kubernetes).unwrap();
    chart::install(&kubernetes, &[]).unwrap();

    let served = Namespace::create(&kubernetes, "needle", Level::Restricted).unwrap();
    let elsewhere = Namespace::create(&kubernetes, "client", Level::Restricted).unwrap();
    let client = ClientPod::start(&elsewhere, "client").unwrap();
    let began = Instant::now();
    served.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    served.wait_ready("needle", READY).unwrap();
    println!("Ready after {:.1} s", began.elapsed().as_secs_f64());

    let object = served.cluster("needle").unwrap();
    let endpoint = object["status"]["endpoint"].as_str().unwrap();
    assert_eq!(endpoint, format!("http://needle.{}.svc", served.name));
    for row in rows().unwrap().iter().step_by(40) {
        client.ask(endpoint, row).unwrap();
    }
    let columns = kubernetes.kubectl(&["get", "icl", "needle", "-n", &served.name]).unwrap();
    for part in ["True", "1/1"] {
        assert!(columns.contains(part), "{part:?} is missing in\n{columns}");
    }
}

#[test]
fn the_chart_is_clean_and_its_schema_refuses_a_typo() {
    Kubernetes::bare(Shape::Plain).unwrap();
    chart::helm_ok(&["lint", "--strict", CHART]).unwrap();
    for (typo, name) in
        [("nodeAgnet.kubeletDir=/x", "nodeAgnet"), ("operator.replicas=two", "replicas"), ("nope=1", "nope")]
    {
        let output =
            chart::helm(&["template", "fathom", CHART, "--kube-version", "v1.34.0", "--set", typo]).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(name), "{typo}: {said}");
    }
}

/// From the newest earlier chart that differs, with today's images; where the history does not reach so far, from the same
/// chart with other values, said aloud. The operator's pods are replaced, and no engine pod is.
#[test]
fn an_upgrade_restarts_no_engine_pod() {
    let kubernetes = Kubernetes::bare(Shape::Plain).unwrap();
    chart::remove_all(&kubernetes).unwrap();
    let earlier = chart::earlier().unwrap();
    match &earlier {
        Some(earlier) => {
            println!("upgrading from the chart of commit {}", earlier.commit);
            chart::install_from(&kubernetes, &earlier.chart()).unwrap();
        }
        None => {
            println!("no earlier chart is known: upgrading from the same chart with other values");
            chart::install(&kubernetes, &["operator.logLevel=debug"]).unwrap();
        }
    }
    let namespace = Namespace::create(&kubernetes, "upgrade", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let before = namespace.engines("needle").unwrap();
    let operator = faults::uids(&kubernetes, OPERATOR).unwrap();

    // Between two charts the operator's pod may well be the same: another log level replaces it in any case.
    let level = if earlier.is_some() { "operator.logLevel=debug" } else { "operator.logLevel=info" };
    chart::upgrade(&kubernetes, &[level]).unwrap();
    faults::wait_replaced(&kubernetes, OPERATOR, &operator).unwrap();
    namespace
        .holds_for(Duration::from_secs(10), || {
            let now = namespace.engines("needle")?;
            Ok((now != before).then(|| format!("engine pods were {before:?}, are {now:?}")))
        })
        .unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    chart::upgrade(&kubernetes, &[]).unwrap();
}

/// Uninstalling removes the operator and no object; installed again, it takes over what runs.
#[test]
fn uninstall_keeps_what_runs_and_a_second_install_takes_it_over() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "uninstall", Level::Restricted).unwrap();
    let uid = namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let engines = namespace.engines("needle").unwrap();

    chart::uninstall().unwrap();
    assert!(kubernetes.api.find(DEPLOYMENTS, SYSTEM, "fathom-operator").unwrap().is_none());
    assert!(kubernetes.api.find(DEFINITIONS, "", "inferenceclusters.fathom.dev").unwrap().is_some());
    assert!(kubernetes.api.find(CLUSTERS, &namespace.name, "needle").unwrap().is_some());
    assert_eq!(namespace.engines("needle").unwrap(), engines);

    chart::install(&kubernetes, &[]).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.engines("needle").unwrap(), engines);

    // A73: without an operator an object goes with its namespace; nothing holds it.
    chart::uninstall().unwrap();
    namespace.delete_whole("needle", &uid, READY).unwrap();
    let gone =
        || kubernetes.api.list(PODS, &namespace.name, "").is_ok_and(|pods| pods.is_empty()).then_some(());
    e2e::wait_for("the pods of a deleted object to be gone", READY, gone).unwrap();
    namespace.remove(READY).unwrap();
    chart::install(&kubernetes, &[]).unwrap();
}
