//! What one replica of each role needs, before any machine is looked at.
//! In: spec, shape, bytes of the weights. Out: a [`Demand`] per engine role that has replicas.
//! Never: facts. All byte arithmetic is `engine-spec`'s.

use engine_spec::host_tier::{
    CPU_POOL_CONTEXTS, GPU_ACTIVATION_BYTES, GPU_SHARE_PERCENT, cpu_replica_bytes, gpu_replica_bytes,
};
use engine_spec::memory::{CacheFormat, weight_bytes_per_rank};
use engine_spec::{ModelShape, Precision, Role};
use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::{Device, RoleSpec, RuntimeKind};

use crate::engine_config::index_keys;
use crate::keep;
use crate::plan::{ComputeDevice, DevicePool, PlanInput};
use crate::report::{Report, SizeReport, thousands};
use crate::surroundings::Present;

/// Context of an object that says nothing: long enough for documents and code, small enough for one request a GPU.
const DEFAULT_CONTEXT_TOKENS: u32 = 131_072;

/// Requests in the pools at once: what the engine's scheduler runs together by default.
const MAX_SLOTS: u64 = 64;

/// Of a pool that holds few requests of the full context, one part in so many goes to request slots: pages are what
/// long prompts need.
const SLOT_SHARE: u64 = 4;

/// What one replica of a role needs.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    pub(crate) role: Role,
    /// Numbers of the replicas that are to be placed.
    pub(crate) indices: Vec<u32>,
    pub(crate) gpus: u32,
    /// The user's number.
    pub(crate) cpus: Option<u32>,
    pub(crate) device: ComputeDevice,
    pub(crate) weight_bytes_per_rank: u64,
    /// Host memory without device pool and host tier.
    pub(crate) own_bytes: u64,
    pub(crate) pool: PoolSize,
}

impl Demand {
    /// Replicas that are to be placed.
    pub(crate) fn replicas(&self) -> u32 {
        u32::try_from(self.indices.len()).unwrap_or(u32::MAX)
    }

    /// Smallest GPU that a rank fits on; absent where nothing is computed on a GPU.
    pub(crate) fn gpu_memory_bytes(&self) -> Option<u64> {
        let on_gpu = self.device == ComputeDevice::Cuda;
        let used = self.weight_bytes_per_rank + GPU_ACTIVATION_BYTES + self.pool.min_bytes();
        on_gpu.then(|| used.div_ceil(GPU_SHARE_PERCENT).saturating_mul(100))
    }

    /// Host memory that must be there for a replica to be placed.
    pub(crate) fn min_memory_bytes(&self) -> u64 {
        match self.device {
            ComputeDevice::Cuda => self.own_bytes,
            ComputeDevice::Cpu => self.own_bytes + self.pool.min_bytes(),
        }
    }

    /// CPUs that must be there for a replica to be placed, in numbers that add up over replicas; on the CPU, replicas
    /// without a number of their own may share.
    pub(crate) fn min_cpus(&self) -> u32 {
        match self.device {
            ComputeDevice::Cuda => self.cpus.unwrap_or(self.gpus.max(1)),
            ComputeDevice::Cpu => self.cpus.unwrap_or(0),
        }
    }
}

/// How bytes become a device pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSize {
    page_bytes: u64,
    slot_bytes: u64,
    context_pages: u64,
}

impl PoolSize {
    /// One request of the full context.
    pub(crate) fn min_bytes(self) -> u64 {
        self.context_pages * self.page_bytes + self.slot_bytes
    }

    /// On the CPU nobody needs more: some requests of the full context, and all slots.
    pub(crate) fn cpu_wish_bytes(self) -> u64 {
        CPU_POOL_CONTEXTS * self.context_pages * self.page_bytes + MAX_SLOTS * self.slot_bytes
    }

    /// The pool that `bytes` hold; `bytes` is at least [`PoolSize::min_bytes`].
    pub(crate) fn pool(self, bytes: u64) -> DevicePool {
        let beyond = |contexts: u64| bytes.saturating_sub(contexts * self.context_pages * self.page_bytes);
        let for_slots = (bytes / SLOT_SHARE).max(beyond(CPU_POOL_CONTEXTS)).min(beyond(1));
        let slots = (for_slots / self.slot_bytes.max(1)).clamp(1, MAX_SLOTS);
        let pages = bytes.saturating_sub(slots * self.slot_bytes) / self.page_bytes.max(1);
        let pages = pages.min(u64::from(u32::MAX));
        DevicePool {
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            bytes: pages * self.page_bytes + slots * self.slot_bytes,
        }
    }

    pub(crate) fn page_bytes(self) -> u64 {
        self.page_bytes
    }
}

/// Longest prompt plus answer: the user's number, or the default within the model's own limit.
pub(crate) fn context_tokens(input: &PlanInput<'_>) -> u32 {
    let own = u32::try_from(input.shape.max_position_embeddings).unwrap_or(u32::MAX);
    let given = input.spec.model.context_tokens.and_then(|tokens| u32::try_from(tokens).ok());
    given.unwrap_or(DEFAULT_CONTEXT_TOKENS.min(own))
}

/// The needs of each engine role that has replicas to place, prefill first. What cannot be sized at all is refused in
/// the report.
pub(crate) fn demands(input: &PlanInput<'_>, kept: &[&Present], report: &mut Report) -> Vec<Demand> {
    refuse_unsupported(input, report);
    let spec = input.spec;
    let second = if spec.prefill_replicas() > 0 { Role::Decode } else { Role::Unified };
    let prefill = spec.prefill.as_ref().map(|prefill| (Role::Prefill, prefill));
    let mut demands = Vec::new();
    for (role, asked) in prefill.into_iter().chain([(second, &spec.decode)]) {
        if asked.replicas <= 0 {
            continue;
        }
        let demand = demand(input, role, asked, kept);
        if demand.device == ComputeDevice::Cuda
            && let Some(message) = undividable(input.shape, role, demand.gpus)
        {
            report.refuse(Reason::NotFeasible, message);
        }
        report.sizes.push(SizeReport {
            role,
            replicas: keep::replicas(input, role),
            gpus: demand.gpus,
            weight_bytes_per_rank: demand.weight_bytes_per_rank,
            gpu_memory_bytes: demand.gpu_memory_bytes(),
            memory_bytes: demand.min_memory_bytes(),
        });
        demands.push(demand);
    }
    if demands.is_empty() {
        report.note(|| "all engine roles have zero replicas: nothing runs".to_owned());
    }
    demands.retain(|demand| !demand.indices.is_empty());
    demands
}

fn refuse_unsupported(input: &PlanInput<'_>, report: &mut Report) {
    let model = &input.spec.model;
    let template = &input.spec.pod_template;
    if input.surroundings.nodes.is_none() && !template.node_selector.is_empty() {
        report.note(|| {
            "podTemplate.nodeSelector is not looked at: without a cluster nodes have no labels".to_owned()
        });
    }
    if input.spec.runtime.kind == RuntimeKind::SGLang {
        let message = "spec.runtime.kind SGLang is not supported yet; use Fathom".to_owned();
        report.refuse(Reason::RuntimeNotSupported, message);
    }
    if model.source.hugging_face.is_some() {
        let message =
            "spec.model.source.huggingFace is not supported yet; use hostPath, pvc or image".to_owned();
        report.refuse(Reason::SourceNotSupported, message);
    }
    let limit = input.shape.max_position_embeddings as u64;
    let asked = u64::from(context_tokens(input));
    if asked > limit {
        let (asked, limit) = (thousands(asked), thousands(limit));
        let message = format!("spec.model.contextTokens is {asked}; the model ends at {limit}");
        report.refuse(Reason::NotFeasible, message);
    }
}

/// Why the model cannot be split over so many ranks.
fn undividable(shape: &ModelShape, role: Role, gpus: u32) -> Option<String> {
    let ranks = gpus.max(1) as usize;
    let parts = [
        ("attention heads", shape.num_attention_heads),
        ("output groups", shape.o_groups),
        ("experts", shape.n_routed_experts),
        ("vocabulary rows", shape.vocab_size),
    ];
    let (name, count) = parts.into_iter().find(|(_, count)| !count.is_multiple_of(ranks))?;
    let possible: Vec<String> = (1..=64usize)
        .filter(|n| parts.iter().all(|(_, count)| count.is_multiple_of(*n)))
        .map(|n| n.to_string())
        .collect();
    let possible = possible.join(", ");
    Some(format!("{role}: {count} {name} cannot be split over {ranks} GPUs; this model takes {possible}"))
}

fn demand(input: &PlanInput<'_>, role: Role, asked: &RoleSpec, kept: &[&Present]) -> Demand {
    let gpus = u32::try_from(asked.gpus).unwrap_or(0);
    let on_cpu = gpus == 0 || input.spec.runtime.device == Device::Cpu;
    let format = CacheFormat { precision: Precision::default(), index_keys: index_keys(input.spec) };
    let ranks = if on_cpu { 1 } else { gpus };
    let weights = weight_bytes_per_rank(input.shape, ranks as usize);
    let own_bytes = if on_cpu {
        cpu_replica_bytes(input.weight_bytes.unwrap_or(weights))
    } else {
        gpu_replica_bytes(u64::from(ranks))
    };
    Demand {
        role,
        indices: (0..keep::replicas(input, role)).filter(|index| !has(kept, role, *index)).collect(),
        gpus,
        cpus: asked.cpus.and_then(|cpus| u32::try_from(cpus).ok()),
        device: if on_cpu { ComputeDevice::Cpu } else { ComputeDevice::Cuda },
        weight_bytes_per_rank: if on_cpu { input.weight_bytes.unwrap_or(weights) } else { weights },
        own_bytes,
        pool: PoolSize {
            page_bytes: format.page_bytes(input.shape) as u64,
            slot_bytes: format.slot_bytes(input.shape) as u64,
            context_pages: CacheFormat::pages_for(context_tokens(input) as usize) as u64,
        },
    }
}

fn has(kept: &[&Present], role: Role, index: u32) -> bool {
    kept.iter().any(|present| present.replica.role == role && present.replica.index == index)
}
