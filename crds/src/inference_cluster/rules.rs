//! Rules between fields, each once: as CEL for the API server and as Rust for use without a cluster.
//! Never: rules over unbounded lists or strings (their estimated cost would make the API server refuse the schema).
//! One rule has no Rust side: the API server wants `hostPath` absolute, a local file may have it relative to itself.

use serde_json::{Value, json};

use super::{Device, HostCacheMode, HostCacheSpec, InferenceCluster, InferenceClusterSpec, ModelSource};

/// A rule over a `T`.
pub struct Rule<T> {
    /// What the API server evaluates; `self` is the `T`.
    pub cel: &'static str,
    /// What the user reads when it does not hold.
    pub message: &'static str,
    /// The same, in Rust.
    pub holds: fn(&T) -> bool,
}

impl<T> std::fmt::Debug for Rule<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("cel", &self.cel).field("message", &self.message).finish_non_exhaustive()
    }
}

/// Longest name: children append `-prefill-` + index + `-` + 5 characters and stay below 63.
pub(super) const MAX_NAME: usize = 40;

pub(super) const ROOT: &[Rule<InferenceCluster>] = &[Rule {
    cel: "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
    message: "metadata.name must be a DNS label that starts with a letter and has at most 40 characters, because the children are named after it",
    holds: |cluster| is_name(cluster.name()),
}];

pub(super) const SPEC: &[Rule<InferenceClusterSpec>] = &[
    Rule {
        cel: "self.runtime.device != 'Cuda' || (self.decode.gpus > 0 && (!has(self.prefill) || self.prefill.replicas == 0 || self.prefill.gpus > 0))",
        message: "spec.runtime.device Cuda needs gpus above 0 for prefill and decode; device Auto computes on the CPU where gpus is 0",
        holds: |spec| {
            let prefill_has = |gpus| spec.prefill_replicas() == 0 || gpus > 0;
            spec.runtime.device != Device::Cuda
                || (spec.decode.gpus > 0 && spec.prefill.as_ref().is_none_or(|p| prefill_has(p.gpus)))
        },
    },
    Rule {
        cel: "!has(self.prefill) || self.prefill.replicas == 0 || self.decode.replicas > 0",
        message: "spec.decode.replicas is 0 while spec.prefill.replicas is not: a prefill without a decode serves nobody; to scale to zero set both to 0",
        holds: |spec| spec.prefill_replicas() == 0 || spec.decode.replicas > 0,
    },
];

pub(super) const SOURCE: &[Rule<ModelSource>] = &[Rule {
    cel: "(has(self.hostPath) ? 1 : 0) + (has(self.pvc) ? 1 : 0) + (has(self.image) ? 1 : 0) + (has(self.huggingFace) ? 1 : 0) == 1",
    message: "spec.model.source must have exactly one of hostPath, pvc, image, huggingFace",
    holds: |source| {
        let given = [
            source.host_path.is_some(),
            source.pvc.is_some(),
            source.image.is_some(),
            source.hugging_face.is_some(),
        ];
        given.iter().filter(|given| **given).count() == 1
    },
}];

pub(super) const HOST_CACHE: &[Rule<HostCacheSpec>] = &[
    Rule {
        cel: "(self.mode == 'Size') == has(self.size)",
        message: "spec.hostCache.size belongs to mode Size, and mode Size needs it",
        holds: |cache| (cache.mode == HostCacheMode::Size) == cache.size.is_some(),
    },
    Rule {
        cel: "(self.mode == 'Ratio') == has(self.ratio)",
        message: "spec.hostCache.ratio belongs to mode Ratio, and mode Ratio needs it",
        holds: |cache| (cache.mode == HostCacheMode::Ratio) == cache.ratio.is_some(),
    },
];

/// The rules as a schema carries them.
pub(super) fn schema<T>(rules: &[Rule<T>]) -> Value {
    rules.iter().map(|rule| json!({"rule": rule.cel, "message": rule.message})).collect()
}

/// The rule that only the API server applies.
pub(super) fn absolute_path() -> Value {
    json!([{
        "rule": "self.startsWith('/')",
        "message": "spec.model.source.hostPath must be absolute in a cluster; a path relative to the file is for `fathom local` and `fathom plan`",
    }])
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=MAX_NAME).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes.iter().all(inner)
        && bytes[bytes.len() - 1] != b'-'
}
