//! The real thing: a checkpoint's model as the scheduler's [`Step`], and how it is loaded.
//! In: the configuration. Out: model, tokenizer and what identifies them.
//! Never: a second reading of the configuration; a line of progress more than once a second.

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use engine_model::{
    ForwardError, Logits, ModelOptions, Page, Progress, Runtime, Segment, Slot, WeightStorage,
};
use engine_spec::{EngineConfig, ModelShape, NamedShape};

use super::{Step, StepError};
use crate::binding::Report;
use crate::chain::chain;
use crate::chat::{Chat, ChatOptions};
use crate::role::node::{Loaded, RoleError};

/// Larger files are no `config.json` of a model.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Loads tokenizer and model of the configured checkpoint.
///
/// # Errors
/// [`RoleError::Load`], naming what does not fit; [`RoleError::Config`].
pub fn load(config: &EngineConfig, binding: &Report) -> Result<Loaded, RoleError> {
    let path = config.model.path.clone().ok_or_else(|| missing("model.path"))?;
    let pools = config.pools.ok_or_else(|| missing("pools"))?;
    let refused =
        |error: &dyn std::error::Error| RoleError::Load { path: path.clone(), reason: chain(error) };
    if let Some(shape) = config.model.shape {
        check_shape(&path, shape)?;
    }
    // The tokenizer first: it is small, and as often wrong.
    let options = ChatOptions {
        model_name: config.model.name.clone(),
        context_tokens: config.model.context_tokens,
        defaults: config.chat,
    };
    let chat = Chat::open(Path::new(&path), options).map_err(|error| refused(&error))?;
    let options = ModelOptions {
        precision: config.model.precision,
        index_keys: config.model.index_keys,
        index_top_k: config.model.index_top_k.map(|k| k as usize),
        threads: binding.threads,
        weights: WeightStorage::Auto,
    };
    let mut report = Loading::new();
    let runtime =
        Runtime::load(Path::new(&path), &options, pools.kv_pages, pools.request_slots, &mut |progress| {
            report.progress(progress)
        })
        .map_err(|error| refused(&error))?;
    report.done(&runtime);
    let shape = runtime.shape();
    if shape.max_position_embeddings < config.model.context_tokens as usize {
        let reason = format!(
            "model.contextTokens is {}, the checkpoint knows {} positions",
            config.model.context_tokens, shape.max_position_embeddings
        );
        return Err(RoleError::Load { path, reason });
    }
    let index_top_k = config.model.index_top_k.or_else(|| u32::try_from(shape.index_topk).ok()).unwrap_or(0);
    Ok(Loaded { fingerprint: runtime.fingerprint(), index_top_k, chat, step: Box::new(Model(runtime)) })
}

/// Refuses a checkpoint of other dimensions than those that the pools were sized for, before anything is loaded.
fn check_shape(path: &str, shape: NamedShape) -> Result<(), RoleError> {
    let refused = |reason: String| RoleError::Load { path: path.to_owned(), reason };
    let file = Path::new(path).join("config.json");
    let mut text = String::new();
    std::fs::File::open(&file)
        .and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_string(&mut text))
        .map_err(|error| refused(format!("config.json cannot be read: {error}")))?;
    let found = ModelShape::from_config_json(&text).map_err(|error| refused(chain(&error)))?;
    match found.difference(&shape.shape()) {
        None => Ok(()),
        Some(difference) => Err(RoleError::Mismatch { path: path.to_owned(), shape, difference }),
    }
}

fn missing(what: &str) -> RoleError {
    RoleError::Config(format!("{what} is missing"))
}

/// Tells how far loading is, as log events.
struct Loading {
    start: Instant,
    told: Option<Instant>,
    last: Progress,
}

impl Loading {
    fn new() -> Self {
        Self { start: Instant::now(), told: None, last: Progress { tensors: 0, total: 0, bytes: 0 } }
    }

    fn progress(&mut self, progress: Progress) {
        self.last = progress;
        let now = Instant::now();
        // A checkpoint that loads within a second needs no progress.
        if now - self.told.unwrap_or(self.start) >= PROGRESS_EVERY {
            self.told = Some(now);
            let Progress { tensors, total, bytes } = progress;
            let percent = 100 * tensors / total.max(1);
            tracing::info!(event = "loading", tensors, total, bytes, percent, "loading weights");
        }
    }

    fn done(&self, runtime: &Runtime) {
        let seconds = self.start.elapsed().as_secs_f64();
        let Progress { tensors, total, bytes } = self.last;
        let fingerprint = runtime.fingerprint();
        tracing::info!(
            event = "loading",
            tensors,
            total,
            bytes,
            percent = 100,
            seconds,
            page_bytes = runtime.page_bytes(),
            slot_bytes = runtime.slot_bytes(),
            fingerprint,
            "model loaded"
        );
    }
}

struct Model(Runtime);

impl Step for Model {
    fn vocab(&self) -> usize {
        self.0.shape().vocab_size
    }

    fn forward(&mut self, batch: &[Segment<'_>]) -> Result<Logits, StepError> {
        self.0
            .forward(batch)
            .map_err(|error: ForwardError| StepError { segments: batch.len(), reason: chain(&error) })
    }

    fn reset_slot(&mut self, slot: Slot) {
        self.0.reset_slot(slot);
    }

    fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    fn slot_bytes(&self) -> usize {
        self.0.slot_bytes()
    }

    fn export_page(&self, page: Page, bytes: &mut [u8]) {
        self.0.export_page(page, bytes);
    }

    fn import_page(&mut self, page: Page, bytes: &[u8]) {
        self.0.import_page(page, bytes);
    }

    fn export_slot(&self, slot: Slot, bytes: &mut [u8]) {
        self.0.export_slot(slot, bytes);
    }

    fn import_slot(&mut self, slot: Slot, bytes: &[u8]) {
        self.0.import_slot(slot, bytes);
    }
}
