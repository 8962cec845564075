//! The files of a checkpoint that chat needs: `tokenizer.json`, and `generation_config.json` if there is one.
//! In: a folder. Out: tokenizer, vocabulary, sampling defaults; or an error that names the file.
//! Never: a tokenizer that lacks the tokens of DeepSeek V4's format, or ends answers with another token than the
//! checkpoint says.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use super::encode::PromptEncoder;
use super::parameters::SamplingDefaults;
use super::vocabulary::Vocabulary;

/// Why a checkpoint cannot be chatted with.
#[derive(Debug, thiserror::Error)]
pub enum ChatOpenError {
    #[error("reading {}: is this the folder of a checkpoint?", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("reading the tokenizer {}: {reason}", path.display())]
    Tokenizer { path: PathBuf, reason: String },
    #[error("the tokenizer {} has no token `{token}`; expected one of a DeepSeek V4 checkpoint", path.display())]
    MissingToken { path: PathBuf, token: &'static str },
    #[error("reading the sampling defaults {}: {reason}", path.display())]
    GenerationConfig { path: PathBuf, reason: String },
    #[error(
        "{} ends answers with token {found:?}, the tokenizer with {expected}; do both files belong to one checkpoint?",
        path.display()
    )]
    OtherEos { path: PathBuf, expected: u32, found: Vec<u32> },
}

pub(super) struct Opened {
    pub(super) encoder: PromptEncoder,
    pub(super) vocabulary: Vocabulary,
    pub(super) sampling: SamplingDefaults,
    pub(super) tokenizer_hash: String,
}

pub(super) fn open(folder: &Path) -> Result<Opened, ChatOpenError> {
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|source| ChatOpenError::Read { path: path.clone(), source })?;
    let unreadable = |reason: String| ChatOpenError::Tokenizer { path: path.clone(), reason };
    let tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| unreadable(error.to_string()))?;
    let vocabulary = Vocabulary::new(&tokenizer)
        .map_err(|token| ChatOpenError::MissingToken { path: path.clone(), token })?;
    let encoder = PromptEncoder::new(tokenizer).map_err(unreadable)?;
    let sampling = sampling(folder.join("generation_config.json"), vocabulary.eos())?;
    Ok(Opened { encoder, vocabulary, sampling, tokenizer_hash: sha256(&bytes) })
}

/// `generation_config.json`, as far as it concerns us.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationConfig {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    eos_token_id: Option<EosIds>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum EosIds {
    One(u32),
    Several(Vec<u32>),
}

fn sampling(path: PathBuf, eos: u32) -> Result<SamplingDefaults, ChatOpenError> {
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SamplingDefaults::default()),
        Err(source) => return Err(ChatOpenError::Read { path, source }),
    };
    let refused = |path, reason: String| Err(ChatOpenError::GenerationConfig { path, reason });
    let config: GenerationConfig = match serde_json::from_str(&text) {
        Ok(config) => config,
        Err(error) => return refused(path, error.to_string()),
    };
    let found = match config.eos_token_id {
        None => vec![eos],
        Some(EosIds::One(id)) => vec![id],
        Some(EosIds::Several(ids)) => ids,
    };
    if !found.contains(&eos) {
        return Err(ChatOpenError::OtherEos { path, expected: eos, found });
    }
    let none = SamplingDefaults::default();
    let greedy = config.do_sample == Some(false);
    let defaults = SamplingDefaults {
        temperature: if greedy { 0.0 } else { config.temperature.unwrap_or(none.temperature) },
        top_p: config.top_p.unwrap_or(none.top_p),
        top_k: config.top_k.unwrap_or(none.top_k),
        min_p: config.min_p.unwrap_or(none.min_p),
    };
    match mistake(&defaults) {
        Some(mistake) => refused(path, mistake),
        None => Ok(defaults),
    }
}

fn mistake(defaults: &SamplingDefaults) -> Option<String> {
    let SamplingDefaults { temperature, top_p, top_k: _, min_p } = *defaults;
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Some(format!("temperature must be 0 or more, but is {temperature}"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Some(format!("top_p must be above 0 and at most 1, but is {top_p}"));
    }
    (!(0.0..=1.0).contains(&min_p)).then(|| format!("min_p must be from 0 to 1, but is {min_p}"))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
        hex
    })
}
