//! A matrix that several threads write, each its own columns.

#![expect(unsafe_code, reason = "column ranges of one matrix are disjoint, but not slices")]

use std::marker::PhantomData;
use std::ops::Range;

/// Some columns of a row-major matrix: the only way to them while it lives.
#[derive(Debug)]
pub(super) struct Columns<'a> {
    start: *mut f32,
    /// Values from one row to the next.
    stride: usize,
    rows: usize,
    /// The columns that belong to this view, counted from `start`.
    columns: Range<usize>,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is an exclusive borrow of its columns, like `&mut [f32]`, which is Send.
unsafe impl Send for Columns<'_> {}

impl<'a> Columns<'a> {
    /// The first `columns` columns of `rows` rows that start every `stride` values.
    pub(super) fn new(values: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "{columns} columns do not fit a stride of {stride}");
        let needed = rows.checked_sub(1).map_or(0, |last| last * stride + columns);
        assert!(needed <= values.len(), "{} values for {rows} rows of {columns}", values.len());
        Self { start: values.as_mut_ptr(), stride, rows, columns: 0..columns, owner: PhantomData }
    }

    /// The first `count` columns, and the rest.
    pub(super) fn split_at(self, count: usize) -> (Self, Self) {
        let Range { start, end } = self.columns;
        assert!(count <= end - start, "{count} of {} columns", end - start);
        let middle = start + count;
        (Self { columns: start..middle, ..self }, Self { columns: middle..end, ..self })
    }

    /// Where `count` columns from `column` on of the first `rows` rows are, and the values from one row to the next.
    pub(super) fn block(&mut self, rows: usize, column: usize, count: usize) -> (*mut f32, isize) {
        let Range { start, end } = self.columns;
        assert!(
            rows <= self.rows && column + count <= end - start,
            "a block of {rows} x {count} at {column}"
        );
        let stride = isize::try_from(self.stride).expect("a slice is shorter than isize::MAX");
        (self.start.wrapping_add(start + column), stride)
    }

    /// This view's columns of row `row`.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let Range { start, end } = self.columns;
        // SAFETY: `new` checked that row < rows and columns <= stride lie inside the borrowed values; `split_at` gives every
        // column to one view only, and `&mut self` makes this the only slice of this view.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride + start), end - start) }
    }
}
