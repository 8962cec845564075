//! From a plan to what each engine process is told.
//! In: the plan, one of its replicas, the spec, who enforces the plan, where the model is. Out: [`EngineConfig`].
//! Never: decisions. `listen` and `peers` stay as they are by default, for whoever starts the process and knows them;
//! [`in_pod`] fills them in for a cluster.

use std::net::{Ipv4Addr, SocketAddr};

use engine_spec::config::{
    AdmissionConfig, BindingConfig, CLUSTER_GRPC_PORT, CLUSTER_HTTP_PORT, ChatConfig,
    DEFAULT_DRAIN_TIMEOUT_MS, DEFAULT_REQUEST_TIMEOUT_MS, DiscoveryConfig, EffortProfile, ListenConfig,
    ModelConfig, PeersConfig, PoolConfig, SchedulerConfig, Thinking,
};
use engine_spec::{EngineConfig, IndexKeyFormat, NamedShape, Precision, Role};
use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster as api;

use crate::cpu_list::cpu_list;
use crate::enforcement::{Enforcement, Mode};
use crate::plan::{Plan, ReplicaPlan};
use crate::report::Planned;

/// The configuration of one engine replica.
pub fn engine_config(
    planned: &Planned,
    replica: &ReplicaPlan,
    spec: &InferenceClusterSpec,
    enforcement: &Enforcement,
    model_path: &str,
) -> EngineConfig {
    let scheduler = SchedulerConfig::default();
    let slots = replica.device_pool.slots;
    EngineConfig {
        pools: Some(PoolConfig { kv_pages: replica.device_pool.pages, request_slots: slots }),
        scheduler: SchedulerConfig { max_running: scheduler.max_running.min(slots), ..scheduler },
        binding: binding(replica, spec, enforcement),
        ..base(&planned.plan, spec, replica.name.clone(), replica.role, Some(model_path))
    }
}

/// The configuration of one router. It has no revision: it serves those of its engines, also two at a time.
pub fn router_config(planned: &Planned, spec: &InferenceClusterSpec, index: u32) -> EngineConfig {
    let plan = &planned.plan;
    let name = format!("{}-router-{index}", plan.name);
    EngineConfig { revision: String::new(), ..base(plan, spec, name, Role::Router, None) }
}

/// `config` for a pod: on all addresses and the cluster's ports, with peers found through the headless Services of the
/// planned object.
pub fn in_pod(mut config: EngineConfig, plan: &Plan, namespace: &str) -> EngineConfig {
    let on = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let grpc = (config.role == Role::Prefill).then(|| on(CLUSTER_GRPC_PORT));
    config.listen = ListenConfig { http: on(CLUSTER_HTTP_PORT), grpc };
    let prefills = plan.replicas.iter().any(|replica| replica.role == Role::Prefill);
    let discovery = DiscoveryConfig {
        namespace: namespace.to_owned(),
        prefill_service: prefills.then(|| format!("{}-prefill", plan.name)),
        decode_service: format!("{}-decode", plan.name),
        http_port: CLUSTER_HTTP_PORT,
        grpc_port: CLUSTER_GRPC_PORT,
    };
    let calls = matches!(config.role, Role::Decode | Role::Router);
    config.peers = PeersConfig { discovery: calls.then_some(discovery), ..PeersConfig::default() };
    config
}

fn base(
    plan: &Plan,
    spec: &InferenceClusterSpec,
    name: String,
    role: Role,
    model_path: Option<&str>,
) -> EngineConfig {
    let limit = &plan.queue_limit;
    EngineConfig {
        name,
        role,
        revision: plan.revision.clone(),
        model: ModelConfig {
            name: spec.model.name.clone(),
            path: model_path.map(str::to_owned),
            shape: if role == Role::Router { None } else { named_shape(spec) },
            context_tokens: plan.context_tokens,
            precision: Precision::default(),
            index_keys: index_keys(spec),
            index_top_k: spec.model.indexer.top_k.and_then(|k| u32::try_from(k).ok()),
        },
        listen: ListenConfig::default(),
        peers: PeersConfig::default(),
        pools: None,
        scheduler: SchedulerConfig::default(),
        admission: AdmissionConfig {
            time_to_first_token_ms: limit.time_to_first_token_ms,
            max_queued_requests: limit.requests,
            prefill_tokens_per_second: limit.prefill_tokens_per_second,
            queue_limit_tokens: limit.tokens.filter(|_| limit.given),
        },
        chat: chat(spec),
        binding: BindingConfig::default(),
        drain_timeout_ms: DEFAULT_DRAIN_TIMEOUT_MS,
        request_timeout_ms: DEFAULT_REQUEST_TIMEOUT_MS,
    }
}

/// What is left to the engine itself. A refused binding is only reported, unless the object requires it.
fn binding(replica: &ReplicaPlan, spec: &InferenceClusterSpec, enforcement: &Enforcement) -> BindingConfig {
    let threads = u32::try_from(replica.cpus.len()).ok().filter(|threads| *threads > 0);
    match enforcement.mode {
        Mode::Unmanaged => BindingConfig::default(),
        // The kubelet chose CPUs and node by itself: the engine finds itself on them.
        Mode::Kubelet { .. } => BindingConfig { threads, ..BindingConfig::default() },
        Mode::Dra { .. } | Mode::Soft { .. } => BindingConfig {
            cpus: Some(cpu_list(&replica.cpus)).filter(|cpus| !cpus.is_empty()),
            memory_node: replica.memory_node.filter(|_| enforcement.bind_memory),
            cpus_required: spec.placement.numa == api::NumaMode::Required && replica.numa_node.is_some(),
            memory_required: spec.placement.memory_binding == api::MemoryBinding::Required,
            threads,
        },
    }
}

/// The dimensions that the object names, by shape or by a published model name.
pub fn named_shape(spec: &InferenceClusterSpec) -> Option<NamedShape> {
    match spec.model.shape {
        Some(api::ShapeName::V4Flash) => Some(NamedShape::V4Flash),
        Some(api::ShapeName::V4Pro) => Some(NamedShape::V4Pro),
        Some(api::ShapeName::Needle) => Some(NamedShape::Needle),
        None => NamedShape::from_model_name(&spec.model.name),
    }
}

/// The format of index keys that the object asks for.
pub(crate) fn index_keys(spec: &InferenceClusterSpec) -> IndexKeyFormat {
    match spec.model.indexer.key_format {
        api::IndexKeyFormat::Bf16 => IndexKeyFormat::Bf16,
        api::IndexKeyFormat::Fp8 => IndexKeyFormat::Fp8,
        api::IndexKeyFormat::Fp4 => IndexKeyFormat::Fp4,
    }
}

fn chat(spec: &InferenceClusterSpec) -> ChatConfig {
    ChatConfig {
        thinking: match spec.model.chat.thinking {
            api::Thinking::On => Thinking::On,
            api::Thinking::Off => Thinking::Off,
        },
        effort_profile: match spec.model.chat.effort_profile {
            api::EffortProfile::V0731 => EffortProfile::V0731,
            api::EffortProfile::Preview => EffortProfile::Preview,
        },
    }
}
