//! Which GPUs of a room form a replica: those that are closest to each other.
//! In: free GPUs by index, links. Out: a set of the wanted size, in order of index.
//! Deterministic: grown from every GPU in turn, the set with the least total distance wins, then the lowest indices.

use std::collections::BTreeMap;

use node_facts::{Gpu, GpuLink, LinkKind};

/// Distance of GPUs whose connection is not known: beyond every known one.
const UNKNOWN: u32 = 16;

/// Distances between pairs of GPUs of one machine.
#[derive(Debug)]
pub(crate) struct Distances<'a>(BTreeMap<(&'a str, &'a str), u32>);

impl<'a> Distances<'a> {
    pub(crate) fn new(links: &'a [GpuLink]) -> Self {
        Self(links.iter().map(|link| (ordered(&link.a, &link.b), distance(link.kind))).collect())
    }

    fn between(&self, a: &'a Gpu, b: &'a Gpu) -> u32 {
        self.0.get(&ordered(&a.uuid, &b.uuid)).copied().unwrap_or(UNKNOWN)
    }
}

fn ordered<'a>(a: &'a str, b: &'a str) -> (&'a str, &'a str) {
    if a <= b { (a, b) } else { (b, a) }
}

fn distance(kind: LinkKind) -> u32 {
    match kind {
        LinkKind::NvLink => 0,
        LinkKind::SamePciSwitch => 1,
        LinkKind::SameHostBridge => 2,
        LinkKind::SameNuma => 3,
        LinkKind::AcrossNuma => 4,
    }
}

/// The closest `count` of `free`, by index; `free` has at least so many.
pub(crate) fn closest<'a>(free: &[&'a Gpu], count: usize, distances: &Distances<'a>) -> Vec<&'a Gpu> {
    if count == 0 {
        return Vec::new();
    }
    let mut best: Option<(u32, Vec<usize>)> = None;
    for seed in 0..free.len() {
        let (cost, mut set) = grown(free, seed, count, distances);
        set.sort_unstable();
        if best.as_ref().is_none_or(|(least, first)| (cost, &set) < (*least, first)) {
            best = Some((cost, set));
        }
    }
    best.map(|(_, set)| set.into_iter().map(|at| free[at]).collect()).unwrap_or_default()
}

/// The set that grows from `seed` by the GPU that is closest to it, and its total distance.
fn grown<'a>(free: &[&'a Gpu], seed: usize, count: usize, distances: &Distances<'a>) -> (u32, Vec<usize>) {
    let mut set = vec![seed];
    let mut total = 0;
    while set.len() < count {
        let to_set =
            |at: usize| set.iter().map(|member| distances.between(free[*member], free[at])).sum::<u32>();
        let next = (0..free.len()).filter(|at| !set.contains(at)).map(|at| (to_set(at), at)).min();
        let Some((cost, at)) = next else { break };
        total += cost;
        set.push(at);
    }
    (total, set)
}
