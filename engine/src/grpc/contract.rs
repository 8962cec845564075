//! What must be equal on both sides of a hand-over, and how a difference is told.
//! In: configuration and loaded model. Out: a [`Contract`], or the list of differences.

use engine_proto::PROTOCOL_VERSION;
use engine_proto::v1::Contract;
use engine_spec::{EngineConfig, PAGE_TOKENS};
use serde_json::Value;

use crate::step::Step;

/// Metadata of a refused greeting: the revision of the prefill, so that decode can tell a rollout from a mistake.
pub const REVISION: &str = "fathom-revision";

/// What the loaded model and tokenizer add to the configuration.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Of the model's configuration and tensors.
    pub fingerprint: String,
    pub tokenizer_hash: String,
    /// In effect: the configuration's, or the checkpoint's own.
    pub index_top_k: u32,
}

/// This process's side.
pub fn contract(config: &EngineConfig, identity: &Identity, step: &dyn Step) -> Contract {
    Contract {
        protocol_version: PROTOCOL_VERSION,
        model_fingerprint: identity.fingerprint.clone(),
        revision: config.revision.clone(),
        tokenizer_hash: identity.tokenizer_hash.clone(),
        precision: name(serde_json::to_value(config.model.precision)),
        index_keys: name(serde_json::to_value(config.model.index_keys)),
        index_top_k: identity.index_top_k,
        vocab: u32::try_from(step.vocab()).unwrap_or(u32::MAX),
        page_tokens: u32::try_from(PAGE_TOKENS).unwrap_or(u32::MAX),
        page_bytes: step.page_bytes() as u64,
        slot_bytes: step.slot_bytes() as u64,
    }
}

/// The word that the configuration file uses.
fn name(value: serde_json::Result<Value>) -> String {
    value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Every field that differs: `page bytes: prefill has 4096, decode has 8192`. Empty = they pair.
pub fn differences(prefill: &Contract, decode: &Contract) -> Vec<String> {
    // Taken apart, so that a new field cannot be forgotten.
    let Contract {
        protocol_version,
        model_fingerprint,
        revision,
        tokenizer_hash,
        precision,
        index_keys,
        index_top_k,
        vocab,
        page_tokens,
        page_bytes,
        slot_bytes,
    } = prefill;
    let fields: [(&str, String, String); 11] = [
        ("protocol version", protocol_version.to_string(), decode.protocol_version.to_string()),
        ("model", model_fingerprint.clone(), decode.model_fingerprint.clone()),
        ("revision", revision.clone(), decode.revision.clone()),
        ("tokenizer", tokenizer_hash.clone(), decode.tokenizer_hash.clone()),
        ("precision", precision.clone(), decode.precision.clone()),
        ("index keys", index_keys.clone(), decode.index_keys.clone()),
        ("index top-k", index_top_k.to_string(), decode.index_top_k.to_string()),
        ("vocabulary", vocab.to_string(), decode.vocab.to_string()),
        ("page tokens", page_tokens.to_string(), decode.page_tokens.to_string()),
        ("page bytes", page_bytes.to_string(), decode.page_bytes.to_string()),
        ("slot bytes", slot_bytes.to_string(), decode.slot_bytes.to_string()),
    ];
    fields
        .into_iter()
        .filter(|(_, prefill, decode)| prefill != decode)
        .map(|(field, prefill, decode)| format!("{field}: prefill has `{prefill}`, decode has `{decode}`"))
        .collect()
}
