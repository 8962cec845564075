//! The sliding window: the last raw rows of a sequence.
//! In: a segment's new rows. Out: those rows with the earlier ones that its queries still see.
//! Never: a ring slot overwritten while a query of the same chunk needs what it held.
//! A chunk reads the earlier rows before its own replace them. A single token replaces only what it no longer sees, so it
//! may be stored first and read with the rest.

use super::Stretch;
use crate::batch::Segment;
use crate::cache::Cache;
use crate::workspace::{Lane, Sequence};

/// Stores the last rows of a segment; of several, keeps them and what came before in `sequence.window`.
pub(super) fn store(stretch: &Stretch<'_>, cache: &mut Cache, lanes: &[Lane], sequence: &mut Sequence) {
    let Stretch { layer, segment, .. } = *stretch;
    let (dim, window, count) = (cache.kv().dim(), cache.window(), segment.tokens.len());
    sequence.earlier = if count > 1 { segment.start.min(window - 1) } else { 0 };
    sequence.window.resize(sequence.earlier * dim, 0.0);
    cache.read_window(segment.slot, layer, segment.start - sequence.earlier, &mut sequence.window);
    stretch.gather(lanes, dim, |lane| &lane.kv, &mut sequence.window);
    let own = &sequence.window[sequence.earlier * dim..];
    for (token, row) in own.chunks_exact(dim).enumerate().skip(count.saturating_sub(window)) {
        cache.write_window(segment.slot, layer, segment.start + token, row);
    }
}

/// The window of a single token, its own row included.
pub(super) fn recall(layer: usize, cache: &Cache, segment: &Segment<'_>, sequence: &mut Sequence) {
    if segment.tokens.len() > 1 {
        return;
    }
    let dim = cache.kv().dim();
    sequence.earlier = segment.start.min(cache.window() - 1);
    sequence.window.resize((sequence.earlier + 1) * dim, 0.0);
    cache.read_window(segment.slot, layer, segment.start - sequence.earlier, &mut sequence.window);
}
