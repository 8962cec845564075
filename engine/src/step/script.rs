//! A stand-in for the model, for tests: its cache is real, its numbers are not.
//! Pages and slots hold the very tokens that were computed into them, and the next token is a hash of what is read back
//! through the page table. A page that another sequence wrote, a stale slot, a wrong position: each gives another answer
//! or an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_model::{Logits, Page, Segment, Slot, Want};
use engine_spec::PAGE_TOKENS;

use super::{Step, StepError};

/// Bytes of a page: one token each four.
const PAGE_BYTES: usize = PAGE_TOKENS * 4;

/// A slot: how many tokens it has seen, and a hash of them.
const SLOT_BYTES: usize = 16;

/// What tests set and read from outside.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// Time of a step.
    pub(crate) delay_us: AtomicU64,
    /// So many of the next steps fail.
    pub(crate) failures: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) tokens: AtomicU64,
}

pub(crate) struct ScriptStep {
    script: Arc<Script>,
    vocab: usize,
    pages: Vec<Vec<u8>>,
    slots: Vec<Vec<u8>>,
}

/// Tokens that answers are made of: plain words of the tests' tokenizer.
const ANSWER_TOKENS: std::ops::Range<u32> = 300..500;

impl ScriptStep {
    pub(crate) fn new(script: Arc<Script>, vocab: usize, pages: u32, slots: u32) -> Self {
        // Garbage that nobody may read.
        let pages = (0..pages).map(|_| vec![0xA5; PAGE_BYTES]).collect();
        let slots = (0..slots).map(|_| vec![0x5A; SLOT_BYTES]).collect();
        Self { script, vocab, pages, slots }
    }

    fn slot(&self, slot: Slot) -> (u64, u64) {
        let bytes = &self.slots[slot.0 as usize];
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (number(0), number(8))
    }

    fn set_slot(&mut self, slot: Slot, seen: u64, hash: u64) {
        let bytes = &mut self.slots[slot.0 as usize];
        bytes[..8].copy_from_slice(&seen.to_le_bytes());
        bytes[8..].copy_from_slice(&hash.to_le_bytes());
    }

    fn token(&self, pages: &[Page], position: usize) -> u32 {
        let page = &self.pages[pages[position / PAGE_TOKENS].0 as usize];
        let at = position % PAGE_TOKENS * 4;
        u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"))
    }

    fn compute(&mut self, segment: &Segment<'_>) -> Result<(), String> {
        let (seen, mut hash) = self.slot(segment.slot);
        if seen != segment.start as u64 {
            return Err(format!(
                "slot {:?} has seen {seen} tokens, segment starts at {}",
                segment.slot, segment.start
            ));
        }
        let end = segment.start + segment.tokens.len();
        if end > segment.pages.len() * PAGE_TOKENS {
            return Err("pages do not cover the segment".to_owned());
        }
        for (n, token) in segment.tokens.iter().enumerate() {
            let position = segment.start + n;
            let page = segment.pages[position / PAGE_TOKENS].0 as usize;
            let at = position % PAGE_TOKENS * 4;
            self.pages[page][at..at + 4].copy_from_slice(&token.to_le_bytes());
            hash = mix(hash, *token);
        }
        self.set_slot(segment.slot, end as u64, hash);
        Ok(())
    }

    /// What the sequence says next, read from its cache.
    fn next(&self, segment: &Segment<'_>) -> Result<u32, String> {
        let (seen, hash) = self.slot(segment.slot);
        let length = usize::try_from(seen).expect("as many tokens as pages hold");
        let read = (0..length).fold(SEED, |hash, position| mix(hash, self.token(segment.pages, position)));
        if read != hash {
            return Err(format!("pages and slot {:?} disagree: somebody else wrote there", segment.slot));
        }
        let range = u64::from(ANSWER_TOKENS.end - ANSWER_TOKENS.start);
        Ok(ANSWER_TOKENS.start + u32::try_from(hash % range).expect("below the range"))
    }
}

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(hash: u64, token: u32) -> u64 {
    let hash = (hash ^ u64::from(token)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    hash ^ (hash >> 32)
}

/// The answer to `prompt` when nothing goes wrong.
pub(crate) fn answer_to(prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut hash = prompt.iter().fold(SEED, |hash, token| mix(hash, *token));
    let range = u64::from(ANSWER_TOKENS.end - ANSWER_TOKENS.start);
    (0..tokens)
        .map(|_| {
            let token = ANSWER_TOKENS.start + u32::try_from(hash % range).unwrap();
            hash = mix(hash, token);
            token
        })
        .collect()
}

impl Step for ScriptStep {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn forward(&mut self, batch: &[Segment<'_>]) -> Result<Logits, StepError> {
        self.script.steps.fetch_add(1, Ordering::Relaxed);
        let tokens: usize = batch.iter().map(|s| s.tokens.len()).sum();
        self.script.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        let delay = self.script.delay_us.load(Ordering::Relaxed);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        let error = |reason| StepError { segments: batch.len(), reason };
        let left = |n: u64| n.checked_sub(1);
        if self.script.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
            return Err(error("told to fail".to_owned()));
        }
        let mut values = Vec::new();
        for segment in batch {
            self.compute(segment).map_err(error)?;
            if segment.want != Want::Nothing {
                let next = self.next(segment).map_err(error)?;
                let mut row = vec![0.0; self.vocab];
                row[next as usize] = 10.0;
                values.extend(row);
            }
        }
        Ok(Logits { vocab: self.vocab, values })
    }

    fn reset_slot(&mut self, slot: Slot) {
        self.set_slot(slot, 0, SEED);
    }

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn slot_bytes(&self) -> usize {
        SLOT_BYTES
    }

    fn export_page(&self, page: Page, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.pages[page.0 as usize]);
    }

    fn import_page(&mut self, page: Page, bytes: &[u8]) {
        self.pages[page.0 as usize].copy_from_slice(bytes);
    }

    fn export_slot(&self, slot: Slot, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.slots[slot.0 as usize]);
    }

    fn import_slot(&mut self, slot: Slot, bytes: &[u8]) {
        self.slots[slot.0 as usize].copy_from_slice(bytes);
    }
}
