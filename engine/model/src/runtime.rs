//! A model with its pools and threads: what the scheduler drives.
//! In: a checkpoint's folder, options; ragged batches; bytes of pages and slots. Out: logits; bytes.
//! Never: a panic on a wrong batch; a thread outside its own pool.
//! Source: [`engine_spec::memory`] for every size.

#[cfg(test)]
mod tests;

use std::path::Path;

use engine_spec::memory::CacheFormat;
use engine_spec::{IndexKeyFormat, ModelShape, Precision};
use fathom_kernels::{Cpu, Ops};

use crate::batch::{Logits, Page, Segment, Slot};
use crate::cache::Cache;
use crate::head::HeadRows;
use crate::model::{Model, Step};
use crate::ragged::{ForwardError, Ragged};
use crate::tap::Tap;
use crate::weights::{self, LoadError, Loader, Progress, WeightStorage, read_table};
use crate::workspace::Workspace;

/// How a checkpoint is run.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    pub precision: Precision,
    pub index_keys: IndexKeyFormat,
    /// Entries that a query of a ratio-4 layer attends to; the configuration's when absent.
    pub index_top_k: Option<usize>,
    pub threads: usize,
    pub weights: WeightStorage,
}

/// A loaded model over the CPU backend.
#[derive(Debug)]
pub struct Runtime {
    model: Model,
    cache: Cache,
    precision: Precision,
    top_k: usize,
    fingerprint: String,
    threads: rayon::ThreadPool,
    /// Lanes that a step may have: one per thread for a model whose weights stay in the CPU's caches.
    lanes: usize,
    work: Workspace,
    head_rows: HeadRows,
}

impl Runtime {
    /// Reads and checks the checkpoint in `dir`, and allocates the pools.
    ///
    /// # Errors
    /// [`LoadError`], naming the file, tensor or setting.
    pub fn load(
        dir: &Path,
        options: &ModelOptions,
        pages: u32,
        slots: u32,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, LoadError> {
        let top_k = check(options)?;
        let (config, shape) = read_config(dir)?;
        let table = read_table(dir)?;
        let fingerprint = weights::fingerprint(&config, &table);
        let format = CacheFormat { precision: options.precision, index_keys: options.index_keys };
        let cache = Cache::new(&shape, format, pages, slots)?;
        let mut loader = Loader::new(table, options.weights, progress);
        let top_k = top_k.unwrap_or(shape.index_topk);
        let model = Model::load(&mut loader, shape)?;
        let lanes = if loader.fits_caches() { options.threads } else { 1 };
        let drafts = loader.finish()?;
        if drafts > 0 {
            tracing::info!(tensors = drafts, "skipped tensors of draft layers (mtp.) that are not used");
        }
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("compute-{i}"))
            .build()
            .map_err(|e| LoadError::Threads { threads: options.threads, reason: e.to_string() })?;
        Ok(Self {
            model,
            cache,
            precision: options.precision,
            top_k,
            fingerprint,
            threads,
            lanes,
            work: Workspace::default(),
            head_rows: HeadRows::default(),
        })
    }

    pub fn shape(&self) -> &ModelShape {
        &self.model.shape
    }

    /// Identifies configuration and tensors; equal on two sides that may exchange pages and slots.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    /// Computes the segments in one pass; rows of logits in the order of the segments that want them.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing was computed or stored.
    pub fn forward(&mut self, batch: &[Segment<'_>]) -> Result<Logits, ForwardError> {
        self.compute(&Cpu, batch, &())
    }

    /// The same over other operations: a backend that computes alike, or one that measures.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing was computed or stored.
    pub fn forward_over<O: Ops>(&mut self, ops: &O, batch: &[Segment<'_>]) -> Result<Logits, ForwardError> {
        self.compute(ops, batch, &())
    }

    pub(crate) fn compute<O: Ops, T: Tap>(
        &mut self,
        ops: &O,
        batch: &[Segment<'_>],
        tap: &T,
    ) -> Result<Logits, ForwardError> {
        let Self { model, cache, precision, top_k, threads, lanes, work, head_rows, .. } = self;
        if batch.is_empty() {
            return Ok(Logits { vocab: model.shape.vocab_size, values: Vec::new() });
        }
        let batch = Ragged::new(batch, &model.shape, cache)?;
        let step = Step { ops, tap, shape: &model.shape, precision: *precision, top_k: *top_k, batch };
        Ok(threads.install(|| {
            work.begin(&model.shape, &model.angles, &batch, *lanes);
            model.forward(&step, cache, work, head_rows)
        }))
    }

    /// At another precision than the cache's, with f32 rows rounded as the golden files' were.
    #[cfg(test)]
    pub(crate) fn round_like_golden(&mut self, precision: Precision) {
        self.precision = precision;
        self.cache.round_unrotated(self.model.shape.nope_dim());
    }

    /// Forgets everything a previous sequence left in `slot`.
    ///
    /// # Panics
    /// When the pool has no such slot; so do the methods below, also for pages and for bytes of another length.
    pub fn reset_slot(&mut self, slot: Slot) {
        self.cache.slot_mut(slot).fill(0);
    }

    pub fn page_bytes(&self) -> usize {
        self.cache.page_bytes()
    }

    pub fn slot_bytes(&self) -> usize {
        self.cache.slot_bytes()
    }

    pub fn export_page(&self, page: Page, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.cache.page(page));
    }

    pub fn import_page(&mut self, page: Page, bytes: &[u8]) {
        self.cache.page_mut(page).copy_from_slice(bytes);
    }

    pub fn export_slot(&self, slot: Slot, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.cache.slot(slot));
    }

    pub fn import_slot(&mut self, slot: Slot, bytes: &[u8]) {
        self.cache.slot_mut(slot).copy_from_slice(bytes);
    }
}

/// Checks what needs no file; returns the top-k asked for.
fn check(options: &ModelOptions) -> Result<Option<usize>, LoadError> {
    let setting = |setting, expected: &str| LoadError::Setting {
        setting,
        found: "0".to_owned(),
        expected: expected.to_owned(),
    };
    if options.threads == 0 {
        return Err(setting("threads", "at least one"));
    }
    if options.index_top_k == Some(0) {
        return Err(setting("index top-k", "at least one entry"));
    }
    Ok(options.index_top_k)
}

fn read_config(dir: &Path) -> Result<(String, ModelShape), LoadError> {
    let path = dir.join("config.json");
    let config =
        std::fs::read_to_string(&path).map_err(|source| LoadError::Read { path: path.clone(), source })?;
    let shape = ModelShape::from_config_json(&config).map_err(|source| LoadError::Shape { path, source })?;
    Ok((config, shape))
}
