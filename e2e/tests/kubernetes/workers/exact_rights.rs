//! The rights that the chart gives are those that operator and agent use: none is missing, none is idle.

use std::collections::BTreeSet;

use e2e::kubernetes::api::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, PODS, ROLE_BINDINGS, ROLES, Resource};
use e2e::kubernetes::audit::{self, Call};
use e2e::kubernetes::chart;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, faults};
use serde_json::{Value, json};

use crate::rights::describe;
use crate::{READY, SOON};

const OPERATOR: &str = "system:serviceaccount:fathom-system:fathom-operator";
const AGENT: &str = "system:serviceaccount:fathom-system:fathom-node-agent";

/// Rights that no call of the operator uses by itself: (group, resource, verb), and why it has them.
const NOT_CALLED: &[(&str, &str, &str, &str)] = &[
    (
        "fathom.dev",
        "inferenceclusters/finalizers",
        "update",
        "owner references with blockOwnerDeletion need it",
    ),
    ("discovery.k8s.io", "endpointslices", "get", "granted on to routers: nobody may grant what it has not"),
    ("discovery.k8s.io", "endpointslices", "list", "granted on to routers"),
    ("discovery.k8s.io", "endpointslices", "watch", "granted on to routers"),
];

/// A life of an object with everything that makes the operator call the API: claims, budgets, a dropped child, a
/// taken name, a status, events, a changed certificate.
#[test]
#[ignore = "slow: `./dev test slow`"]
fn operator_and_agent_use_exactly_the_rights_that_the_chart_gives() {
    let kubernetes = Kubernetes::bare(Shape::Story).unwrap();
    chart::remove_all(&kubernetes).unwrap();
    let mark = audit::mark().unwrap();
    chart::install(&kubernetes, &[]).unwrap();
    let namespace = Namespace::create(&kubernetes, "rights", Level::Restricted).unwrap();
    live_a_life(&namespace);

    let calls = audit::calls_since(mark, "").unwrap();
    let mut complaints = Vec::new();
    for user in [OPERATOR, AGENT] {
        let own: Vec<_> = calls.iter().filter(|call| call.user == user).collect();
        assert!(!own.is_empty(), "{user} made no call");
        // Renders of rights in mid-install are refused for moments; nothing may be refused after that.
        let refused: BTreeSet<_> =
            own.iter().filter(|call| call.code == 403).map(|call| describe(call)).collect();
        complaints.extend(refused.into_iter().map(|call| format!("{user} was refused {call}")));
        let used: BTreeSet<Right> =
            own.iter().filter(|call| call.code != 403).filter_map(|c| Right::used(c)).collect();
        for right in shipped(&kubernetes, user) {
            let excused = NOT_CALLED.iter().any(|(g, r, v, _)| right == Right::new(g, r, v));
            if !excused && !used.contains(&right) {
                complaints.push(format!("{user} never used {right:?}"));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn live_a_life(namespace: &Namespace<'_>) {
    let object = needle("needle", |spec| {
        spec["runtime"] = json!({"device": "Cpu"});
        spec["placement"] = json!({"mode": "DRA", "numa": "Preferred"});
        for role in ["prefill", "decode"] {
            spec[role] = json!({"replicas": 1, "gpus": 1, "cpus": 2});
        }
        spec["router"]["replicas"] = json!(2);
    });
    let uid = namespace.apply(&object.unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    for contexts in [16384, 8192, 4096, 16128, 16640, 16896, 17152] {
        // More revisions than are kept; the pods of each need not become ready.
        namespace.change("needle", &json!({"model": {"contextTokens": contexts}})).unwrap();
        namespace.wait_condition("needle", "Planned", "True", "", SOON).unwrap();
    }
    namespace.wait_ready("needle", READY).unwrap();
    // Without policies and with one router: what was made for them goes; mutable children change.
    let change = json!({"router": {"replicas": 1}, "networkPolicy": {"enabled": false}, "podTemplate": {"labels": {"a": "b"}}});
    namespace.change("needle", &change).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let zero = json!({"prefill": {"replicas": 0}, "decode": {"replicas": 0}, "router": {"replicas": 0}});
    namespace.change("needle", &zero).unwrap();
    namespace.wait_condition("needle", "Ready", "False", "ScaledToZero", READY).unwrap();
    namespace.delete_whole("needle", &uid, READY).unwrap();
    // A leader that ends gives the lease back; the next takes it.
    let kubernetes = namespace.kubernetes();
    for pod in kubernetes.api.list(PODS, SYSTEM, faults::OPERATOR).unwrap() {
        kubernetes.api.delete(PODS, SYSTEM, pod["metadata"]["name"].as_str().unwrap(), None).unwrap();
    }
    let before = faults::uids(kubernetes, faults::OPERATOR).unwrap();
    faults::wait_replaced(kubernetes, faults::OPERATOR, &before).unwrap();
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    resource: String,
    verb: String,
}

impl Right {
    fn new(group: &str, resource: &str, verb: &str) -> Self {
        Self { group: group.into(), resource: resource.into(), verb: verb.into() }
    }

    fn used(call: &Call) -> Option<Self> {
        (!call.resource.is_empty()).then(|| Self::new(&call.group, &call.resource, &call.verb))
    }
}

/// Every (group, resource, verb) that bindings give to a service account.
fn shipped(kubernetes: &Kubernetes, user: &str) -> BTreeSet<Right> {
    let (namespace, name) = user.trim_start_matches("system:serviceaccount:").split_once(':').unwrap();
    let mut rights = BTreeSet::new();
    let pairs = [(CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES), (ROLE_BINDINGS, ROLES)];
    for (bindings, roles) in pairs {
        for binding in kubernetes.api.list(bindings, "", "").unwrap() {
            let subjects = binding["subjects"].as_array();
            let ours =
                |s: &Value| s["kind"] == "ServiceAccount" && s["name"] == name && s["namespace"] == namespace;
            if subjects.into_iter().flatten().any(ours) {
                let at = binding["metadata"]["namespace"].as_str().unwrap_or_default();
                rights.extend(rules(kubernetes, roles, at, &binding["roleRef"]));
            }
        }
    }
    assert!(!rights.is_empty(), "no rights are bound to {user}");
    rights
}

fn rules(kubernetes: &Kubernetes, roles: Resource, namespace: &str, reference: &Value) -> Vec<Right> {
    let (roles, namespace) =
        if reference["kind"] == "ClusterRole" { (CLUSTER_ROLES, "") } else { (roles, namespace) };
    let role = kubernetes.api.get(roles, namespace, reference["name"].as_str().unwrap()).unwrap();
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|w| w.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    assert!(verb != "*" && resource != "*" && group != "*", "a star in {rule}");
                    rights.push(Right::new(&group, &resource, &verb));
                }
            }
        }
    }
    rights
}
