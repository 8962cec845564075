//! A batch that was checked: every later index into pools and tables is in range.
//! In: the scheduler's segments. Out: the same, with the row of each token in the step's matrices.
//! Never: a panic on a wrong segment.

use std::ops::Range;

use engine_spec::{ModelShape, PAGE_TOKENS};

use crate::batch::Segment;
use crate::cache::Cache;

/// Why a batch cannot be computed; `segment` counts from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    #[error("segment {segment} has no tokens; expected at least one")]
    Empty { segment: usize },
    #[error("segment {segment} names slot {found}; the pool has {slots}")]
    Slot { segment: usize, found: u32, slots: usize },
    #[error("segments {first} and {segment} both use slot {slot}; expected one sequence per slot")]
    SharedSlot { first: usize, segment: usize, slot: u32 },
    #[error("segment {segment} ends at position {end}; the model has {limit}")]
    Context { segment: usize, end: usize, limit: usize },
    #[error("segment {segment} ends at position {end} but its {found} pages of 256 tokens end before")]
    Pages { segment: usize, end: usize, found: usize },
    #[error("segment {segment} names page {found}; the pool has {pages}")]
    Page { segment: usize, found: u32, pages: usize },
    #[error("segments {first} and {segment} both write page {page}; expected one writer per page")]
    SharedPage { first: usize, segment: usize, page: u32 },
    #[error("segment {segment} has token {found} at index {index}; the vocabulary has {vocab}")]
    Token { segment: usize, index: usize, found: u32, vocab: usize },
}

/// A valid batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ragged<'a> {
    pub(crate) segments: &'a [Segment<'a>],
}

impl<'a> Ragged<'a> {
    pub(crate) fn new(
        segments: &'a [Segment<'a>],
        shape: &ModelShape,
        cache: &Cache,
    ) -> Result<Self, ForwardError> {
        for (index, segment) in segments.iter().enumerate() {
            check_tokens(index, segment, shape)?;
            check_pools(index, segment, cache)?;
        }
        check_writers(segments)?;
        Ok(Self { segments })
    }

    /// Tokens of all segments.
    pub(crate) fn rows(&self) -> usize {
        self.segments.iter().map(|s| s.tokens.len()).sum()
    }

    /// Segments with their first row.
    pub(crate) fn starts(&self) -> impl Iterator<Item = (usize, &'a Segment<'a>)> + use<'a> {
        self.segments.iter().scan(0, |row, segment| {
            let first = *row;
            *row += segment.tokens.len();
            Some((first, segment))
        })
    }

    /// The parts of segments that lie in `rows` of the step.
    pub(crate) fn parts(&self, rows: Range<usize>) -> impl Iterator<Item = Part> + use<'a> {
        self.starts().enumerate().filter_map(move |(index, (first, segment))| {
            let from = rows.start.max(first);
            let to = rows.end.min(first + segment.tokens.len());
            (from < to).then(|| Part {
                segment: index,
                tokens: from - first..to - first,
                rows: from - rows.start..to - rows.start,
            })
        })
    }
}

/// Consecutive tokens of one segment that lie in one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) segment: usize,
    /// Which of the segment's tokens.
    pub(crate) tokens: Range<usize>,
    /// Which rows of the lane.
    pub(crate) rows: Range<usize>,
}

impl Part {
    /// Its token `t` alone.
    pub(crate) fn single(&self, t: usize) -> Self {
        let one = |range: &Range<usize>| range.start + t..range.start + t + 1;
        Self { segment: self.segment, tokens: one(&self.tokens), rows: one(&self.rows) }
    }
}

fn check_tokens(index: usize, segment: &Segment<'_>, shape: &ModelShape) -> Result<(), ForwardError> {
    if segment.tokens.is_empty() {
        return Err(ForwardError::Empty { segment: index });
    }
    let limit = shape.max_position_embeddings;
    let end = segment.start.saturating_add(segment.tokens.len());
    if end > limit {
        return Err(ForwardError::Context { segment: index, end, limit });
    }
    let vocab = shape.vocab_size;
    match segment.tokens.iter().position(|token| *token as usize >= vocab) {
        Some(at) => Err(ForwardError::Token { segment: index, index: at, found: segment.tokens[at], vocab }),
        None => Ok(()),
    }
}

fn check_pools(index: usize, segment: &Segment<'_>, cache: &Cache) -> Result<(), ForwardError> {
    let slots = cache.slot_count();
    if segment.slot.0 as usize >= slots {
        return Err(ForwardError::Slot { segment: index, found: segment.slot.0, slots });
    }
    let end = segment.start + segment.tokens.len();
    if segment.pages.len() < end.div_ceil(PAGE_TOKENS) {
        return Err(ForwardError::Pages { segment: index, end, found: segment.pages.len() });
    }
    let pages = cache.page_count();
    match segment.pages.iter().find(|page| page.0 as usize >= pages) {
        Some(page) => Err(ForwardError::Page { segment: index, found: page.0, pages }),
        None => Ok(()),
    }
}

/// Pages may be read by several sequences that share a prefix, but written by one.
fn check_writers(segments: &[Segment<'_>]) -> Result<(), ForwardError> {
    let mut slots: Vec<(u32, usize)> = segments.iter().enumerate().map(|(i, s)| (s.slot.0, i)).collect();
    slots.sort_unstable();
    if let Some(pair) = slots.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ForwardError::SharedSlot { first: pair[0].1, segment: pair[1].1, slot: pair[0].0 });
    }
    let mut pages: Vec<(u32, usize)> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let end = (segment.start + segment.tokens.len()).div_ceil(PAGE_TOKENS);
        pages.extend(segment.pages[segment.start / PAGE_TOKENS..end].iter().map(|p| (p.0, index)));
    }
    pages.sort_unstable();
    match pages.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(ForwardError::SharedPage { first: pair[0].1, segment: pair[1].1, page: pair[0].0 }),
        None => Ok(()),
    }
}
