//! From a plan to what each engine process is told.
//! In: the plan, one of its replicas, the spec, where the model is. Out: [`EngineConfig`] without addresses.
//! Never: decisions. `listen` and `peers` stay as they are by default: whoever starts the process knows them.

use engine_spec::config::{
    AdmissionConfig, BindingConfig, ChatConfig, DEFAULT_DRAIN_TIMEOUT_MS, DEFAULT_REQUEST_TIMEOUT_MS,
    EffortProfile, ListenConfig, ModelConfig, PeersConfig, PoolConfig, SchedulerConfig, Thinking,
};
use engine_spec::{EngineConfig, IndexKeyFormat, Precision, Role};
use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster as api;

use crate::cpu_list::cpu_list;
use crate::plan::{Plan, ReplicaPlan};
use crate::report::Planned;

/// The configuration of one engine replica.
pub fn engine_config(
    planned: &Planned,
    replica: &ReplicaPlan,
    spec: &InferenceClusterSpec,
    model_path: &str,
) -> EngineConfig {
    let scheduler = SchedulerConfig::default();
    let slots = replica.device_pool.slots;
    EngineConfig {
        pools: Some(PoolConfig { kv_pages: replica.device_pool.pages, request_slots: slots }),
        scheduler: SchedulerConfig { max_running: scheduler.max_running.min(slots), ..scheduler },
        binding: binding(replica, spec),
        ..base(&planned.plan, spec, replica.name.clone(), replica.role, Some(model_path))
    }
}

/// The configuration of one router.
pub fn router_config(planned: &Planned, spec: &InferenceClusterSpec, index: u32) -> EngineConfig {
    let plan = &planned.plan;
    base(plan, spec, format!("{}-router-{index}", plan.name), Role::Router, None)
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

/// Unmanaged placement binds nothing; memory is bound unless the object says never.
fn binding(replica: &ReplicaPlan, spec: &InferenceClusterSpec) -> BindingConfig {
    if spec.placement.mode == api::PlacementMode::Unmanaged {
        return BindingConfig::default();
    }
    let bind_memory = spec.placement.memory_binding != api::MemoryBinding::Off;
    BindingConfig {
        cpus: Some(cpu_list(&replica.cpus)).filter(|cpus| !cpus.is_empty()),
        memory_node: replica.memory_node.filter(|_| bind_memory),
        threads: u32::try_from(replica.cpus.len()).ok().filter(|threads| *threads > 0),
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
