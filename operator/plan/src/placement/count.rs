//! How many replicas of each role each room gets.
//! In: what each room can take. Out: counts per room that place every replica, or the fullest counts there are.
//! Rooms of one role each first; shared rooms only when that is impossible. Exact, not greedy: going through the rooms
//! from the last to the first, `best[k]` is the most replicas of the second role that the rooms seen so far can hold
//! beside exactly `k` of the first.

use super::fit::Fit;
use crate::size::Demand;

/// Replicas of the first and of the second role.
pub(crate) type Counts = [u32; 2];

/// Counts per room that place everything; otherwise the counts that place most.
pub(super) fn counts(fits: &[Fit<'_>], demands: &[Demand]) -> Result<Vec<Counts>, Vec<Counts>> {
    let wanted = [0, 1].map(|role| demands.get(role).map_or(0, Demand::replicas));
    if let Some(counts) = in_order(fits, wanted) {
        return Ok(counts);
    }
    // More rooms than replicas never help: the first that fit are enough, whatever the other role takes.
    let useful = useful_rooms(fits, wanted);
    let mut most = Vec::new();
    for shared in [false, true] {
        let table = Table::new(fits, &useful, wanted, shared);
        if table.holds(wanted) {
            return Ok(table.choose(fits, &useful, wanted));
        }
        most = table.choose(fits, &useful, table.fullest(wanted));
    }
    Err(most)
}

/// The common case: prefill takes the first rooms that fit, decode the next.
fn in_order(fits: &[Fit<'_>], wanted: Counts) -> Option<Vec<Counts>> {
    let mut left = wanted;
    let mut counts = vec![[0; 2]; fits.len()];
    for (fit, counts) in fits.iter().zip(&mut counts) {
        let first = fit.alone(0).min(left[0]);
        let second = if first == 0 { fit.alone(1).min(left[1]) } else { 0 };
        *counts = [first, second];
        left = [left[0] - first, left[1] - second];
    }
    (left == [0, 0]).then_some(counts)
}

fn useful_rooms(fits: &[Fit<'_>], wanted: Counts) -> Vec<usize> {
    let enough = wanted[0].saturating_add(wanted[1]);
    let mut seen = [0u32; 2];
    let mut useful = Vec::new();
    for (room, fit) in fits.iter().enumerate() {
        let takes = [0, 1].map(|role| fit.alone(role) > 0);
        if (takes[0] && seen[0] < enough) || (takes[1] && seen[1] < enough) {
            useful.push(room);
        }
        seen = [0, 1].map(|role| seen[role] + u32::from(takes[role]));
    }
    useful
}

/// `rows[i][k]`: most of the second role in the useful rooms from `i` on, with `k` of the first in them.
struct Table {
    shared: bool,
    rows: Vec<Vec<Option<u32>>>,
}

impl Table {
    fn new(fits: &[Fit<'_>], useful: &[usize], wanted: Counts, shared: bool) -> Self {
        let width = wanted[0] as usize + 1;
        let mut last = vec![None; width];
        last[0] = Some(0);
        let mut rows = vec![last];
        for room in useful.iter().rev() {
            let below = rows.last().map_or(&[][..], Vec::as_slice);
            let options = options(&fits[*room], shared);
            let row = (0..width)
                .map(|k| {
                    let reached = options.iter().take(k + 1).enumerate();
                    let sums = reached.filter_map(|(first, second)| Some(below[k - first]? + second));
                    sums.max().map(|sum| sum.min(wanted[1]))
                })
                .collect();
            rows.push(row);
        }
        rows.reverse();
        Self { shared, rows }
    }

    fn holds(&self, wanted: Counts) -> bool {
        self.rows[0][wanted[0] as usize].is_some_and(|second| second >= wanted[1])
    }

    /// The counts that place most replicas, and of those the most of the first role.
    fn fullest(&self, wanted: Counts) -> Counts {
        let held = (0..=wanted[0]).zip(&self.rows[0]);
        held.filter_map(|(first, second)| Some([first, (*second)?]))
            .max_by_key(|[first, second]| (first + second, *first))
            .unwrap_or([0, 0])
    }

    /// Counts for every room that add up to `left`, which the table holds. Early rooms take the first role, and rooms
    /// are shared as late as possible.
    fn choose(&self, fits: &[Fit<'_>], useful: &[usize], mut left: Counts) -> Vec<Counts> {
        let mut counts = vec![[0; 2]; fits.len()];
        for (at, room) in useful.iter().enumerate() {
            let below = &self.rows[at + 1];
            let possible = |[first, second]: &Counts| {
                *first <= left[0]
                    && *second <= left[1]
                    && below[(left[0] - first) as usize].is_some_and(|rest| rest >= left[1] - second)
            };
            if let Some(chosen) = self.candidates(&fits[*room], left).into_iter().find(possible) {
                counts[*room] = chosen;
                left = [left[0] - chosen[0], left[1] - chosen[1]];
            }
        }
        counts
    }

    /// Ways to use a room, the most wanted first.
    fn candidates(&self, fit: &Fit<'_>, left: Counts) -> Vec<Counts> {
        let most = fit.alone(0).min(left[0]);
        let mut candidates: Vec<Counts> = (1..=most).rev().map(|first| [first, 0]).collect();
        candidates.push([0, fit.alone(1).min(left[1])]);
        if self.shared {
            let both = |first| [first, fit.beside(first).unwrap_or(0).min(left[1])];
            candidates.extend((1..=most).rev().map(both));
        }
        candidates
    }
}

/// For each number of the first role, from 0: how many of the second go beside it.
fn options(fit: &Fit<'_>, shared: bool) -> Vec<u32> {
    (0..=fit.alone(0))
        .map(|first| if first == 0 || shared { fit.beside(first).unwrap_or(0) } else { 0 })
        .collect()
}
