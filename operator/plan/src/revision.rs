//! The revision: a short hash over what prefill and decode must agree on. Only equal revisions pair.
//! Never: replicas, placement, host cache, admission, router (changing them restarts nothing that could stay).

use std::fmt::Write as _;

use engine_spec::ModelShape;
use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster::{ChatSpec, Device, IndexerSpec, ModelSource};
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
pub fn revision(spec: &InferenceClusterSpec, shape: &ModelShape) -> String {
    let agreed = Agreed {
        shape,
        source: &spec.model.source,
        image: spec.runtime.image.as_deref(),
        device: spec.runtime.device,
        context_tokens: spec.model.context_tokens,
        indexer: &spec.model.indexer,
        chat: &spec.model.chat,
    };
    let json = serde_json::to_vec(&agreed).expect("plain structs with string keys serialise");
    let digest = Sha256::digest(&json);
    digest.iter().take(5).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// What of a spec places the replicas of a role: while this stays the same, a running replica stays where it is.
/// Not in it: replica counts, host cache sizes (headroom noise and scaling move nothing), admission, router.
pub fn placement_inputs(spec: &InferenceClusterSpec, prefill: bool) -> String {
    let _ = (spec, prefill);
    String::new()
}
