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

    /// Every query takes the first entries: all that it sees.
    pub(super) fn take_all(&mut self, visible: &[u32]) {
        let mut start = 0;
        for (end, seen) in self.ends.iter().zip(visible) {
            for (entry, w) in self.entries[start..*end].iter_mut().zip(0..*seen) {
                *entry = w;
            }
            start = *end;
        }
    }

    /// All lists, to be filled.
    pub(super) fn rows_mut(&mut self) -> RowsMut<'_> {
        RowsMut { entries: &mut self.entries, ends: &self.ends, first: 0, start: 0 }
    }

    fn start(&self, t: usize) -> usize {
        t.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// The lists of some queries in a row, to be filled.
#[derive(Debug)]
pub(super) struct RowsMut<'a> {
    entries: &'a mut [u32],
    ends: &'a [usize],
    /// The first of these queries.
    first: usize,
    /// Where its list starts in the whole selection.
    start: usize,
}

impl RowsMut<'_> {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The first `count` queries, and the rest.
    pub(super) fn split_at(self, count: usize) -> (Self, Self) {
        let Self { entries, ends, first, start } = self;
        let (ends, later) = ends.split_at(count);
        let middle = ends.last().copied().unwrap_or(start);
        let (entries, rest) = entries.split_at_mut(middle - start);
        (
            Self { entries, ends, first, start },
            Self { entries: rest, ends: later, first: first + count, start: middle },
        )
    }

    /// Calls `f` with every query and its list.
    pub(super) fn for_each(self, mut f: impl FnMut(usize, &mut [u32])) {
        let Self { mut entries, ends, first, mut start } = self;
        for (t, end) in ends.iter().enumerate() {
            let (row, rest) = entries.split_at_mut(end - start);
            f(first + t, row);
            (entries, start) = (rest, *end);
        }
    }
}
