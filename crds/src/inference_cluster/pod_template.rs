//! What users may add to every pod: a bounded choice, not a whole pod template (which would not fit an annotation).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Additions to every pod of an object.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodTemplateSpec {
    /// Labels added to the pods; Fathom's own labels win.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations added to the pods; Fathom's own win.
    #[schemars(extend("maxProperties" = 64))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Only nodes with all of these labels are planned.
    #[schemars(extend("maxProperties" = 32))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods stand; nodes with other taints are not planned.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Priority class of the pods.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Secrets in the same namespace with which images are pulled.
    #[schemars(length(max = 16))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<SecretName>,
    /// Environment variables of the engine containers.
    #[schemars(length(max = 64))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
}

/// The name of a Secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretName {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// One environment variable.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Its value.
    #[schemars(length(max = 4096))]
    #[serde(default)]
    pub value: String,
}

/// A taint that the pods stand, as in a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Toleration {
    /// Key of the taint; empty with operator Exists matches every taint.
    #[schemars(length(max = 317))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Exists or Equal; Equal compares `value`.
    pub operator: TolerationOperator,
    /// Value of the taint.
    #[schemars(length(max = 63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// NoSchedule, PreferNoSchedule or NoExecute; absent matches all three.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// For NoExecute: how long the pod stays, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration matches a taint.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}
