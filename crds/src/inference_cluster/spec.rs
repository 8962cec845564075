//! The parts of the spec, in the order in which a user writes them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::{Duration, Quantity};

/// Which model is served, and where its files are.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    /// The name that clients send as `model`, such as `deepseek-v4-flash`.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// The dimensions to plan with, since the planner of a cluster cannot open the model's files. Absent: taken from
    /// `name` if that is a published name. The engine refuses a checkpoint that differs, and names the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<ShapeName>,
    /// Where the published checkpoint is: exactly one of the ways.
    pub source: ModelSource,
    /// Longest prompt plus answer, in tokens. Absent: 131,072, or the model's own limit if that is lower.
    #[schemars(range(min = 1, max = 1_048_576))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<i32>,
    /// How the sparse attention's index keys are kept and how many entries they select: what long prompts are found
    /// by, at a price in memory.
    #[serde(default)]
    pub indexer: IndexerSpec,
    /// What chat requests get that say nothing themselves.
    #[serde(default)]
    pub chat: ChatSpec,
}

/// The shapes that are known by name.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum ShapeName {
    V4Flash,
    V4Pro,
    Needle,
}

/// Where the checkpoint is. Exactly one field is set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-kubernetes-validations" = rules::schema(rules::SOURCE)))]
pub struct ModelSource {
    /// A folder on the node. Absolute in a cluster; `fathom local` and `fathom plan` also take a path relative to the
    /// file. The namespace must allow hostPath volumes.
    #[schemars(length(min = 1, max = 4096), extend("x-kubernetes-validations" = rules::absolute_path()))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// A folder on a PersistentVolumeClaim of the same namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
    /// An OCI image or artifact that holds the files, mounted as an image volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A repository on Hugging Face. Not supported yet: reported as SourceNotSupported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HuggingFaceSource>,
}

/// A folder on a claim.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PvcSource {
    /// Name of the claim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Folder inside it; absent: its root.
    #[schemars(length(max = 4096))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// An image that holds the model's files.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageSource {
    /// The image, by tag or digest.
    #[schemars(length(min = 1, max = 512))]
    pub reference: String,
}

/// A repository on Hugging Face.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HuggingFaceSource {
    /// `owner/name`.
    #[schemars(length(min = 1, max = 256))]
    pub repository: String,
    /// Commit, tag or branch; absent: the main branch.
    #[schemars(length(max = 128))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Index keys and top-k of the sparse attention.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IndexerSpec {
    /// How an index key is stored: `fp4` (68 bytes, the model's own rounding), `fp8` (132 bytes) or `bf16` (256 bytes,
    /// unrounded). Bytes are for keys of 128 values.
    pub key_format: IndexKeyFormat,
    /// Compressed entries that a query attends to. Absent: the checkpoint's own number.
    #[schemars(range(min = 1, max = 65_536))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i32>,
}

/// Storage format of index keys.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IndexKeyFormat {
    Bf16,
    Fp8,
    #[default]
    Fp4,
}

/// What chat requests get that say nothing themselves.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ChatSpec {
    /// Whether the model thinks before it answers: `"On"` or `"Off"`. Write the quotes: bare On and Off are booleans in
    /// YAML 1.1.
    pub thinking: Thinking,
    /// Which reasoning-effort texts the checkpoint was trained with: V0731 for the July checkpoints, Preview for those
    /// of April.
    pub effort_profile: EffortProfile,
}

/// Whether the model thinks before it answers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Thinking {
    #[default]
    On,
    Off,
}

/// Reasoning-effort texts of a checkpoint.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum EffortProfile {
    #[default]
    V0731,
    Preview,
}

/// Which engine runs, and on what it computes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RuntimeSpec {
    /// The engine. SGLang is not supported yet.
    pub kind: RuntimeKind,
    /// The engine's image. Absent: the one that belongs to the operator, kept until the spec changes.
    #[schemars(length(min = 1, max = 512))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What computes: Auto is Cuda where a role has GPUs, else Cpu. Cpu with GPUs plans and claims them, and computes on
    /// the CPU (for tests and demonstrations).
    pub device: Device,
}

/// The engine that runs in the pods.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum RuntimeKind {
    #[default]
    Fathom,
    SGLang,
}

/// What computes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Device {
    #[default]
    Auto,
    Cuda,
    Cpu,
}

/// One engine role: how many pods, and what each gets.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoleSpec {
    /// Pods of this role.
    #[schemars(range(min = 0, max = 512))]
    #[serde(default = "one")]
    pub replicas: i32,
    /// GPUs of one pod, all on one NUMA node: the tensor parallelism. 0 computes on the CPU.
    #[schemars(range(min = 0, max = 64))]
    pub gpus: i32,
    /// CPUs of one pod. Absent: an even share of the NUMA node's CPUs.
    #[schemars(range(min = 1, max = 4096))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<i32>,
}

fn one() -> i32 {
    1
}

/// The router role.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RouterSpec {
    /// Pods of the router. Two or more survive the loss of a node.
    #[schemars(range(min = 0, max = 64))]
    pub replicas: i32,
}

impl Default for RouterSpec {
    fn default() -> Self {
        Self { replicas: 1 }
    }
}

/// How closely pods are tied to GPUs, CPUs and memory.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlacementSpec {
    /// Who enforces the plan: DRA (a ResourceClaim that names the GPUs), Kubelet (device plugin and topology manager),
    /// Soft (the engine binds itself), Unmanaged (only the node is chosen). Auto takes the first that the cluster
    /// allows, and says why.
    pub mode: PlacementMode,
    /// Required: every pod on one NUMA node, or the plan is refused. Preferred: a pod may span NUMA nodes when it fits
    /// on none. Off: NUMA nodes are not looked at.
    pub numa: NumaMode,
    /// Whether memory is bound to the NUMA node. Required: the pod must be allowed to (CAP_SYS_NICE). Auto: where it is
    /// allowed. Off: never.
    pub memory_binding: MemoryBinding,
}

/// Who enforces the plan.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum PlacementMode {
    #[default]
    Auto,
    DRA,
    Kubelet,
    Soft,
    Unmanaged,
}

/// How strictly a pod stays on one NUMA node.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum NumaMode {
    #[default]
    Required,
    Preferred,
    Off,
}

/// Whether memory is bound to the NUMA node.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum MemoryBinding {
    Required,
    #[default]
    Auto,
    Off,
}

/// The host tier: KV kept in host memory. Whatever is asked, a pod is granted at most what its NUMA node has room for,
/// and the status names the limit.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-kubernetes-validations" = rules::schema(rules::HOST_CACHE)))]
pub struct HostCacheSpec {
    /// Auto: what there is room for on a GPU, nothing on the CPU (where the device pool is host memory already). Size:
    /// `size` in total. Ratio: `ratio` times the device pool. Off: none.
    pub mode: HostCacheMode,
    /// Bytes over all engine pods together, split evenly, such as `300Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Host bytes per byte of the device pool of one rank.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// How the host tier is sized.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum HostCacheMode {
    #[default]
    Auto,
    Size,
    Ratio,
    Off,
}

/// How many requests may wait. Beyond a limit a client gets 429 with Retry-After.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdmissionSpec {
    /// Time to the first token that the queue limit keeps, such as `30s`. Absent: 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<Duration>,
    /// Requests that may wait, whatever their size. Absent: 256.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queued_requests: Option<i32>,
    /// The queue limit of one prefill replica itself, in uncached prompt tokens. Absent: derived from the prefill speed
    /// and the time to first token.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_limit_tokens: Option<i64>,
    /// Prefill speed of one replica in uncached tokens per second, if you know it. Absent: a table by GPU, until it is
    /// measured.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_per_second: Option<f64>,
}

/// What a change of the object does.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RolloutSpec {
    /// Apply: carry the plan out. Plan: write it to the status and change nothing.
    pub mode: RolloutMode,
}

/// What a change of the object does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum RolloutMode {
    #[default]
    Apply,
    Plan,
}

/// Who may connect to the pods.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkPolicySpec {
    /// Whether NetworkPolicies are made.
    pub enabled: bool,
    /// Who besides the operator may connect to the engines' HTTP port, to read `/metrics`.
    pub scrape_from: ScrapeFrom,
}

impl Default for NetworkPolicySpec {
    fn default() -> Self {
        Self { enabled: true, scrape_from: ScrapeFrom::default() }
    }
}

/// Pods that may read `/metrics`; nothing given means none.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScrapeFrom {
    /// Labels of the namespaces of the scraping pods; nothing given means every namespace.
    #[schemars(extend("maxProperties" = 16))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_labels: BTreeMap<String, String>,
    /// Labels of the scraping pods; nothing given means every pod of those namespaces.
    #[schemars(extend("maxProperties" = 16))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,
}
