//! Where the prefills of a cluster are: the addresses behind their headless Service, asked of the cluster's DNS.
//! In: the Service's name, `/etc/resolv.conf`. Out: addresses, or why there are none now.
//! Never: the Kubernetes API: engine pods have no token.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use engine_spec::config::DiscoveryConfig;

/// A question that can be asked again and again.
pub type Lookup = Arc<dyn Fn() -> Answer + Send + Sync>;

/// All addresses, in any order.
pub type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Asks for the prefills of `discovery`.
pub fn by_dns(discovery: &DiscoveryConfig) -> Lookup {
    let service = discovery.prefill_service.as_deref().unwrap_or_default();
    let resolver = std::fs::read_to_string(Path::new("/etc/resolv.conf")).unwrap_or_default();
    let name: Arc<str> = full_name(service, &discovery.namespace, &resolver).into();
    tracing::info!(name = &*name, "prefills are looked up in DNS");
    let port = discovery.grpc_port;
    Arc::new(move || {
        let name = Arc::clone(&name);
        Box::pin(async move {
            let found = tokio::net::lookup_host((&*name, port)).await?;
            Ok(found.map(|address: SocketAddr| address.ip()).collect())
        })
    })
}

/// The Service's whole name, with a dot at the end, so that one question is enough: a shorter one is tried under every
/// search domain in turn, every second by every decode. Without a cluster's search domain, the name is left to those.
fn full_name(service: &str, namespace: &str, resolv_conf: &str) -> String {
    let search = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("search"));
    let cluster = search.flat_map(str::split_whitespace).find(|domain| domain.starts_with("svc."));
    match cluster {
        Some(domain) => format!("{service}.{namespace}.{}.", domain.trim_end_matches('.')),
        None => format!("{service}.{namespace}.svc"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_search_domains_give_the_whole_name() {
        let pod = "nameserver 10.96.0.10\nsearch ns.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
        assert_eq!(full_name("x-prefill", "ns", pod), "x-prefill.ns.svc.cluster.local.");
        let other = "search ns.svc.example. svc.example. example.";
        assert_eq!(full_name("x-prefill", "ns", other), "x-prefill.ns.svc.example.");
        assert_eq!(full_name("x-prefill", "ns", "nameserver 1.1.1.1\n"), "x-prefill.ns.svc");
    }
}
