//! Who the workers are: listed in the configuration, or found in the cluster.
//! In: the configuration's lists, EndpointSlices. Out: a [`Roster`].
//! Never: I/O; an endpoint that is not ready (requests that run on one that no longer is are let end).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use engine_spec::config::{DiscoveryConfig, PeersConfig};
use http::header::HeaderValue;
use http::uri::Authority;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::RouterError;

/// The label of a slice that names its Service.
pub(super) const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// All workers that may be used, in a fixed order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Roster {
    pub(super) decodes: Vec<Member>,
    pub(super) prefills: Vec<Member>,
}

/// One worker. Two are the same when nothing differs: a pod that took over an address is another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// `host:port` by which people and decodes know it.
    pub(super) address: String,
    /// Where to ask; a listed prefill may have none.
    pub(super) http: Option<Authority>,
    /// A prefill's address for `fathom-prefill`.
    pub(super) name_header: HeaderValue,
    /// Of the pod, in a cluster.
    uid: Option<String>,
}

impl Roster {
    /// The workers that the configuration lists.
    ///
    /// # Errors
    /// [`RouterError::Address`] when one is not `host:port`.
    pub(super) fn listed(peers: &PeersConfig) -> Result<Self, RouterError> {
        let decodes =
            peers.decode.iter().map(|address| Member::listed(address, Some(address), "peers.decode"));
        let prefills = peers.prefill.iter();
        let prefills = prefills.map(|peer| Member::listed(&peer.grpc, peer.http.as_ref(), "peers.prefill"));
        Ok(Self {
            decodes: decodes.collect::<Result<_, _>>()?,
            prefills: prefills.collect::<Result<_, _>>()?,
        })
    }

    /// The workers that the slices of the two Services name as ready.
    pub(super) fn found<'a>(
        slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
        discovery: &DiscoveryConfig,
    ) -> Self {
        let of = |service: &str| ready_addresses(slices.clone().filter(|slice| is_of(slice, service)));
        let decodes = of(&discovery.decode_service).into_iter().filter_map(|(uid, ip)| {
            let http = SocketAddr::new(ip, discovery.http_port);
            Member::found(http, http, uid)
        });
        let prefills = discovery.prefill_service.as_deref().map(of).unwrap_or_default();
        let prefills = prefills.into_iter().filter_map(|(uid, ip)| {
            let grpc = SocketAddr::new(ip, discovery.grpc_port);
            Member::found(grpc, SocketAddr::new(ip, discovery.http_port), uid)
        });
        Self { decodes: decodes.collect(), prefills: prefills.collect() }
    }
}

impl Member {
    fn listed(address: &str, http: Option<&String>, field: &'static str) -> Result<Self, RouterError> {
        let authority = |address: &str| {
            let parsed = address.parse::<Authority>().ok();
            parsed
                .filter(|authority| authority.port_u16().is_some() && !authority.as_str().contains('@'))
                .ok_or_else(|| RouterError::Address { field, address: address.to_owned() })
        };
        Ok(Self {
            address: address.to_owned(),
            http: http.map(|address| authority(address)).transpose()?,
            name_header: HeaderValue::from_str(authority(address)?.as_str())
                .map_err(|_| RouterError::Address { field, address: address.to_owned() })?,
            uid: None,
        })
    }

    /// `None` would mean that an IP address with a port is no authority.
    fn found(named: SocketAddr, http: SocketAddr, uid: String) -> Option<Self> {
        Some(Self {
            address: named.to_string(),
            http: Some(http.to_string().parse().ok()?),
            name_header: HeaderValue::from_str(&named.to_string()).ok()?,
            uid: Some(uid),
        })
    }
}

fn is_of(slice: &EndpointSlice, service: &str) -> bool {
    slice
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(SERVICE_LABEL))
        .is_some_and(|of| of == service)
}

/// One address for each pod that is ready, by uid. A pod of two address families stands in two slices: IPv4 is taken.
fn ready_addresses<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> BTreeMap<String, IpAddr> {
    let mut found = BTreeMap::new();
    for endpoint in slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| is_ready(endpoint)) {
        // Addresses of one endpoint are the same thing by contract; the first is the one to use.
        let Some(address) = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok()) else {
            continue;
        };
        let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
        let uid = uid.unwrap_or_else(|| address.to_string());
        let known = found.entry(uid).or_insert(address);
        if address.is_ipv4() && known.is_ipv6() {
            *known = address;
        }
    }
    found
}

/// A condition that is not said is to be taken as true.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discovery() -> DiscoveryConfig {
        let text = r#"{"namespace": "ns", "prefillService": "x-prefill", "decodeService": "x-decode"}"#;
        serde_json::from_str(text).unwrap()
    }

    fn slice(service: &str, endpoints: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("{service}-1"), "labels": {SERVICE_LABEL: service}},
            "addressType": "IPv4", "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn endpoint(address: &str, uid: &str, ready: impl Into<Option<bool>>) -> serde_json::Value {
        serde_json::json!({
            "addresses": [address, "203.0.113.1"], "conditions": {"ready": ready.into()},
            "targetRef": {"kind": "Pod", "name": uid, "uid": uid},
        })
    }

    fn addresses(members: &[Member]) -> Vec<&str> {
        members.iter().map(|member| member.address.as_str()).collect()
    }

    #[test]
    fn ready_endpoints_of_the_two_services_are_the_workers() {
        let slices = [
            slice(
                "x-decode",
                serde_json::json!([
                    endpoint("10.0.0.1", "a", true),
                    endpoint("10.0.0.2", "b", false),
                    endpoint("10.0.0.3", "c", None),
                ]),
            ),
            slice("x-prefill", serde_json::json!([endpoint("10.0.0.9", "p", true)])),
            slice("other", serde_json::json!([endpoint("10.9.9.9", "z", true)])),
        ];
        let roster = Roster::found(slices.iter(), &discovery());
        assert_eq!(addresses(&roster.decodes), ["10.0.0.1:8000", "10.0.0.3:8000"]);
        assert_eq!(addresses(&roster.prefills), ["10.0.0.9:9000"]);
        assert_eq!(roster.prefills[0].http.as_ref().unwrap().as_str(), "10.0.0.9:8000");
        assert_eq!(roster.prefills[0].name_header, "10.0.0.9:9000");
    }

    #[test]
    fn a_pod_of_two_address_families_is_one_worker() {
        let v6 = slice(
            "x-decode",
            serde_json::json!([endpoint("fd00::1", "a", true), endpoint("fd00::2", "b", true)]),
        );
        let v4 = slice("x-decode", serde_json::json!([endpoint("10.0.0.1", "a", true)]));
        let roster = Roster::found([&v6, &v4].into_iter(), &discovery());
        assert_eq!(addresses(&roster.decodes), ["10.0.0.1:8000", "[fd00::2]:8000"]);
    }

    #[test]
    fn a_pod_that_took_over_an_address_is_another_worker() {
        let of = |uid| slice("x-decode", serde_json::json!([endpoint("10.0.0.1", uid, true)]));
        let (before, after) = (of("a"), of("b"));
        let roster = |slice| Roster::found(std::iter::once(slice), &discovery());
        assert_ne!(roster(&before), roster(&after));
        assert_eq!(roster(&before), roster(&before.clone()));
    }

    #[test]
    fn a_slice_without_endpoints_or_with_names_is_no_worker() {
        let none = slice("x-decode", serde_json::Value::Null);
        let named = slice("x-decode", serde_json::json!([endpoint("host.example", "a", true)]));
        assert_eq!(Roster::found([&none, &named].into_iter(), &discovery()), Roster::default());
    }
}
