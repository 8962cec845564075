//! When work is worth handing to another core, and into how many pieces to cut it.
//! In: the cost of the work. Out: a number of pieces, and a way to run them on the current rayon pool.
//! Never: an allocation; a thread of its own.
//! Waking a sleeping worker costs 5 to 20 microseconds, as much as a million floating-point operations: work below three
//! [`GRAIN`]s stays where it is.

/// The least cost worth a hand-over, in multiply-adds at full speed times two.
const GRAIN: usize = 1 << 20;

/// How many pieces to cut work of `cost` floating-point operations into: one, or one per thread, or a few per thread when
/// the work is long enough that an uneven machine matters more than another hand-over.
pub(crate) fn pieces(cost: usize) -> usize {
    let threads = rayon::current_num_threads();
    match cost / GRAIN {
        0..=2 => 1,
        grains @ 3..64 => grains.min(threads),
        grains => (grains / 16).min(4 * threads).max(threads),
    }
}

/// Work that can be cut in two.
pub(crate) trait Split: Sized + Send {
    /// The first `left` of `pieces` equal parts, and the rest.
    fn split(self, left: usize, pieces: usize) -> (Self, Self);
}

/// Runs `work` in `pieces` parts.
pub(crate) fn run<W: Split>(work: W, pieces: usize, f: &(impl Fn(W) + Sync)) {
    if pieces <= 1 {
        return f(work);
    }
    let half = pieces / 2;
    let (left, right) = work.split(half, pieces);
    rayon::join(|| run(left, half, f), || run(right, pieces - half, f));
}
