//! What the scheduler drives: the model in programs, a script in tests.

use engine_model::{Logits, Page, Segment, Slot};

pub mod model;
#[cfg(test)]
pub(crate) mod script;

/// Why a step could not be computed. It ends the requests of the batch, never the process.
#[derive(Debug, thiserror::Error)]
#[error("computing a step of {segments} segments: {reason}")]
pub struct StepError {
    pub segments: usize,
    pub reason: String,
}

/// Computes ragged batches over pools of pages and slots that it owns.
pub trait Step: Send {
    /// Rows of every logits row.
    fn vocab(&self) -> usize;

    /// Computes the segments, in one pass, and returns the rows that they want, in order.
    ///
    /// # Errors
    /// [`StepError`]; the segments' slots and pages then hold nothing of use.
    fn forward(&mut self, batch: &[Segment<'_>]) -> Result<Logits, StepError>;

    /// Makes `slot` ready for a new sequence: nothing of a previous owner may be seen.
    fn reset_slot(&mut self, slot: Slot);

    /// Bytes of one page and of one slot, as [`export_page`](Step::export_page) and the others move them.
    fn page_bytes(&self) -> usize;
    fn slot_bytes(&self) -> usize;

    /// Copies a page out of the pool or into it; `bytes` is [`page_bytes`](Step::page_bytes) long.
    fn export_page(&self, page: Page, bytes: &mut [u8]);
    fn import_page(&mut self, page: Page, bytes: &[u8]);

    /// Copies a slot (window rows, compressor state) out of the pool or into it.
    fn export_slot(&self, slot: Slot, bytes: &mut [u8]);
    fn import_slot(&mut self, slot: Slot, bytes: &[u8]);
}
