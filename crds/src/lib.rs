//! The Kubernetes API of Fathom: the `InferenceCluster` object, its conditions, and how a file becomes one.
//! In: YAML text. Out: checked Rust types, and the generated CustomResourceDefinition under `crds/yaml`.
//! Never: a Kubernetes client, planning, knowledge of the model beyond names.

pub mod conditions;
pub mod duration;
pub mod inference_cluster;
pub mod quantity;
pub mod read;

pub use duration::Duration;
pub use inference_cluster::{InferenceCluster, InferenceClusterSpec, InferenceClusterStatus};
pub use quantity::Quantity;
pub use read::{ReadError, read};
