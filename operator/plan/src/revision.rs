//! The revision: a short hash over what prefill and decode must agree on. Only equal revisions pair.
//! Never: replicas, placement, host cache, admission, router (changing them restarts nothing that could stay).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use engine_spec::ModelShape;
use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster::{
    ChatSpec, Device, HostCacheSpec, IndexerSpec, ModelSource, NumaMode, ShapeName, Toleration,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

#[derive(Serialize)]
struct Agreed<'a> {
    shape: &'a ModelShape,
    source: &'a ModelSource,
    image: Option<&'a str>,
    device: Device,
    context_tokens: Option<i32>,
    indexer: &'a IndexerSpec,
    chat: &'a ChatSpec,
}

/// First 10 hexadecimal digits of SHA-256 over the canonical JSON (fields in the order of the types).
/// `image` is the engine's image if it is resolved; else the spec's own counts.
pub fn revision(spec: &InferenceClusterSpec, shape: &ModelShape, image: Option<&str>) -> String {
    let agreed = Agreed {
        shape,
        source: &spec.model.source,
        image: image.or(spec.runtime.image.as_deref()),
        device: spec.runtime.device,
        context_tokens: spec.model.context_tokens,
        indexer: &spec.model.indexer,
        chat: &spec.model.chat,
    };
    short_hash(&agreed, 5)
}

/// First `bytes` of SHA-256 over canonical JSON, in hexadecimal.
fn short_hash(value: &impl Serialize, bytes: usize) -> String {
    let json = serde_json::to_vec(value).expect("plain structs with string keys serialise");
    let digest = Sha256::digest(&json);
    digest.iter().take(bytes).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

#[derive(Serialize)]
struct Placing<'a> {
    gpus: i32,
    cpus: Option<i32>,
    device: Device,
    unified: bool,
    model: &'a str,
    shape: Option<ShapeName>,
    context_tokens: Option<i32>,
    indexer: &'a IndexerSpec,
    numa: NumaMode,
    host_cache: &'a HostCacheSpec,
    node_selector: &'a BTreeMap<String, String>,
    tolerations: &'a [Toleration],
}

/// What of a spec places the replicas of a role: while this stays the same, a running replica stays where it is.
/// Never: replica counts and images (a new revision takes the old one's place), admission, router.
pub fn placement_inputs(spec: &InferenceClusterSpec, prefill: bool) -> String {
    let role = spec.prefill.as_ref().filter(|_| prefill).unwrap_or(&spec.decode);
    let placing = Placing {
        gpus: role.gpus,
        cpus: role.cpus,
        device: spec.runtime.device,
        unified: spec.prefill_replicas() == 0,
        model: &spec.model.name,
        shape: spec.model.shape,
        context_tokens: spec.model.context_tokens,
        indexer: &spec.model.indexer,
        numa: spec.placement.numa,
        host_cache: &spec.host_cache,
        node_selector: &spec.pod_template.node_selector,
        tolerations: &spec.pod_template.tolerations,
    };
    short_hash(&placing, 5)
}
