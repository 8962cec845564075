//! The newest facts, with what changed when: enough to tell any client just what it has not seen.
//! In: one observation after another. Out: [`State`], and messages made from it. Never: a history; each field keeps the
//! number of its last change, so a client may have missed any number of states.

use std::sync::Arc;
use std::time::Instant;

use node_agent_proto::v1;
use node_facts::{NodeFacts, Reading};

use crate::source::nvml::Sensors;

/// What was read at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Observation {
    pub(crate) facts: NodeFacts,
    pub(crate) sensors: Vec<GpuSensors>,
    /// NVIDIA GPUs that the PCI bus shows.
    pub(crate) gpus_on_bus: Reading<usize>,
    pub(crate) at: Instant,
    /// The same moment for people.
    pub(crate) unix_ms: i64,
}

/// Readings of one GPU that move all the time.
#[derive(Debug, Clone)]
pub(crate) struct GpuSensors {
    pub(crate) uuid: String,
    pub(crate) sensors: Sensors,
}

/// Sections of the message `Facts`, in its order.
const SECTIONS: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct State {
    /// One run of this program.
    instance: Arc<str>,
    sequence: u64,
    /// Number of each section's last change.
    changed: [u64; SECTIONS],
    /// Number of the last change that plans may depend on.
    mattered: u64,
    /// The facts of that change.
    baseline: Arc<NodeFacts>,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) sensors: Vec<GpuSensors>,
    pub(crate) gpus_on_bus: Reading<usize>,
    pub(crate) observed: Instant,
    unix_ms: i64,
}

impl State {
    pub(crate) fn first(instance: Arc<str>, observation: Observation) -> Self {
        let Observation { facts, sensors, gpus_on_bus, at, unix_ms } = observation;
        let facts = Arc::new(facts);
        State {
            instance,
            sequence: 1,
            changed: [1; SECTIONS],
            mattered: 1,
            baseline: facts.clone(),
            facts,
            sensors,
            gpus_on_bus,
            observed: at,
            unix_ms,
        }
    }

    pub(crate) fn next(&self, observation: Observation) -> Self {
        let Observation { facts, sensors, gpus_on_bus, at, unix_ms } = observation;
        let differs = differences(&self.facts, &facts);
        let mut next = State { sensors, gpus_on_bus, observed: at, unix_ms, ..self.clone() };
        if differs.contains(&true) {
            next.sequence += 1;
            for (changed, differs) in next.changed.iter_mut().zip(differs) {
                if differs {
                    *changed = next.sequence;
                }
            }
            next.facts = Arc::new(facts);
            if self.baseline.differs_materially(&next.facts) {
                next.mattered = next.sequence;
                next.baseline = next.facts.clone();
            }
        }
        next
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether a client that knows `sequence` should hear now what changed since.
    pub(crate) fn matters_since(&self, sequence: u64) -> bool {
        self.mattered > sequence
    }

    pub(crate) fn position(&self) -> v1::Position {
        v1::Position { instance: self.instance.to_string(), sequence: self.sequence }
    }

    /// The number of a client's position, if it can resume there.
    pub(crate) fn resumes(&self, position: &v1::Position) -> Option<u64> {
        (*position.instance == *self.instance && position.sequence <= self.sequence)
            .then_some(position.sequence)
    }

    pub(crate) fn observed(&self) -> v1::Observed {
        let age_ms = u64::try_from(self.observed.elapsed().as_millis()).unwrap_or(u64::MAX);
        v1::Observed { age_ms, unix_ms: self.unix_ms }
    }

    pub(crate) fn all(&self) -> v1::Facts {
        node_agent_proto::sections(&self.facts)
    }

    /// Sections that changed after `sequence`.
    pub(crate) fn changes_since(&self, sequence: u64) -> v1::Facts {
        let v1::Facts { node, numa, cpus, memory, cgroup_memory_limit, gpus, links, notes, kubelet } =
            self.all();
        let [at_numa, at_cpus, at_memory, at_limit, at_gpus, at_links, at_notes, at_kubelet] = self.changed;
        let new = |at: u64| at > sequence;
        v1::Facts {
            node,
            numa: numa.filter(|_| new(at_numa)),
            cpus: cpus.filter(|_| new(at_cpus)),
            memory: memory.filter(|_| new(at_memory)),
            cgroup_memory_limit: cgroup_memory_limit.filter(|_| new(at_limit)),
            gpus: gpus.filter(|_| new(at_gpus)),
            links: links.filter(|_| new(at_links)),
            notes: notes.filter(|_| new(at_notes)),
            kubelet: kubelet.filter(|_| new(at_kubelet)),
        }
    }
}

/// In the order of the sections. The name of the node never changes in one run.
fn differences(old: &NodeFacts, new: &NodeFacts) -> [bool; SECTIONS] {
    let NodeFacts { node: _, numa, cpus, memory, cgroup_memory_limit, gpus, links, kubelet, notes } = old;
    [
        *numa != new.numa,
        *cpus != new.cpus,
        *memory != new.memory,
        *cgroup_memory_limit != new.cgroup_memory_limit,
        *gpus != new.gpus,
        *links != new.links,
        *notes != new.notes,
        *kubelet != new.kubelet,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(change: impl FnOnce(&mut NodeFacts)) -> Observation {
        let mut facts = crate::scene::facts("story").unwrap();
        change(&mut facts);
        Observation {
            facts,
            sensors: Vec::new(),
            gpus_on_bus: Reading::Value(8),
            at: Instant::now(),
            unix_ms: 0,
        }
    }

    fn first() -> State {
        State::first("run".into(), observation(|_| {}))
    }

    fn note(facts: &mut NodeFacts) {
        facts.notes = vec!["a remark".into()];
    }

    #[test]
    fn the_same_facts_are_no_change() {
        let (first, again) = (first(), first().next(observation(|_| {})));
        assert_eq!(again.sequence(), first.sequence());
        assert_eq!(
            again.changes_since(1),
            v1::Facts { node: first.facts.node.clone(), ..Default::default() }
        );
    }

    #[test]
    fn a_client_gets_the_sections_that_it_has_not_seen() {
        let noted = first().next(observation(note));
        let emptied = noted.next(observation(|facts| {
            note(facts);
            facts.gpus = Reading::Value(vec![]);
        }));
        let changes = emptied.changes_since(noted.sequence());
        assert!(changes.gpus.is_some() && changes.notes.is_none() && changes.numa.is_none());
        let changes = emptied.changes_since(1);
        assert!(changes.gpus.is_some() && changes.notes.is_some() && changes.numa.is_none());
        let mut facts = node_agent_proto::facts(first().all());
        node_agent_proto::merge(&mut facts, changes);
        assert_eq!(facts, *emptied.facts);
    }

    #[test]
    fn a_remark_can_wait_and_lost_gpus_cannot() {
        let noted = first().next(observation(note));
        assert!(!noted.matters_since(1));
        let emptied = noted.next(observation(|facts| facts.gpus = Reading::Value(vec![])));
        assert!(emptied.matters_since(noted.sequence()) && !emptied.matters_since(emptied.sequence()));
    }

    #[test]
    fn only_positions_of_this_run_resume() {
        let state = first().next(observation(note));
        let at = |instance: &str, sequence| v1::Position { instance: instance.into(), sequence };
        assert_eq!(state.resumes(&state.position()), Some(2));
        assert_eq!(state.resumes(&at("run", 1)), Some(1));
        assert_eq!(state.resumes(&at("run", 3)), None, "from the future");
        assert_eq!(state.resumes(&at("other", 1)), None);
    }
}
