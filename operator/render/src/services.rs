//! Services: one for clients, a headless one for each engine role.
//! In: names and the owner. Out: Services whose selectors hold only what never changes for an object.

use engine_spec::config::{CLUSTER_GRPC_PORT, CLUSTER_HTTP_PORT};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::desired::RenderInput;
use crate::names as n;
use crate::owned::{Children, Texts, sealed};

/// `flash`, `flash-decode`, and `flash-prefill` if the object asks for prefills. The first two stay as long as the
/// object, whatever runs: clients keep their address.
pub(crate) fn services(input: &RenderInput<'_>, children: &Children<'_>) -> Vec<Service> {
    let cluster = children.cluster();
    let http = || port(n::PORT_HTTP, CLUSTER_HTTP_PORT);
    let clients = ServiceSpec {
        ports: Some(vec![ServicePort { port: n::CLIENT_PORT, ..http() }]),
        selector: Some(children.select(n::LABEL_ROLE, "router")),
        type_: Some("ClusterIP".to_owned()),
        ..ServiceSpec::default()
    };
    let owns_requests = children.select(n::LABEL_OWNS_REQUESTS, "true");
    let prefills = children.select(n::LABEL_ROLE, "prefill");
    let mut services = vec![
        service(children, cluster, "router", clients),
        service(children, &n::decode_service(cluster), "decode", headless(owns_requests, vec![http()])),
    ];
    if input.spec.prefill_replicas() > 0 {
        let ports = vec![http(), port(n::PORT_GRPC, CLUSTER_GRPC_PORT)];
        services.push(service(children, &n::prefill_service(cluster), "prefill", headless(prefills, ports)));
    }
    services
}

/// Addresses of ready pods, to be found by name.
fn headless(selector: Texts, ports: Vec<ServicePort>) -> ServiceSpec {
    ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        ports: Some(ports),
        selector: Some(selector),
        type_: Some("ClusterIP".to_owned()),
        ..ServiceSpec::default()
    }
}

fn service(children: &Children<'_>, name: &str, component: &str, spec: ServiceSpec) -> Service {
    let metadata = children.meta(name, children.labels(component));
    sealed(Service { metadata, spec: Some(spec), status: None })
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    }
}
