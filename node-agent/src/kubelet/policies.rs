//! Policies in force: the kubelet's state files, and its configuration where there is no state.
//! A state file outlives a change of the configuration, and then the kubelet refuses to start or keeps the old policy: what
//! the file says is in force, and a difference is worth a remark.
//! Source: kubelet, cm/cpumanager/state, cm/memorymanager/state; KubeletConfiguration v1beta1.

use node_facts::Reading;
use serde::Deserialize;

use crate::derive::cpulist;
use crate::source::{FileText, Tree};

const CPU_STATE: &str = "cpu_manager_state";
const MEMORY_STATE: &str = "memory_manager_state";
const CONFIGURATION: &str = "config.yaml";

#[derive(Debug, Clone)]
pub(super) struct Policies {
    pub(super) cpu_manager: Reading<String>,
    pub(super) topology_manager: Reading<String>,
    pub(super) memory_manager: Reading<String>,
    pub(super) reserved_cpus: Reading<Vec<u32>>,
    pub(super) note: Option<String>,
}

/// Other fields are the kubelet's own business.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    policy_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    cpu_manager_policy: Option<String>,
    topology_manager_policy: Option<String>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
}

pub(super) fn read(folder: &Tree) -> Policies {
    let state = |name| policy_name(&FileText::optional(folder, name));
    let cpu_manager = state(CPU_STATE);
    let configuration = FileText::optional(folder, CONFIGURATION).parse(configuration);
    let configured = configuration.value().map(|configuration| {
        let policy = configuration.cpu_manager_policy.as_deref();
        policy.unwrap_or("none").to_owned()
    });
    let note = match (&cpu_manager, configured) {
        (Reading::Value(in_force), Some(configured)) if *in_force != configured => Some(format!(
            "the kubelet's configuration says CPU manager policy {configured:?}, in force is {in_force:?}: drain the node, \
             remove {CPU_STATE} and restart the kubelet"
        )),
        _ => None,
    };
    Policies {
        cpu_manager,
        // Absent in the file is the default.
        topology_manager: configuration
            .map(|configuration| configuration.topology_manager_policy.unwrap_or_else(|| "none".to_owned())),
        memory_manager: state(MEMORY_STATE),
        reserved_cpus: FileText::optional(folder, CONFIGURATION).parse(reserved_cpus),
        note,
    }
}

fn policy_name(file: &FileText) -> Reading<String> {
    file.parse(|text| {
        let state = serde_saphyr::from_str::<State>(text);
        // Its own texts quote the file over several lines.
        state.map(|state| state.policy_name).map_err(|_| "expected JSON with a policyName")
    })
}

fn reserved_cpus(text: &str) -> Result<Vec<u32>, String> {
    let list = configuration(text)?.reserved_system_cpus.unwrap_or_default();
    cpulist::parse(&list).map_err(|error| format!("reservedSystemCPUs: {error}"))
}

fn configuration(text: &str) -> Result<Configuration, &'static str> {
    serde_saphyr::from_str(text).map_err(|_| "expected a KubeletConfiguration")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn policies(files: &[(&str, &str)]) -> Policies {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        read(&Tree::disk(folder.path()))
    }

    const STATIC: &str =
        r#"{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"c":"1"}},"checksum":1}"#;
    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    #[test]
    fn policies_in_force_are_those_of_the_state_files() {
        let config = format!("{CONFIG}cpuManagerPolicy: static\ntopologyManagerPolicy: single-numa-node\n");
        let memory = r#"{"policyName":"None","machineState":{},"entries":{},"checksum":2}"#;
        let found = policies(&[(CPU_STATE, STATIC), (MEMORY_STATE, memory), (CONFIGURATION, &config)]);
        assert_eq!(found.cpu_manager, Reading::Value("static".into()));
        assert_eq!(found.topology_manager, Reading::Value("single-numa-node".into()));
        assert_eq!(found.memory_manager, Reading::Value("None".into()));
        assert_eq!(found.note, None);
    }

    #[test]
    fn cpus_that_the_kubelet_keeps_for_the_system_are_read() {
        let reserved = |line: &str| policies(&[(CONFIGURATION, &format!("{CONFIG}{line}"))]).reserved_cpus;
        assert_eq!(reserved("reservedSystemCPUs: 0-1,32\n"), Reading::Value(vec![0, 1, 32]));
        assert_eq!(reserved(""), Reading::Value(vec![]));
        let why = "/config.yaml: reservedSystemCPUs: expected CPU numbers such as 0-3,8, found \"many\"";
        assert_eq!(reserved("reservedSystemCPUs: many\n"), Reading::Failed(why.into()));
    }

    #[test]
    fn a_changed_configuration_is_not_in_force_while_the_old_state_stays() {
        let config = format!("{CONFIG}cpuManagerPolicy: static\n");
        let found = policies(&[(CPU_STATE, r#"{"policyName":"none"}"#), (CONFIGURATION, &config)]);
        assert_eq!(found.cpu_manager, Reading::Value("none".into()));
        assert!(found.note.unwrap().contains("says CPU manager policy \"static\", in force is \"none\""));
    }

    #[test]
    fn what_is_not_written_is_the_default_and_what_is_not_there_is_absent() {
        let found = policies(&[(CONFIGURATION, CONFIG)]);
        assert_eq!(found.topology_manager, Reading::Value("none".into()));
        assert!(
            matches!(found.cpu_manager, Reading::Absent(reason) if reason == "/cpu_manager_state does not exist")
        );
        assert!(matches!(policies(&[]).topology_manager, Reading::Absent(_)));
    }

    #[test]
    fn a_torn_file_is_a_failure_that_names_it() {
        let found = policies(&[(CPU_STATE, r#"{"policyNa"#), (CONFIGURATION, "a: [")]);
        let expect = "/cpu_manager_state: expected JSON with a policyName";
        assert_eq!(found.cpu_manager, Reading::Failed(expect.into()));
        assert!(matches!(found.topology_manager, Reading::Failed(_)));
    }
}
