//! The workers that a policy may choose from.
//! In: both lists. Out: the positions of the candidates, best class first and alone.
//! Never: loads.
//! A decode counts only with a prefill of its revision; suspects are candidates where no ready worker is. The prefills
//! are looked at once, by revision (there are two while a new one is rolled out), so the cost grows with the fleet and
//! not with its square.

use super::{NoWorker, WorkerView};
use crate::health::WorkerState;

/// Positions in a list of views that may be chosen, in the order of the list.
#[derive(Debug, Clone)]
pub(super) struct Candidates(Vec<usize>);

impl Candidates {
    /// The candidates, beginning behind `last` and going round.
    pub(super) fn after(&self, last: usize) -> impl Iterator<Item = usize> + '_ {
        let behind = self.0.partition_point(|position| *position <= last);
        self.0[behind..].iter().chain(&self.0[..behind]).copied()
    }

    pub(super) fn is_single(&self) -> bool {
        self.0.len() == 1
    }

    /// Those of the best rank; lower is better, `None` is out.
    fn best(count: usize, rank: impl Fn(usize) -> Option<u8>) -> Self {
        let (mut best, mut positions) = (u8::MAX, Vec::new());
        for position in 0..count {
            match rank(position) {
                Some(rank) if rank < best => {
                    best = rank;
                    positions.clear();
                    positions.push(position);
                }
                Some(rank) if rank == best => positions.push(position),
                Some(_) | None => {}
            }
        }
        Self(positions)
    }
}

/// The decodes to choose from. `prefills` is `None` where none is needed.
pub(super) fn decodes(
    decodes: &[WorkerView<'_>],
    prefills: Option<&[WorkerView<'_>]>,
) -> Result<Candidates, NoWorker> {
    if !decodes.iter().any(|view| view.state.takes_requests()) {
        return Err(NoWorker::Decode);
    }
    let Some(prefills) = prefills else {
        return Ok(Candidates::best(decodes.len(), |position| rank(decodes[position].state)));
    };
    let by_revision = best_by_revision(prefills);
    if by_revision.is_empty() {
        return Err(NoWorker::Prefill);
    }
    let of_pair = |position: usize| {
        let decode: &WorkerView<'_> = &decodes[position];
        let own = rank(decode.state)?;
        let partners = by_revision.iter().filter(|(revision, _)| decode.pairs_with(*revision));
        // A decode that fails requests is worse than a prefill that does: it has failed the clients.
        partners.map(|(_, best)| 2 * own + best).min()
    };
    let candidates = Candidates::best(decodes.len(), of_pair);
    if candidates.0.is_empty() { Err(NoWorker::Pair) } else { Ok(candidates) }
}

/// The prefills to choose from for `decode`.
pub(super) fn prefills(decode: &WorkerView<'_>, prefills: &[WorkerView<'_>]) -> Candidates {
    Candidates::best(prefills.len(), |position| {
        let prefill = &prefills[position];
        rank(prefill.state).filter(|_| decode.pairs_with(prefill.revision))
    })
}

fn rank(state: WorkerState) -> Option<u8> {
    match state {
        WorkerState::Ready => Some(0),
        WorkerState::Suspect => Some(1),
        WorkerState::Unknown | WorkerState::NotReady | WorkerState::Down => None,
    }
}

/// Every revision of the usable prefills with the rank of its best one.
fn best_by_revision<'a>(prefills: &[WorkerView<'a>]) -> Vec<(Option<&'a str>, u8)> {
    let mut found: Vec<(Option<&str>, u8)> = Vec::new();
    for view in prefills {
        let Some(rank) = rank(view.state) else { continue };
        match found.iter_mut().find(|(revision, _)| *revision == view.revision) {
            Some((_, best)) => *best = rank.min(*best),
            None => found.push((view.revision, rank)),
        }
    }
    found
}
