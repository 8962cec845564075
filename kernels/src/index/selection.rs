//! Which entries each query attends to.

/// One ascending list of entries per query, stored end to end and reused from call to call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    entries: Vec<u32>,
    /// Where the list of each query ends in `entries`.
    ends: Vec<usize>,
}

impl Selection {
    /// No queries.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many queries there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The entries of query `t`, ascending.
    ///
    /// # Panics
    /// When there is no such query.
    pub fn row(&self, t: usize) -> &[u32] {
        &self.entries[self.start(t)..self.ends[t]]
    }

    /// Forgets all queries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.ends.clear();
    }

    /// Appends a query with its entries: for tests, and for callers that select otherwise.
    pub fn push(&mut self, entries: &[u32]) {
        self.entries.extend_from_slice(entries);
        self.ends.push(self.entries.len());
    }

    /// Makes room for min(top_k, visible) entries per query.
    pub(super) fn reset(&mut self, visible: &[u32], top_k: usize) {
        self.clear();
        let mut end = 0;
        for seen in visible {
            end += top_k.min(*seen as usize);
            self.ends.push(end);
        }
        self.entries.resize(end, 0);
    }

    pub(super) fn row_mut(&mut self, t: usize) -> &mut [u32] {
        let start = self.start(t);
        &mut self.entries[start..self.ends[t]]
    }

    fn start(&self, t: usize) -> usize {
        t.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}
