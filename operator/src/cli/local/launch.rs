//! The processes of a cluster on this machine: their order, and the addresses they are told.
//! In: the planner's engine configurations, and what the processes said they listen on. Out: complete configurations.
//! Never: I/O.
//! A process gets a free port at its first start and keeps it for good, so that a restart changes nothing for its
//! peers; what it listens on is written into its own configuration for that.

use std::net::{Ipv4Addr, SocketAddr};

use engine_spec::config::{EngineConfig, ListenConfig, PeersConfig, PrefillPeer, Role};
use serde::{Deserialize, Serialize};

use super::ports;

/// Where a process listens, as its `listening` line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: Option<SocketAddr>,
}

/// One process to run.
#[derive(Debug, Clone)]
pub(crate) struct ProcessSpec {
    /// `prefill-0`: in messages, and the name of its files.
    pub(crate) name: String,
    pub(crate) config: EngineConfig,
}

/// Processes of a lower stage listen before those of a higher one start, and end after them.
pub(crate) fn stage(role: Role) -> u8 {
    match role {
        Role::Prefill => 0,
        Role::Decode | Role::Unified => 1,
        Role::Router => 2,
    }
}

/// Names the processes and says where they listen: the router on `listen`, the others on free ports of loopback.
pub(crate) fn arrange(
    engines: Vec<EngineConfig>,
    router: EngineConfig,
    listen: SocketAddr,
) -> Vec<ProcessSpec> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut specs: Vec<ProcessSpec> = Vec::new();
    for mut config in engines.into_iter().chain([router]) {
        config.listen = match config.role {
            Role::Router => ListenConfig { http: listen, grpc: None },
            Role::Prefill => ListenConfig { http: loopback, grpc: Some(loopback) },
            Role::Decode | Role::Unified => ListenConfig { http: loopback, grpc: None },
        };
        let index = specs.iter().filter(|spec| spec.config.role == config.role).count();
        specs.push(ProcessSpec { name: format!("{}-{index}", config.role), config });
    }
    specs.sort_by_key(|spec| stage(spec.config.role));
    specs
}

/// `config` with the peers its role calls, out of all processes that listen.
pub(crate) fn with_peers(
    mut config: EngineConfig,
    listening: impl Iterator<Item = (Role, Addresses)> + Clone,
) -> EngineConfig {
    let prefill = listening.clone().filter_map(|(role, at)| {
        let grpc = at.grpc.filter(|_| role == Role::Prefill)?;
        let http = Some(ports::to_call(at.http).to_string());
        Some(PrefillPeer { grpc: ports::to_call(grpc).to_string(), http })
    });
    let decode = listening
        .filter(|(role, _)| stage(*role) == stage(Role::Decode))
        .map(|(_, at)| ports::to_call(at.http).to_string());
    config.peers = match config.role {
        Role::Prefill | Role::Unified => PeersConfig::default(),
        Role::Decode => PeersConfig { prefill: prefill.collect(), ..PeersConfig::default() },
        Role::Router => {
            PeersConfig { prefill: prefill.collect(), decode: decode.collect(), ..PeersConfig::default() }
        }
    };
    config
}

/// `config` for good on the ports that it got.
pub(crate) fn on_ports(mut config: EngineConfig, at: Addresses) -> EngineConfig {
    config.listen = ListenConfig { http: at.http, grpc: at.grpc };
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(role: Role) -> EngineConfig {
        let text = format!(
            r#"{{"name": "x-{role}", "role": "{role}", "model": {{"name": "x", "path": "/m", "contextTokens": 256}},
                "pools": {{"kvPages": 4, "requestSlots": 4}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn at(http: u16, grpc: Option<u16>) -> Addresses {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Addresses { http: local(http), grpc: grpc.map(local) }
    }

    #[test]
    fn processes_are_named_by_role_and_ordered_by_stage() {
        let engines = vec![config(Role::Decode), config(Role::Prefill), config(Role::Prefill)];
        let listen = "0.0.0.0:8000".parse().unwrap();
        let specs = arrange(engines, config(Role::Router), listen);
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["prefill-0", "prefill-1", "decode-0", "router-0"]);
        assert_eq!(specs[3].config.listen.http, listen);
        assert!(specs[0].config.listen.grpc.is_some() && specs[2].config.listen.grpc.is_none());
    }

    #[test]
    fn every_role_is_told_the_peers_it_calls_and_its_configuration_is_then_accepted() {
        let listening =
            [(Role::Prefill, at(1, Some(2))), (Role::Decode, at(3, None)), (Role::Router, at(4, None))];
        for role in [Role::Prefill, Role::Decode, Role::Router] {
            let mut config = config(role);
            config.listen.grpc = (role == Role::Prefill).then_some(at(0, None).http);
            let told = with_peers(config, listening.into_iter());
            let told = EngineConfig::from_json(&serde_json::to_string(&told).unwrap()).unwrap();
            let prefills = usize::from(role != Role::Prefill);
            let decodes = usize::from(role == Role::Router);
            assert_eq!((told.peers.prefill.len(), told.peers.decode.len()), (prefills, decodes), "{role}");
        }
    }

    #[test]
    fn the_router_of_a_unified_engine_is_told_it_as_decode() {
        let told = with_peers(config(Role::Router), [(Role::Unified, at(3, None))].into_iter());
        assert_eq!(told.peers.decode, ["127.0.0.1:3"]);
        assert!(told.peers.prefill.is_empty());
    }
}
