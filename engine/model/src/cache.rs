//! The pools: pages of full-history rows and slots of window rows and compressor state, as bytes.
//! In: rows in f32. Out: rows in f32; whole pages and slots as bytes. Never: a page table (the scheduler's), a count of
//! valid rows (positions say it), any byte beyond what `engine_spec::memory` sizes.
//! A page holds its rows of all layers contiguously, and so does a slot: exporting one is a copy of one range.
//!
//! ```text
//! page   per layer   ratio 4: 64 KV rows, 64 index keys    ratio 128: 2 KV rows
//! slot   per layer   window ring, then state rows (f32): k, g of a token
//!                    ratio 4: 8 main rows of 2·2D, 8 index rows of 2·2I     ratio 128: 128 rows of 2·D
//! ```

#[cfg(test)]
mod tests;

use engine_spec::memory::{self, CacheFormat};
use engine_spec::{IndexKeyFormat, LayerKind, ModelShape, PAGE_TOKENS, Precision};
use fathom_kernels::row::{KeyFormat, KeyRow, KvFormat, KvRow, RowError};

use crate::batch::{Page, Slot};
use crate::weights::LoadError;

/// Where a layer's rows lie inside a page and inside a slot.
#[derive(Debug, Clone, Copy)]
struct Place {
    kind: LayerKind,
    page: usize,
    slot: usize,
}

/// Which compressor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Entries that are attended to.
    Main,
    /// Index keys.
    Index,
}

/// How a KV row is rounded before anyone attends to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// To what its stored form holds.
    AsStored,
    /// Unrotated part only, and stored in f32: what the golden files with rounding were made with. A stored row of FP8
    /// has its rotated part in bf16, which moves logits by 1e-2.
    #[cfg(test)]
    Unrotated { until: usize },
}

/// Both pools.
#[derive(Debug)]
pub(crate) struct Cache {
    rounding: Rounding,
    kv: KvRow,
    key: KeyRow,
    window: usize,
    places: Vec<Place>,
    page_bytes: usize,
    slot_bytes: usize,
    pages: Vec<u8>,
    slots: Vec<u8>,
}

impl Cache {
    /// Pools of `pages` pages and `slots` slots, all zero.
    pub(crate) fn new(
        shape: &ModelShape,
        format: CacheFormat,
        pages: u32,
        slots: u32,
    ) -> Result<Self, LoadError> {
        let (kv, key) = rows(shape, format).map_err(|e| LoadError::Setting {
            setting: "the cache's row width",
            found: e.to_string(),
            expected: "a width the row formats can hold".to_owned(),
        })?;
        let (page_bytes, slot_bytes) = (format.page_bytes(shape), format.slot_bytes(shape));
        let (mut page, mut slot) = (0, 0);
        let places = shape
            .layer_kinds()
            .map(|kind| {
                let place = Place { kind, page, slot };
                page += format.layer_page_bytes(shape, kind);
                slot += shape.sliding_window * kv.bytes() + memory::state_bytes(shape, kind);
                place
            })
            .collect();
        debug_assert_eq!((page, slot), (page_bytes, slot_bytes));
        Ok(Self {
            rounding: Rounding::AsStored,
            kv,
            key,
            window: shape.sliding_window,
            places,
            page_bytes,
            slot_bytes,
            pages: allocate("page", page_bytes, pages)?,
            slots: allocate("slot", slot_bytes, slots)?,
        })
    }

    /// Rows in f32 whose unrotated part is rounded to FP8.
    #[cfg(test)]
    pub(crate) fn round_unrotated(&mut self, until: usize) {
        assert_eq!(self.kv.format(), KvFormat::F32, "the rotated part must be stored unrounded");
        self.rounding = Rounding::Unrotated { until };
    }

    /// Rounds a row to what later steps will read of it.
    pub(crate) fn round_kv(&self, row: &mut [f32]) {
        match self.rounding {
            Rounding::AsStored => self.kv.round(row),
            #[cfg(test)]
            Rounding::Unrotated { until } => fathom_kernels::round::fp8_tiles(&mut row[..until], 64),
        }
    }

    pub(crate) fn kv(&self) -> &KvRow {
        &self.kv
    }

    /// Raw rows kept per sequence and layer.
    pub(crate) fn window(&self) -> usize {
        self.window
    }

    pub(crate) fn key(&self) -> &KeyRow {
        &self.key
    }

    pub(crate) fn page_count(&self) -> usize {
        self.pages.len().checked_div(self.page_bytes).unwrap_or(usize::MAX)
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len() / self.slot_bytes
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(crate) fn page(&self, page: Page) -> &[u8] {
        &self.pages[page.0 as usize * self.page_bytes..][..self.page_bytes]
    }

    pub(crate) fn page_mut(&mut self, page: Page) -> &mut [u8] {
        &mut self.pages[page.0 as usize * self.page_bytes..][..self.page_bytes]
    }

    pub(crate) fn slot(&self, slot: Slot) -> &[u8] {
        &self.slots[slot.0 as usize * self.slot_bytes..][..self.slot_bytes]
    }

    pub(crate) fn slot_mut(&mut self, slot: Slot) -> &mut [u8] {
        &mut self.slots[slot.0 as usize * self.slot_bytes..][..self.slot_bytes]
    }

    /// Stores the KV row of `position` in the window ring.
    pub(crate) fn write_window(&mut self, slot: Slot, layer: usize, position: usize, row: &[f32]) {
        let (kv, at) = (self.kv, self.window_at(layer, position));
        kv.encode(row, &mut self.slot_mut(slot)[at..][..kv.bytes()]);
    }

    /// Reads the KV rows from position `first` on out of the window ring: some of the last `window` positions written.
    pub(crate) fn read_window(&self, slot: Slot, layer: usize, first: usize, rows: &mut [f32]) {
        let (dim, bytes) = (self.kv.dim(), self.kv.bytes());
        // Up to the end of the ring, then on from its start.
        let straight = (self.window - first % self.window).min(rows.len() / dim);
        let (rows, wrapped) = rows.split_at_mut(straight * dim);
        let slot = self.slot(slot);
        self.kv.decode(&slot[self.window_at(layer, first)..][..straight * bytes], rows);
        let rest = wrapped.len() / dim * bytes;
        self.kv.decode(&slot[self.window_at(layer, 0)..][..rest], wrapped);
    }

    /// Stores entry `entry` of a compressed layer in the sequence's pages.
    pub(crate) fn write_entry(&mut self, pages: &[Page], layer: usize, entry: usize, row: &[f32]) {
        let (kv, (page, at)) = (self.kv, self.entry_at(pages, layer, entry));
        kv.encode(row, &mut self.page_mut(page)[at..][..kv.bytes()]);
    }

    /// Reads the entries from `first` on.
    pub(crate) fn read_entries(&self, pages: &[Page], layer: usize, first: usize, rows: &mut [f32]) {
        let (dim, per_page) = (self.kv.dim(), self.entries_per_page(layer));
        for (entry, rows) in spans(first, rows, dim, per_page) {
            let (page, at) = self.entry_at(pages, layer, entry);
            self.kv.decode(&self.page(page)[at..][..rows.len() / dim * self.kv.bytes()], rows);
        }
    }

    /// Stores the index key of entry `entry` of a ratio-4 layer.
    pub(crate) fn write_key(&mut self, pages: &[Page], layer: usize, entry: usize, row: &[f32]) {
        let (key, (page, at)) = (self.key, self.key_at(pages, layer, entry));
        key.encode(row, &mut self.page_mut(page)[at..][..key.bytes()]);
    }

    /// Reads the index keys from entry `first` on.
    pub(crate) fn read_keys(&self, pages: &[Page], layer: usize, first: usize, rows: &mut [f32]) {
        let (dim, per_page) = (self.key.dim(), self.entries_per_page(layer));
        for (entry, rows) in spans(first, rows, dim, per_page) {
            let (page, at) = self.key_at(pages, layer, entry);
            self.key.decode(&self.page(page)[at..][..rows.len() / dim * self.key.bytes()], rows);
        }
    }

    /// Stores what a compressor computed for the token at `position`: its values and gates, of equal width.
    pub(crate) fn write_state(
        &mut self,
        slot: Slot,
        layer: usize,
        stream: Stream,
        position: usize,
        values: &[f32],
        gates: &[f32],
    ) {
        let at = self.state_at(layer, stream, position, values.len());
        let bytes = &mut self.slot_mut(slot)[at..];
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values.iter().chain(gates)) {
            *bytes = value.to_le_bytes();
        }
    }

    /// Reads it back: values, then gates, `row.len() / 2` of each.
    pub(crate) fn read_state(
        &self,
        slot: Slot,
        layer: usize,
        stream: Stream,
        position: usize,
        row: &mut [f32],
    ) {
        let at = self.state_at(layer, stream, position, row.len() / 2);
        let bytes = &self.slot(slot)[at..];
        for (value, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }

    fn window_at(&self, layer: usize, position: usize) -> usize {
        self.places[layer].slot + position % self.window * self.kv.bytes()
    }

    fn entries_per_page(&self, layer: usize) -> usize {
        PAGE_TOKENS / self.places[layer].kind.ratio()
    }

    fn entry_at(&self, pages: &[Page], layer: usize, entry: usize) -> (Page, usize) {
        let (place, per_page) = (self.places[layer], self.entries_per_page(layer));
        (pages[entry / per_page], place.page + entry % per_page * self.kv.bytes())
    }

    fn key_at(&self, pages: &[Page], layer: usize, entry: usize) -> (Page, usize) {
        let (place, per_page) = (self.places[layer], self.entries_per_page(layer));
        let keys = place.page + per_page * self.kv.bytes();
        (pages[entry / per_page], keys + entry % per_page * self.key.bytes())
    }

    fn state_at(&self, layer: usize, stream: Stream, position: usize, width: usize) -> usize {
        let place = self.places[layer];
        let row = 2 * width * size_of::<f32>();
        let ring = state_rows(place.kind);
        let first = place.slot + self.window * self.kv.bytes();
        let stream = match stream {
            Stream::Main => 0,
            // After the main rows, which are 2·2D wide.
            Stream::Index => ring * 2 * 2 * self.kv.dim() * size_of::<f32>(),
        };
        first + stream + position % ring * row
    }
}

/// Tokens whose compressor state a slot keeps: two windows of ratio 4 (the older one is the A half), one of ratio 128.
pub(crate) fn state_rows(kind: LayerKind) -> usize {
    match kind {
        LayerKind::Window => 0,
        LayerKind::Csa => 8,
        LayerKind::Hca => 128,
    }
}

/// Cuts rows of `dim` that hold entries from `first` on where pages end.
fn spans(
    first: usize,
    mut rows: &mut [f32],
    dim: usize,
    per_page: usize,
) -> impl Iterator<Item = (usize, &mut [f32])> {
    let mut entry = first;
    std::iter::from_fn(move || {
        let count = (per_page - entry % per_page).min(rows.len() / dim);
        let (span, rest) = std::mem::take(&mut rows).split_at_mut(count * dim);
        rows = rest;
        let at = entry;
        entry += count;
        (count > 0).then_some((at, span))
    })
}

fn rows(shape: &ModelShape, format: CacheFormat) -> Result<(KvRow, KeyRow), RowError> {
    let kv = match format.precision {
        Precision::Exact => KvFormat::F32,
        Precision::Sim | Precision::Full => KvFormat::Fp8,
    };
    let key = match format.index_keys {
        IndexKeyFormat::F32 => KeyFormat::F32,
        IndexKeyFormat::Bf16 => KeyFormat::Bf16,
        IndexKeyFormat::Fp8 => KeyFormat::Fp8,
        IndexKeyFormat::Fp4 => KeyFormat::Fp4,
    };
    Ok((KvRow::new(kv, shape.head_dim, shape.qk_rope_head_dim)?, KeyRow::new(key, shape.index_head_dim)?))
}

fn allocate(pool: &'static str, bytes: usize, count: u32) -> Result<Vec<u8>, LoadError> {
    let bytes = bytes.saturating_mul(count as usize);
    let refused = |_| LoadError::Memory { pool, bytes };
    // Asks first, because an allocation that fails ends the process; then lets the system map zeros lazily.
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(refused)?;
    Ok(vec![0; bytes])
}
