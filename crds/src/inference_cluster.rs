//! The `InferenceCluster` object: what a user asks for, and what Fathom reports back.
//! In: a decoded object. Out: typed spec and status; the CustomResourceDefinition.
//! Never: values computed from the machine (they go to status), defaults that the schema does not show.
//! The field docs are the user's manual: `kubectl explain` shows them.

mod pod_template;
mod rules;
mod spec;
mod status;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, ValidationRule,
};
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use pod_template::{EnvVar, PodTemplateSpec, SecretName, Toleration, TolerationOperator};
pub use rules::Rule;
pub use spec::{
    AdmissionSpec, ChatSpec, Device, EffortProfile, HostCacheMode, HostCacheSpec, HuggingFaceSource,
    ImageSource, IndexKeyFormat, IndexerSpec, MemoryBinding, ModelSource, ModelSpec, NetworkPolicySpec,
    NumaMode, PlacementMode, PlacementSpec, PvcSource, RoleSpec, RolloutMode, RolloutSpec, RouterSpec,
    RuntimeKind, RuntimeSpec, ScrapeFrom, ShapeName, Thinking,
};
pub use status::{
    AchievedPart, AchievedState, AchievedStatus, HostCacheStatus, InferenceClusterStatus, PlacementStatus,
    PlanStatus, QueueLimitStatus, RejectedStatus, ReplicaStatus, SummaryStatus,
};

/// A DeepSeek V4 served by prefill, decode and router pods, each engine pod on one NUMA node's GPUs, CPUs and memory.
/// The answer is one OpenAI-compatible address: `http://NAME.NAMESPACE.svc`.
#[expect(clippy::duplicated_attributes, reason = "the lint takes the columns for one attribute")]
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "fathom.dev",
    version = "v1alpha1",
    kind = "InferenceCluster",
    namespaced,
    status = "InferenceClusterStatus",
    shortname = "icl",
    category = "fathom",
    derive = "PartialEq",
    doc = "A DeepSeek V4 served by prefill, decode and router pods, each engine pod on one NUMA node's GPUs, CPUs and memory, behind one OpenAI-compatible address.",
    crates(kube_core = "::kube_core"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Prefill", type_ = "string", json_path = ".status.summary.prefill"),
    printcolumn(name = "Decode", type_ = "string", json_path = ".status.summary.decode"),
    printcolumn(name = "Router", type_ = "string", json_path = ".status.summary.router"),
    printcolumn(name = "Placement", type_ = "string", json_path = ".status.summary.placement"),
    printcolumn(name = "HostCache", type_ = "string", json_path = ".status.summary.hostCache"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = rules::schema(rules::SPEC)))]
pub struct InferenceClusterSpec {
    /// Which model is served, and where its files are.
    pub model: ModelSpec,
    /// Which engine runs, and on what it computes.
    #[serde(default)]
    pub runtime: RuntimeSpec,
    /// The pods that compute the KV of prompts. Absent, or zero replicas: decode does both jobs in one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<RoleSpec>,
    /// The pods that own requests and generate the answers.
    pub decode: RoleSpec,
    /// The pods that clients talk to. They need no GPU.
    #[serde(default)]
    pub router: RouterSpec,
    /// How closely pods are tied to GPUs, CPUs and memory.
    #[serde(default)]
    pub placement: PlacementSpec,
    /// The second home of KV: host memory beside each engine pod.
    #[serde(default)]
    pub host_cache: HostCacheSpec,
    /// How many requests may wait.
    #[serde(default)]
    pub admission: AdmissionSpec,
    /// What a change of this object does.
    #[serde(default)]
    pub rollout: RolloutSpec,
    /// Who may connect to the pods.
    #[serde(default)]
    pub network_policy: NetworkPolicySpec,
    /// Additions to every pod of this object.
    #[serde(default)]
    pub pod_template: PodTemplateSpec,
}

impl InferenceClusterSpec {
    /// Prefill replicas asked for; 0 means that decode runs as `unified`.
    pub fn prefill_replicas(&self) -> i32 {
        self.prefill.as_ref().map_or(0, |prefill| prefill.replicas)
    }
}

impl InferenceCluster {
    /// The name, or the empty string before anybody gave one.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// What this object breaks of the rules that the API server checks with CEL, so that a file used without a cluster
    /// is refused alike. Ranges and lengths are [`crate::read()`]'s part.
    pub fn broken_rules(&self) -> Vec<String> {
        let root = rules::ROOT.iter().filter(|rule| !(rule.holds)(self));
        let spec = rules::SPEC.iter().filter(|rule| !(rule.holds)(&self.spec));
        let source = rules::SOURCE.iter().filter(|rule| !(rule.holds)(&self.spec.model.source));
        let cache = rules::HOST_CACHE.iter().filter(|rule| !(rule.holds)(&self.spec.host_cache));
        let name = self.name();
        root.map(|rule| format!("{}; found {name:?}", rule.message))
            .chain(spec.map(|rule| rule.message.to_owned()))
            .chain(source.map(|rule| rule.message.to_owned()))
            .chain(cache.map(|rule| rule.message.to_owned()))
            .collect()
    }
}

/// The definition that a cluster needs, with the rule about the name that only the root of the schema can carry.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = InferenceCluster::crd();
    for version in &mut crd.spec.versions {
        if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            root.x_kubernetes_validations = Some(
                rules::ROOT
                    .iter()
                    .map(|rule| ValidationRule {
                        rule: rule.cel.to_owned(),
                        message: Some(rule.message.to_owned()),
                        ..ValidationRule::default()
                    })
                    .collect(),
            );
        }
    }
    crd
}

#[cfg(test)]
mod tests;
