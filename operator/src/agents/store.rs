//! The newest facts of every node.
//! In: what streams hear, with the time. Never: a clock; a node without a bound: entries of vanished agents go, the oldest first, when there are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use node_facts::NodeFacts;
use operator_plan::STALE_AFTER_MS;

use super::{AgentPod, MAX_AGENTS};

/// How often ages are looked at: a stale node is noticed this much late at most.
pub(super) const AGE_CHECK: Duration = Duration::from_secs(2);
const STALE_AFTER: Duration = Duration::from_millis(STALE_AFTER_MS);

#[derive(Debug, Default)]
pub(super) struct Store {
    nodes: BTreeMap<String, Entry>,
    /// Agents that should answer, by pod name: what is wrong, or `None` while facts arrive.
    agents: BTreeMap<String, Option<String>>,
    /// Changes that matter, of all nodes.
    changes: u64,
}

#[derive(Debug)]
struct Entry {
    facts: Arc<NodeFacts>,
    /// What last counted as a change: slow changes add up.
    mattered: Arc<NodeFacts>,
    /// Number of the last change that mattered.
    change: u64,
    observed: Instant,
    stale: bool,
}

impl Store {
    /// Facts of a node, read `age` ago.
    pub(super) fn put(&mut self, pod: &AgentPod, facts: &NodeFacts, age: Duration, now: Instant) {
        let facts = Arc::new(NodeFacts { node: pod.node.clone(), ..facts.clone() });
        match self.nodes.get_mut(&pod.node) {
            Some(entry) => {
                if entry.mattered.differs_materially(&facts) {
                    self.changes += 1;
                    entry.change = self.changes;
                    entry.mattered = facts.clone();
                }
                entry.facts = facts;
            }
            None => {
                self.changes += 1;
                let (mattered, change) = (facts.clone(), self.changes);
                let entry = Entry { facts, mattered, change, observed: now, stale: false };
                self.nodes.insert(pod.node.clone(), entry);
                self.forget_oldest(&pod.node);
            }
        }
        self.seen(pod, age, now);
    }

    /// The facts of a node were still true `age` ago.
    pub(super) fn seen(&mut self, pod: &AgentPod, age: Duration, now: Instant) {
        if let Some(problem) = self.agents.get_mut(&pod.name) {
            *problem = None;
        }
        if let Some(entry) = self.nodes.get_mut(&pod.node) {
            entry.observed = now.checked_sub(age).unwrap_or(now);
            note_age(entry, now, &mut self.changes);
        }
    }

    /// Facts become stale while nobody reports.
    pub(super) fn note_ages(&mut self, now: Instant) {
        for entry in self.nodes.values_mut() {
            note_age(entry, now, &mut self.changes);
        }
    }

    pub(super) fn expect_agent(&mut self, pod: &AgentPod) {
        self.agents.insert(pod.name.clone(), Some("it was not reached yet".to_owned()));
    }

    /// Nothing arrives from an agent that should answer. (One that was forgotten since may still end its last message.)
    pub(super) fn disconnected(&mut self, pod: &AgentPod, reason: String) {
        if let Some(problem) = self.agents.get_mut(&pod.name) {
            *problem = Some(reason);
        }
    }

    pub(super) fn forget_agent(&mut self, pod: &AgentPod) {
        self.agents.remove(&pod.name);
    }

    pub(super) fn snapshot(&self, now: Instant) -> Vec<(Arc<NodeFacts>, Duration)> {
        self.nodes.values().map(|entry| (entry.facts.clone(), now.duration_since(entry.observed))).collect()
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn changed_since(&self, count: u64) -> BTreeSet<String> {
        let changed = self.nodes.iter().filter(|(_, entry)| entry.change > count);
        changed.map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn connected(&self) -> usize {
        self.agents.values().filter(|problem| problem.is_none()).count()
    }

    pub(super) fn problems(&self) -> BTreeMap<String, String> {
        self.agents.iter().filter_map(|(pod, problem)| Some((pod.clone(), problem.clone()?))).collect()
    }

    fn forget_oldest(&mut self, but: &str) {
        if self.nodes.len() <= MAX_AGENTS {
            return;
        }
        let others = self.nodes.iter().filter(|(node, _)| *node != but);
        if let Some(oldest) = others.min_by_key(|(_, entry)| entry.observed).map(|(node, _)| node.clone()) {
            self.nodes.remove(&oldest);
        }
    }
}

fn note_age(entry: &mut Entry, now: Instant, changes: &mut u64) {
    let stale = now.duration_since(entry.observed) >= STALE_AFTER;
    if stale != entry.stale {
        entry.stale = stale;
        *changes += 1;
        entry.change = *changes;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use node_facts::{Memory, Reading};

    fn pod(node: &str) -> AgentPod {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9443));
        AgentPod { name: format!("agent-{node}"), node: node.into(), address }
    }

    fn facts(available: u64) -> NodeFacts {
        let unread = || "not read".to_owned();
        NodeFacts {
            node: "what the agent says".into(),
            numa: Reading::Absent(unread()),
            cpus: Reading::Absent(unread()),
            memory: Reading::Value(Memory { total: 1600, free: available, available }),
            cgroup_memory_limit: Reading::Absent(unread()),
            gpus: Reading::Absent(unread()),
            links: Vec::new(),
            kubelet: Reading::Absent(unread()),
            notes: Vec::new(),
        }
    }

    #[test]
    fn noise_is_stored_and_wakes_nobody_until_it_adds_up() {
        let mut store = Store::default();
        store.put(&pod("a"), &facts(800), Duration::ZERO, Instant::now());
        assert_eq!(store.changes(), 1);
        store.put(&pod("a"), &facts(850), Duration::ZERO, Instant::now());
        store.put(&pod("a"), &facts(900), Duration::ZERO, Instant::now());
        assert_eq!(store.changes(), 1);
        assert_eq!(store.snapshot(Instant::now())[0].0.memory.value().unwrap().available, 900);
        store.put(&pod("a"), &facts(901), Duration::ZERO, Instant::now());
        assert_eq!(store.changes(), 2);
    }

    #[test]
    fn facts_belong_to_the_node_of_the_pod() {
        let mut store = Store::default();
        store.put(&pod("a"), &facts(800), Duration::ZERO, Instant::now());
        assert_eq!(store.snapshot(Instant::now())[0].0.node, "a");
    }

    #[test]
    fn each_change_names_its_nodes() {
        let mut store = Store::default();
        store.put(&pod("a"), &facts(800), Duration::ZERO, Instant::now());
        store.put(&pod("b"), &facts(800), Duration::ZERO, Instant::now());
        let before = store.changes();
        assert!(store.changed_since(before).is_empty());
        store.put(&pod("b"), &facts(100), Duration::ZERO, Instant::now());
        assert_eq!(store.changed_since(before), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn becoming_stale_and_fresh_again_matters_once_each() {
        let (mut store, begin) = (Store::default(), Instant::now());
        store.put(&pod("a"), &facts(800), Duration::ZERO, begin);
        store.note_ages(begin + STALE_AFTER - Duration::from_millis(1));
        assert_eq!(store.changes(), 1);
        let later = begin + STALE_AFTER;
        store.note_ages(later);
        store.note_ages(later);
        assert_eq!(store.changes(), 2);
        assert_eq!(store.snapshot(later)[0].1, STALE_AFTER);
        store.seen(&pod("a"), Duration::ZERO, later);
        assert_eq!((store.changes(), store.snapshot(later)[0].1), (3, Duration::ZERO));
    }

    #[test]
    fn facts_that_were_old_when_sent_are_stale_at_once() {
        let (mut store, now) = (Store::default(), Instant::now() + STALE_AFTER);
        store.put(&pod("a"), &facts(800), STALE_AFTER, now);
        assert_eq!(store.snapshot(now)[0].1, STALE_AFTER);
        assert_eq!(store.changes(), 2, "new, and stale");
    }

    #[test]
    fn an_agent_that_was_forgotten_stays_forgotten() {
        let mut store = Store::default();
        store.expect_agent(&pod("a"));
        assert_eq!((store.connected(), store.problems().len()), (0, 1));
        store.put(&pod("a"), &facts(800), Duration::ZERO, Instant::now());
        assert_eq!((store.connected(), store.problems().len()), (1, 0));
        store.disconnected(&pod("a"), "gone".into());
        assert_eq!(store.problems()["agent-a"], "gone");
        store.forget_agent(&pod("a"));
        store.seen(&pod("a"), Duration::ZERO, Instant::now());
        store.disconnected(&pod("a"), "gone".into());
        assert_eq!((store.connected(), store.problems().len()), (0, 0));
        assert_eq!(store.snapshot(Instant::now()).len(), 1, "its node's facts stay");
    }

    #[test]
    fn the_oldest_node_goes_when_there_are_too_many() {
        let mut store = Store::default();
        let mut now = Instant::now();
        for number in 0..=MAX_AGENTS {
            now += Duration::from_millis(1);
            store.put(&pod(&format!("n{number}")), &facts(800), Duration::ZERO, now);
        }
        assert_eq!(store.snapshot(now).len(), MAX_AGENTS);
        assert!(!store.nodes.contains_key("n0"));
    }
}
