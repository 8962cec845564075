//! NetworkPolicies: who may connect to the pods.
//! In: the object and its neighbours. Out: `flash-engine` and `flash-router`, or none if the object says so.
//! Never: rules about egress: engines pull nothing, and a router must reach DNS and the API server, wherever they are.

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
    let askers = rule([operator, scrapers(&policy.scrape_from)], &[CLUSTER_HTTP_PORT]);
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
fn rule<const N: usize>(peers: [NetworkPolicyPeer; N], ports: &[u16]) -> NetworkPolicyIngressRule {
    let port = |number: &u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(*number))),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    NetworkPolicyIngressRule {
        from: Some(Vec::from(peers)).filter(|peers| !peers.is_empty()),
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

/// Empty selectors match everything: nothing given means every pod of the cluster.
fn scrapers(from: &ScrapeFrom) -> NetworkPolicyPeer {
    let pods = &from.pod_labels;
    NetworkPolicyPeer {
        namespace_selector: Some(
            Some(from.namespace_labels.clone())
                .filter(|l| !l.is_empty())
                .map_or_else(LabelSelector::default, selector),
        ),
        pod_selector: Some(pods.clone()).filter(|labels| !labels.is_empty()).map(selector),
        ip_block: None,
    }
}
