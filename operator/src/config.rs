//! What the operator is told when it starts.
//! In: the command line and `FATHOM_*` of the environment. Out: [`Config`]. Never: defaults that depend on the cluster.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory as _, Parser};

/// Turns InferenceCluster objects into prefill, decode and router pods on the right GPUs and NUMA nodes.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "fathom-operator",
    version,
    args_override_self = true,
    after_help = "Each flag may also be given as an environment variable: --lease-name as FATHOM_LEASE_NAME. The flag wins."
)]
pub struct Config {
    /// Image of engine and router where an object names none.
    #[arg(long, default_value = concat!("fathom.dev/fathom-engine:", env!("CARGO_PKG_VERSION")))]
    pub engine_image: String,
    /// Namespace that the operator runs in: its Lease and the agents' certificates are there.
    #[arg(long, default_value = "fathom-system")]
    pub namespace: String,
    /// Name of this pod: who holds the Lease.
    #[arg(long, default_value = "fathom-operator")]
    pub pod_name: String,
    /// Namespaces whose objects are served, separated by commas; empty: all.
    #[arg(long, default_value = "")]
    pub watch_namespaces: String,
    /// Name of the Lease: only its holder writes.
    #[arg(long, default_value = "fathom-operator")]
    pub lease_name: String,
    /// How long a Lease lasts that is not renewed; it is renewed three times as often.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(6..=300))]
    pub lease_duration_seconds: u32,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub http: SocketAddr,
    /// Address of the plan service; loopback, so that only a port-forward reaches it.
    #[arg(long, default_value = "127.0.0.1:8081")]
    pub plan_listen: SocketAddr,
    /// Labels of the node agents' pods.
    #[arg(long, default_value = "app.kubernetes.io/name=fathom,app.kubernetes.io/component=node-agent")]
    pub agent_selector: String,
    /// Namespace of the node agents; absent: the operator's.
    #[arg(long)]
    pub agent_namespace: Option<String>,
    /// Audience of the token that agents are shown.
    #[arg(long, default_value = "fathom-node-agent")]
    pub agent_audience: String,
    /// Secret with the agents' certificate.
    #[arg(long, default_value = "fathom-node-agent-tls")]
    pub agent_tls_secret: String,
    /// File with the token that agents are shown; read again for each connection.
    #[arg(long, default_value = "/var/run/secrets/fathom/token")]
    pub agent_token_file: PathBuf,
    /// What is logged: a level, or `target=level` pairs separated by commas.
    #[arg(long, default_value = "info")]
    pub log: String,
}

impl Config {
    /// Reads the command line of this process and its environment, or says what is wrong.
    ///
    /// # Errors
    /// As clap explains it; also help and version.
    pub fn read() -> Result<Self, clap::Error> {
        Self::from_parts(std::env::args_os(), |name| std::env::var(name).ok())
    }

    /// Flags from the environment come first, so that those of the command line override them.
    fn from_parts(
        args: impl IntoIterator<Item = OsString>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, clap::Error> {
        let mut args = args.into_iter();
        let mut all: Vec<OsString> = args.next().into_iter().collect();
        for flag in Self::command().get_arguments().filter_map(clap::Arg::get_long) {
            let name = format!("FATHOM_{}", flag.replace('-', "_").to_uppercase());
            if let Some(value) = variable(&name) {
                all.push(format!("--{flag}={value}").into());
            }
        }
        all.extend(args);
        Self::try_parse_from(all)
    }

    /// Namespaces to watch; empty: all.
    pub fn namespaces(&self) -> Vec<String> {
        let names = self.watch_namespaces.split(',').map(str::trim);
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    pub fn agent_namespace(&self) -> &str {
        self.agent_namespace.as_deref().unwrap_or(&self.namespace)
    }

    pub fn lease_duration(&self) -> Duration {
        Duration::from_secs(u64::from(self.lease_duration_seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str], variables: &[(&str, &str)]) -> Result<Config, clap::Error> {
        let args = ["fathom-operator"].iter().chain(args).map(OsString::from);
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Config::from_parts(args, find)
    }

    #[test]
    fn the_definition_is_sound_and_an_empty_list_of_namespaces_means_all() {
        Config::command().debug_assert();
        assert_eq!(read(&["--watch-namespaces", ""], &[]).unwrap().namespaces(), Vec::<String>::new());
        assert_eq!(read(&["--watch-namespaces", "a, b"], &[]).unwrap().namespaces(), ["a", "b"]);
        assert_eq!(read(&["--namespace", "x"], &[]).unwrap().agent_namespace(), "x");
        assert!(read(&["--lease-duration-seconds", "2"], &[]).is_err(), "shorter than its own renewals");
    }

    #[test]
    fn the_environment_gives_flags_and_the_command_line_wins() {
        let environment = [("FATHOM_LEASE_NAME", "from-environment"), ("FATHOM_LOG", "debug")];
        let config = read(&["--log", "warn"], &environment).unwrap();
        assert_eq!((config.lease_name.as_str(), config.log.as_str()), ("from-environment", "warn"));
        assert!(read(&[], &[("FATHOM_HTTP", "nonsense")]).is_err());
    }
}
