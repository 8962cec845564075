//! The rights that the chart gives are those that operator and agent use: none is missing, none is idle.

use std::collections::BTreeSet;

use e2e::kubernetes::api::{
    BUDGETS, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CONFIG_MAPS, DEFINITIONS, DEPLOYMENTS, NETWORK_POLICIES,
    PODS, Patch, ROLE_BINDINGS, ROLES, Resource, SECRETS, SERVICE_ACCOUNTS, SERVICES,
};
use e2e::kubernetes::audit::{self, Call};
use e2e::kubernetes::chart;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, faults};
use serde_json::{Value, json};

use crate::rights::describe;
use crate::{READY, SOON};

const OPERATOR: &str = "system:serviceaccount:fathom-system:fathom-operator";
const AGENT: &str = "system:serviceaccount:fathom-system:fathom-node-agent";

/// Rights that this life does not use: (group, resource, verb), and why the operator has them.
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
    ("", "configmaps", "get", "looked at when its name is taken: ownership.rs"),
    ("", "pods", "get", "likewise"),
    ("apps", "controllerrevisions", "get", "likewise"),
    ("resource.k8s.io", "resourceclaims", "get", "likewise"),
];

/// Children that are changed in place.
const MUTABLE: [Resource; 7] =
    [SERVICES, SERVICE_ACCOUNTS, DEPLOYMENTS, BUDGETS, NETWORK_POLICIES, ROLES, ROLE_BINDINGS];

/// A26, A27: a life of an object with everything that makes the operator call the API: claims, budgets, children of an
/// older operator, a status, an object that does not decode, events, a damaged certificate.
#[test]
fn operator_and_agent_use_exactly_the_rights_that_the_chart_gives() {
    let kubernetes = Kubernetes::bare(Shape::Story).unwrap();
    chart::remove_all(&kubernetes).unwrap();
    let mark = audit::mark().unwrap();
    chart::install(&kubernetes, &[]).unwrap();
    let namespace = Namespace::create(&kubernetes, "rights", Level::Restricted).unwrap();
    wait_until_owners_are_known(&namespace);
    live_a_life(&namespace);

    let calls = audit::calls_since(mark, "").unwrap();
    let mut complaints = Vec::new();
    for user in [OPERATOR, AGENT] {
        let own: Vec<_> = calls.iter().filter(|call| call.user == user).collect();
        assert!(!own.is_empty(), "{user} made no call");
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
    // As if an older operator had made them: all of them are applied anew.
    let api = &namespace.kubernetes().api;
    for resource in MUTABLE {
        for child in api.list(resource, &namespace.name, "fathom.dev/cluster").unwrap() {
            let patch = json!({"metadata": {"annotations": {"fathom.dev/applied": "older"}}});
            let name = child["metadata"]["name"].as_str().unwrap();
            api.patch(resource, &namespace.name, name, Patch::Merge, &patch).unwrap();
        }
    }
    let renewed = || Ok(older(namespace)?.is_empty().then_some(()));
    namespace.wait("all children to be applied anew", READY, renewed).unwrap();
    // Without policies and with one router: what was made for them goes; mutable children change.
    let change = json!({"router": {"replicas": 1}, "networkPolicy": {"enabled": false}, "podTemplate": {"labels": {"a": "b"}}});
    namespace.change("needle", &change).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let zero = json!({"prefill": {"replicas": 0}, "decode": {"replicas": 0}, "router": {"replicas": 0}});
    namespace.change("needle", &zero).unwrap();
    namespace.wait_condition("needle", "Ready", "False", "ScaledToZero", READY).unwrap();
    namespace.delete_whole("needle", &uid, READY).unwrap();
    let shipped = api.get(DEFINITIONS, "", "inferenceclusters.fathom.dev").unwrap();
    crate::rules::store_quantum(namespace, "quantum", &shipped);
    namespace.wait_condition("quantum", "Accepted", "False", "DecodeFailed", SOON).unwrap();
    // The next leader mends what is damaged.
    let damage = json!({"stringData": {"state.json": "?"}});
    api.patch(SECRETS, SYSTEM, "fathom-node-agent-tls", Patch::Merge, &damage).unwrap();
    // A leader that ends gives the lease back; the next takes it.
    let kubernetes = namespace.kubernetes();
    let before = faults::uids(kubernetes, faults::OPERATOR).unwrap();
    for pod in kubernetes.api.list(PODS, SYSTEM, faults::OPERATOR).unwrap() {
        kubernetes.api.delete(PODS, SYSTEM, pod["metadata"]["name"].as_str().unwrap(), None).unwrap();
    }
    faults::wait_replaced(kubernetes, faults::OPERATOR, &before).unwrap();
}

/// Names of children that still say that an older operator made them.
fn older(namespace: &Namespace<'_>) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for resource in MUTABLE {
        let children = namespace.kubernetes().api.list(resource, &namespace.name, "fathom.dev/cluster")?;
        let is_old = |child: &&Value| child["metadata"]["annotations"]["fathom.dev/applied"] == "older";
        found.extend(children.iter().filter(is_old).map(|child| child["metadata"]["name"].to_string()));
    }
    Ok(found)
}

/// OwnerReferencesPermissionEnforcement looks owners up among the kinds that the API server knew half a minute ago, and
/// refuses an object whose owner is of another kind.
fn wait_until_owners_are_known(namespace: &Namespace<'_>) {
    let probe = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "probe", "ownerReferences": [{
            "apiVersion": "fathom.dev/v1alpha1", "kind": "InferenceCluster", "name": "probe", "uid": "probe",
            "controller": true, "blockOwnerDeletion": true,
        }]},
    });
    let path = format!("{}?dryRun=All", CONFIG_MAPS.path(&namespace.name, ""));
    let known = || {
        let api = &namespace.kubernetes().api;
        let answer = api.request("POST", &path, "application/json", probe.to_string())?;
        Ok((answer.status < 300).then_some(()))
    };
    namespace.wait("owners of our kind to be known", READY, known).unwrap();
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
