//! The agent's flags.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// Reads the facts of a node and tells them to the operator.
#[derive(Debug, Clone, Parser)]
#[command(name = "fathom-node-agent", version)]
pub struct Config {
    /// Kubernetes name of this node (from spec.nodeName of the pod); without it, the host's name
    #[arg(long)]
    pub node: Option<String>,

    /// Where the host's /sys is mounted: ROOT/sys
    #[arg(long, default_value = "/host")]
    pub root: PathBuf,

    /// Where the kubelet's folder is mounted
    #[arg(long, default_value = "/host/kubelet")]
    pub kubelet_dir: PathBuf,

    /// Address of the gRPC service
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub grpc: SocketAddr,

    /// Address of health and metrics, in plain HTTP
    #[arg(long, default_value = "0.0.0.0:9101")]
    pub http: SocketAddr,

    /// Folder with tls.crt and tls.key; they may come later, and change
    #[arg(long, default_value = "/etc/fathom/tls")]
    pub tls_dir: PathBuf,

    /// Audience that callers' tokens must be made for
    #[arg(long, default_value = "fathom-node-agent")]
    pub audience: String,

    /// Service account whose tokens are accepted: NAMESPACE:NAME
    #[arg(long, value_parser = account, required_unless_present = "insecure_loopback")]
    pub allow_account: Option<Account>,

    /// Tell of a recorded machine instead of this one: a scene's name or folder
    #[arg(long, value_name = "SCENE")]
    pub facts: Option<String>,

    /// Serve without TLS and tokens; only on a loopback address
    #[arg(long)]
    pub insecure_loopback: bool,

    /// Metrics of GPUs also under the names of dcgm-exporter
    #[arg(long)]
    pub dcgm_names: bool,

    /// What to log: error, warn, info, debug, or a filter such as info,fathom_node_agent=debug
    #[arg(long, default_value = "info")]
    pub log: String,
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

fn account(text: &str) -> Result<Account, String> {
    match text.split_once(':') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains(':') => {
            Ok(Account { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("expected NAMESPACE:NAME, such as fathom-system:fathom-operator".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, clap::Error> {
        Config::try_parse_from([&["fathom-node-agent"], arguments].concat())
    }

    #[test]
    fn an_account_has_a_namespace_and_a_name() {
        let config = parse(&["--allow-account", "fathom-system:fathom-operator"]).unwrap();
        let account = config.allow_account.unwrap();
        assert_eq!((account.namespace.as_str(), account.name.as_str()), ("fathom-system", "fathom-operator"));
        for wrong in ["", "a", ":a", "a:", "a:b:c"] {
            let error = parse(&["--allow-account", wrong]).unwrap_err().to_string();
            assert!(error.contains("expected NAMESPACE:NAME"), "{error}");
        }
    }

    #[test]
    fn nobody_is_admitted_by_forgetting_a_flag() {
        let error = parse(&[]).unwrap_err().to_string();
        assert!(error.contains("--allow-account"), "{error}");
        assert!(parse(&["--insecure-loopback"]).is_ok());
    }
}
