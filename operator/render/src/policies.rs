//! NetworkPolicies: who may connect to the pods.
//! In: the object and its neighbours. Out: `flash-engine` and `flash-router`, or none if the object says so.
//! Never: rules about egress: engines pull nothing, and a router must reach DNS and the API server, wherever they are.

use std::collections::BTreeMap;

use engine_spec::config::{CLUSTER_GRPC_PORT, CLUSTER_HTTP_PORT};
use fathom_crds::inference_cluster::ScrapeFrom;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::desired::RenderInput;
use crate::names as n;
use crate::owned::{Children, sealed, selector, texts};

/// The policies of one object.
pub(crate) fn policies(input: &RenderInput<'_>, children: &Children<'_>) -> Vec<NetworkPolicy> {
    let policy = &input.spec.network_policy;
    if !policy.enabled {
        return Vec::new();
    }
    let peers = rule(
        [of_roles(children, &["prefill", "decode", "unified", "router"])],
        &[CLUSTER_HTTP_PORT, CLUSTER_GRPC_PORT],
    );
    let operator = operator(&input.neighbours.operator_namespace);
    let askers = rule([operator].into_iter().chain(scrapers(&policy.scrape_from)), &[CLUSTER_HTTP_PORT]);
    let engines = policy_for(children, "engine", &["prefill", "decode", "unified"], vec![peers, askers]);
    // The router is the public door.
    let anybody = rule([], &[CLUSTER_HTTP_PORT]);
    vec![engines, policy_for(children, "router", &["router"], vec![anybody])]
}

fn policy_for(
    children: &Children<'_>,
    component: &str,
    roles: &[&str],
    ingress: Vec<NetworkPolicyIngressRule>,
) -> NetworkPolicy {
    let name = format!("{}-{component}", children.cluster());
    sealed(NetworkPolicy {
        metadata: children.meta(&name, children.labels(component)),
        spec: Some(NetworkPolicySpec {
            ingress: Some(ingress),
            pod_selector: Some(with_roles(children, roles)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            egress: None,
        }),
    })
}

/// From any of `peers`, to these ports; no peers means from anywhere.
fn rule(peers: impl IntoIterator<Item = NetworkPolicyPeer>, ports: &[u16]) -> NetworkPolicyIngressRule {
    let port = |number: &u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(*number))),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    NetworkPolicyIngressRule {
        from: Some(peers.into_iter().collect::<Vec<_>>()).filter(|peers| !peers.is_empty()),
        ports: Some(ports.iter().map(port).collect()),
    }
}

/// The object's own pods: in its namespace, with its uid.
fn of_roles(children: &Children<'_>, roles: &[&str]) -> NetworkPolicyPeer {
    NetworkPolicyPeer { pod_selector: Some(with_roles(children, roles)), ..NetworkPolicyPeer::default() }
}

fn with_roles(children: &Children<'_>, roles: &[&str]) -> LabelSelector {
    LabelSelector {
        match_labels: Some(children.select_owner()),
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: n::LABEL_ROLE.to_owned(),
            operator: "In".to_owned(),
            values: Some(roles.iter().map(|role| (*role).to_owned()).collect()),
        }]),
    }
}

fn operator(namespace: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(selector(texts([("kubernetes.io/metadata.name", namespace)]))),
        pod_selector: Some(selector(texts([(n::LABEL_NAME, n::APP), (n::LABEL_COMPONENT, "operator")]))),
        ip_block: None,
    }
}

/// Nothing given: nobody. An empty selector would match everything, so the labels that are not given are left out.
fn scrapers(from: &ScrapeFrom) -> Option<NetworkPolicyPeer> {
    let given = |labels: &BTreeMap<String, String>| Some(labels.clone()).filter(|labels| !labels.is_empty());
    let (namespaces, pods) = (given(&from.namespace_labels), given(&from.pod_labels));
    (namespaces.is_some() || pods.is_some()).then(|| NetworkPolicyPeer {
        // Pods of every namespace, unless namespaces are given: without a selector it would be those of the object's own.
        namespace_selector: Some(namespaces.map_or_else(LabelSelector::default, selector)),
        pod_selector: pods.map(selector),
        ip_block: None,
    })
}
