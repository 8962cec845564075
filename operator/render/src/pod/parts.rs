//! What all pods of an object have in common, engines and routers: container, probes, security, the user's template.
//! Never: resources and volumes of engines.

use engine_spec::config::{CLUSTER_GRPC_PORT, CLUSTER_HTTP_PORT, DEFAULT_DRAIN_TIMEOUT_MS};
use fathom_crds::inference_cluster::{EnvVar as OwnEnvVar, PodTemplateSpec, Toleration as OwnToleration};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, HTTPGetAction, LocalObjectReference, PodSecurityContext,
    PodSpec, Probe, SeccompProfile, SecurityContext, Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::names;
use crate::owned::Texts;

/// User and group of our images.
const NONROOT: i64 = 65_532;

/// After the drain a process frees its memory: hundreds of pinned GiB take tens of seconds.
const RELEASE_SECONDS: i64 = 30;

/// Between two probes: a pod is used soon after it is ready, and a probe costs nothing.
const PROBE_SECONDS: u64 = 2;

/// An engine whose CPUs are all computing still answers within this time.
const PROBE_TIMEOUT_SECONDS: i32 = 5;

/// Weights come at least this fast, else something is broken: a tenth of a plain network disk.
const LOAD_BYTES_PER_SECOND: u64 = 100 << 20;

/// What a start may take besides weights: container runtime, drivers, compiling of kernels.
const START_SECONDS: u64 = 300;

/// What a container reads before it is alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loading {
    pub(crate) weight_bytes: u64,
}

impl Loading {
    /// Probes that may fail before a start counts as failed.
    fn probes(self) -> i32 {
        let seconds = START_SECONDS + self.weight_bytes / LOAD_BYTES_PER_SECOND;
        i32::try_from(seconds.div_ceil(PROBE_SECONDS)).unwrap_or(i32::MAX)
    }
}

/// The parts of a pod's spec that the user's template and our rules fill alike for all roles.
pub(crate) fn pod_base(template: &PodTemplateSpec) -> PodSpec {
    let drain = i64::try_from(DEFAULT_DRAIN_TIMEOUT_MS.div_ceil(1000)).unwrap_or(i64::MAX);
    let secrets = template.image_pull_secrets.iter();
    let secrets: Vec<_> = secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect();
    let tolerations: Vec<_> = template.tolerations.iter().map(toleration).collect();
    PodSpec {
        enable_service_links: Some(false),
        image_pull_secrets: Some(secrets).filter(|secrets| !secrets.is_empty()),
        node_selector: Some(template.node_selector.clone()).filter(|labels| !labels.is_empty()),
        priority_class_name: template.priority_class_name.clone(),
        restart_policy: Some("Always".to_owned()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(NONROOT),
            run_as_group: Some(NONROOT),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(drain + RELEASE_SECONDS),
        tolerations: Some(tolerations).filter(|tolerations| !tolerations.is_empty()),
        ..PodSpec::default()
    }
}

/// The container of a pod, without resources, environment and mounts.
pub(crate) fn container(image: &str, ports: &[&str], loading: Loading) -> Container {
    Container {
        name: names::CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/fathom-engine".to_owned()]),
        args: Some(vec!["--config".to_owned(), format!("{}/{}", names::CONFIG_DIRECTORY, names::CONFIG_KEY)]),
        ports: Some(ports.iter().map(|name| port(name)).collect()),
        // Alive is asked from the start: an engine answers while it loads, and liveness waits for the first answer.
        startup_probe: Some(probe("/healthz", loading.probes())),
        liveness_probe: Some(probe("/healthz", 15)),
        readiness_probe: Some(probe("/readyz", 2)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

pub(crate) fn add_capability(container: &mut Container, name: &str) {
    let context = container.security_context.get_or_insert_default();
    let capabilities = context.capabilities.get_or_insert_default();
    capabilities.add.get_or_insert_default().push(name.to_owned());
}

/// The user's variables, and ours, which win. An image may show all GPUs to whoever asks for none: a pod without GPUs
/// says that it wants none.
pub(crate) fn environment(given: &[OwnEnvVar], gpus: usize) -> Option<Vec<EnvVar>> {
    let ours: &[(&str, &str)] = if gpus == 0 { &[("NVIDIA_VISIBLE_DEVICES", "void")] } else { &[] };
    let variable = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    };
    let theirs = given.iter().filter(|env| ours.iter().all(|(name, _)| *name != env.name));
    let all: Vec<EnvVar> = theirs
        .map(|env| variable(&env.name, &env.value))
        .chain(ours.iter().map(|(name, value)| variable(name, value)))
        .collect();
    Some(all).filter(|all| !all.is_empty())
}

/// `ours`, with what else the user gave.
pub(crate) fn without_overwriting(mut ours: Texts, given: &Texts) -> Texts {
    for (key, value) in given {
        ours.entry(key.clone()).or_insert_with(|| value.clone());
    }
    ours
}

fn probe(path: &str, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(names::PORT_HTTP.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: i32::try_from(PROBE_SECONDS).ok(),
        timeout_seconds: Some(PROBE_TIMEOUT_SECONDS),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn port(name: &str) -> ContainerPort {
    let number = if name == names::PORT_GRPC { CLUSTER_GRPC_PORT } else { CLUSTER_HTTP_PORT };
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn toleration(given: &OwnToleration) -> Toleration {
    Toleration {
        key: given.key.clone(),
        operator: Some(format!("{:?}", given.operator)),
        value: given.value.clone(),
        effect: given.effect.clone(),
        toleration_seconds: given.toleration_seconds,
    }
}
