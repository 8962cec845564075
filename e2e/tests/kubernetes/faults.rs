//! Things break in the middle of work; the state converges, and no engine pod pays for it.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::kubernetes::api::{NODES, PODS};
use e2e::kubernetes::chart;
use e2e::kubernetes::faults::{self, AGENT, OPERATOR};
use e2e::kubernetes::namespace::PodState;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, images};
use serde_json::json;

use crate::{READY, SOON};

#[test]
#[ignore = "slow: builds another operator, `./dev images --failpoints`"]
fn an_operator_that_dies_when_planned_leaves_nothing_half_done() {
    dies_at("planned");
}

#[test]
#[ignore = "slow: builds another operator, `./dev images --failpoints`"]
fn an_operator_that_dies_when_rendered_leaves_nothing_half_done() {
    dies_at("rendered");
}

#[test]
#[ignore = "slow: builds another operator, `./dev images --failpoints`"]
fn an_operator_that_dies_when_applied_leaves_nothing_half_done() {
    dies_at("applied");
}

#[test]
#[ignore = "slow: builds another operator, `./dev images --failpoints`"]
fn an_operator_that_dies_when_status_is_written_leaves_nothing_half_done() {
    dies_at("status");
}

/// The operator panics at `step` of every reconcile, first while an object is new, then while it changes.
fn dies_at(step: &str) {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, &format!("dies-{step}"), Level::Restricted).unwrap();
    arm(&kubernetes, step);
    let owner = namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    wait_death(&kubernetes);
    disarm(&kubernetes);
    namespace.wait_ready("needle", READY).unwrap();
    let children = namespace.owned(&owner).unwrap();
    let engines = namespace.engines("needle").unwrap();
    assert_eq!(engines.len(), 2, "{engines:?}");

    arm(&kubernetes, step);
    namespace.change("needle", &json!({"router": {"replicas": 2}})).unwrap();
    wait_death(&kubernetes);
    disarm(&kubernetes);
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(namespace.engines("needle").unwrap(), engines);

    namespace.change("needle", &json!({"router": {"replicas": 1}})).unwrap();
    namespace
        .wait("the children of before", READY, || {
            let count = |all: &[String], kind: &str| all.iter().filter(|c| c.starts_with(kind)).count();
            let now = namespace.owned(&owner)?;
            let alike = ["pods/", "configmaps/", "services/", "deployments/", "networkpolicies/"];
            Ok(alike.iter().all(|kind| count(&now, kind) == count(&children, kind)).then_some(()))
        })
        .unwrap();
}

fn arm(kubernetes: &Kubernetes, step: &str) {
    let value = format!("operator.env[0].value=reconcile::{step}=panic");
    let sets = ["operator.image.tag=0.1.0-failpoints", "operator.env[0].name=FAILPOINTS", &value];
    let before = faults::uids(kubernetes, OPERATOR).unwrap();
    chart::upgrade_unwatched(kubernetes, &sets).unwrap();
    // The pod of before must not do the work that this one shall die of.
    kubernetes
        .wait("the operator that will die", SOON * 3, &[], || {
            let now = faults::uids(kubernetes, OPERATOR)?;
            Ok((!now.is_empty() && now.iter().all(|uid| !before.contains(uid))).then_some(()))
        })
        .unwrap();
}

fn disarm(kubernetes: &Kubernetes) {
    chart::upgrade(kubernetes, &[]).unwrap();
}

fn wait_death(kubernetes: &Kubernetes) {
    kubernetes
        .wait("the operator to die at its fault point", SOON * 3, &[], || {
            let pods = kubernetes.api.list(PODS, SYSTEM, OPERATOR)?;
            let statuses =
                pods.iter().flat_map(|p| p["status"]["containerStatuses"].as_array().into_iter().flatten());
            let died = |s: &serde_json::Value| {
                ["state", "lastState"]
                    .iter()
                    .any(|at| s[at]["terminated"]["exitCode"].as_i64().is_some_and(|c| c != 0))
            };
            Ok(statuses.into_iter().any(died).then_some(()))
        })
        .unwrap();
}

/// A Ready needle, what is broken, and what must hold afterwards: Ready, with the same engine pods.
fn survives(name: &str, shape: Shape, broken: impl FnOnce(&Kubernetes, &Namespace<'_>)) {
    let kubernetes = Kubernetes::with_fathom(shape).unwrap();
    let namespace = Namespace::create(&kubernetes, name, Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let engines = namespace.engines("needle").unwrap();
    broken(&kubernetes, &namespace);
    // Something must still happen: a change is carried out.
    namespace.change("needle", &json!({"router": {"replicas": 2}})).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    assert_eq!(named(&namespace.engines("needle").unwrap()), named(&engines));
}

fn named(pods: &BTreeMap<String, PodState>) -> Vec<(&str, &str, u64)> {
    pods.values().map(|pod| (pod.name.as_str(), pod.uid.as_str(), pod.restarts)).collect()
}

/// A66: every watch breaks with it.
#[test]
fn an_api_server_that_restarts_is_found_again() {
    survives("api-restart", Shape::Plain, |kubernetes, _| faults::restart_api_server(kubernetes).unwrap());
}

#[test]
fn a_killed_operator_is_replaced_and_takes_over() {
    survives("operator-kill", Shape::Plain, |kubernetes, _| {
        let before = faults::uids(kubernetes, OPERATOR).unwrap();
        faults::kill(kubernetes, OPERATOR).unwrap();
        faults::wait_replaced(kubernetes, OPERATOR, &before).unwrap();
    });
}

/// Stale facts place nothing new; what runs stays, and new facts are taken up by themselves.
#[test]
fn a_killed_agent_restarts_no_engine_pod() {
    survives("agent-kill", Shape::Plain, |kubernetes, namespace| {
        let before = faults::uids(kubernetes, AGENT).unwrap();
        let engines = namespace.engines("needle").unwrap();
        faults::kill(kubernetes, AGENT).unwrap();
        faults::wait_replaced(kubernetes, AGENT, &before).unwrap();
        let check = || {
            let now = namespace.engines("needle")?;
            Ok((named(&now) != named(&engines)).then(|| format!("engine pods were {engines:?}, are {now:?}")))
        };
        namespace.holds_for(Duration::from_secs(5), check).unwrap();
    });
}

#[test]
#[ignore = "slow: facts grow stale after a minute"]
fn facts_that_grow_stale_restart_no_engine_pod() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "stale", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let engines = namespace.engines("needle").unwrap();
    // No node has this label: the agents go.
    chart::upgrade(&kubernetes, &["nodeAgent.nodeSelector.nowhere=here"]).unwrap();
    let check = || {
        let now = namespace.engines("needle")?;
        Ok((named(&now) != named(&engines)).then(|| format!("engine pods were {engines:?}, are {now:?}")))
    };
    namespace.holds_for(Duration::from_secs(90), check).unwrap();
    assert_eq!(namespace.condition("needle", "Ready").unwrap().unwrap().status, "True");
    // What is new is not placed on stale facts, and says so.
    namespace.change("needle", &json!({"decode": {"replicas": 2}})).unwrap();
    namespace.wait_condition("needle", "Planned", "False", "FactsStale", SOON).unwrap();
    chart::upgrade(&kubernetes, &[]).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let now = namespace.engines("needle").unwrap();
    assert!(
        engines.iter().all(|(replica, pod)| now.get(replica).is_some_and(|p| p.uid == pod.uid)),
        "{now:?}"
    );
}

/// A cordoned node keeps its pods, and takes no new ones.
#[test]
fn a_cordoned_node_keeps_what_runs_and_takes_nothing_new() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "cordon", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let engines = namespace.engines("needle").unwrap();
    let node = images::workers().unwrap().remove(0);
    faults::cordon(&kubernetes, &node, true).unwrap();
    namespace.apply(&needle("second", |_| {}).unwrap()).unwrap();
    let refused = namespace.wait_condition("second", "Planned", "False", "NotFeasible", SOON);
    let still = namespace.engines("needle").unwrap();
    faults::cordon(&kubernetes, &node, false).unwrap();
    let refused = refused.unwrap();
    assert!(refused.message.contains(&node) || refused.message.contains("cordon"), "{}", refused.message);
    assert_eq!(named(&still), named(&engines));
    // The node open again, the second object needs no hand (A17).
    namespace.wait_ready("second", READY).unwrap();
}

#[test]
fn a_deleted_node_is_replanned_when_it_is_back() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "node", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let node = images::workers().unwrap().remove(0);
    let kubelet = format!("kubelet-{node}");
    faults::stop(&kubelet).unwrap();
    kubernetes.api.delete(NODES, "", &node, None).unwrap();
    let gone = namespace.wait_condition("needle", "Ready", "False", "", READY);
    // A kubelet registers its node when it starts.
    faults::start(&kubelet).unwrap();
    gone.unwrap();
    namespace.wait_ready("needle", READY * 2).unwrap();
}
