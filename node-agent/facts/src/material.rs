//! Which changes of facts matter to a plan, and which are noise of a machine at work.
//! Memory moves all the time: a change counts when it is more than a sixteenth of what there is.

use std::mem::discriminant;

use crate::{Gpu, Memory, NodeFacts, NumaNode, Reading};

const NOISE_PARTS: u64 = 16;

impl NodeFacts {
    /// Whether a plan made from `self` may look different from one made from `newer`.
    /// Compare with the facts that last mattered, not with the last ones seen: slow changes add up.
    pub fn differs_materially(&self, newer: &NodeFacts) -> bool {
        self.node != newer.node
            || self.links != newer.links
            || unlike(&self.cpus, &newer.cpus)
            || unlike(&self.cgroup_memory_limit, &newer.cgroup_memory_limit)
            || unlike(&self.kubelet, &newer.kubelet)
            || memory_moved(&self.memory, &newer.memory)
            || numa_moved(self, newer)
            || gpus_moved(self, newer)
    }
}

/// Another value, or another kind of answer: why a value is unknown is told in many ways and changes no plan.
fn unlike<T: PartialEq>(old: &Reading<T>, new: &Reading<T>) -> bool {
    match (old, new) {
        (Reading::Value(old), Reading::Value(new)) => old != new,
        _ => discriminant(old) != discriminant(new),
    }
}

fn numa_moved(old: &NodeFacts, new: &NodeFacts) -> bool {
    let (Some(old_nodes), Some(new_nodes)) = (old.numa.value(), new.numa.value()) else {
        return unlike(&old.numa, &new.numa);
    };
    old_nodes.len() != new_nodes.len()
        || old_nodes.iter().zip(new_nodes).any(|((old_number, old), (new_number, new))| {
            let NumaNode { cpus, memory, distances } = old;
            old_number != new_number
                || *cpus != new.cpus
                || *distances != new.distances
                || memory_moved(memory, &new.memory)
        })
}

fn memory_moved(old: &Reading<Memory>, new: &Reading<Memory>) -> bool {
    match (old, new) {
        (Reading::Value(old), Reading::Value(new)) => {
            old.total != new.total || moved(old.available, new.available, new.total)
        }
        _ => unlike(old, new),
    }
}

fn gpus_moved(old: &NodeFacts, new: &NodeFacts) -> bool {
    let (Some(old_gpus), Some(new_gpus)) = (old.gpus.value(), new.gpus.value()) else {
        return unlike(&old.gpus, &new.gpus);
    };
    old_gpus.len() != new_gpus.len() || old_gpus.iter().zip(new_gpus).any(|(old, new)| gpu_moved(old, new))
}

fn gpu_moved(old: &Gpu, new: &Gpu) -> bool {
    let used_moved = match (old.memory_used.value(), new.memory_used.value(), new.memory_total.value()) {
        (Some(old), Some(new), Some(total)) => moved(*old, *new, *total),
        (None, None, _) => false,
        _ => true,
    };
    let unused = |gpu: &Gpu| Gpu { memory_used: Reading::Value(0), ..gpu.clone() };
    used_moved || unused(old) != unused(new)
}

fn moved(old: u64, new: u64, total: u64) -> bool {
    old.abs_diff(new) > total / NOISE_PARTS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{GpuHealth, Mig};

    fn memory(available: u64) -> Reading<Memory> {
        Reading::Value(Memory { total: 1600, free: available, available })
    }

    fn facts() -> NodeFacts {
        let gpu = Gpu {
            uuid: "GPU-1".into(),
            index: 0,
            name: Reading::Value("a GPU".into()),
            pci: Reading::Value("0000:17:00.0".into()),
            numa_node: Reading::Value(0),
            memory_total: Reading::Value(1600),
            memory_used: Reading::Value(10),
            mig: Reading::Value(Mig::Off),
            health: Reading::Value(GpuHealth::Healthy),
        };
        let node = NumaNode {
            cpus: Reading::Value(vec![0, 1]),
            memory: memory(800),
            distances: Reading::Value(vec![10]),
        };
        NodeFacts {
            node: "n".into(),
            numa: Reading::Value(BTreeMap::from([(0, node)])),
            cpus: Reading::Value(vec![0, 1]),
            memory: memory(800),
            cgroup_memory_limit: Reading::Absent("no limit".into()),
            gpus: Reading::Value(vec![gpu]),
            links: Vec::new(),
            kubelet: Reading::Absent("none".into()),
            notes: Vec::new(),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut NodeFacts), matters: bool) {
        let (old, mut new) = (facts(), facts());
        change(&mut new);
        assert_eq!(old.differs_materially(&new), matters);
        assert_eq!(new.differs_materially(&old), matters);
    }

    fn numa(facts: &mut NodeFacts) -> &mut NumaNode {
        let Reading::Value(nodes) = &mut facts.numa else { panic!("no NUMA nodes") };
        nodes.get_mut(&0).unwrap()
    }

    fn gpu(facts: &mut NodeFacts) -> &mut Gpu {
        let Reading::Value(gpus) = &mut facts.gpus else { panic!("no GPUs") };
        &mut gpus[0]
    }

    #[test]
    fn noise_of_a_machine_at_work_does_not_matter() {
        check(|_| {}, false);
        check(|facts| facts.memory = memory(900), false);
        check(|facts| numa(facts).memory = memory(700), false);
        check(|facts| gpu(facts).memory_used = Reading::Value(110), false);
        check(|facts| facts.notes.push("a remark".into()), false);
    }

    #[test]
    fn what_a_plan_looks_at_matters() {
        check(|facts| facts.memory = memory(901), true);
        check(|facts| numa(facts).memory = memory(699), true);
        check(|facts| numa(facts).memory = Reading::Failed("torn".into()), true);
        check(|facts| numa(facts).cpus = Reading::Value(vec![0]), true);
        check(|facts| gpu(facts).memory_used = Reading::Value(111), true);
        check(|facts| gpu(facts).memory_used = Reading::Failed("lost".into()), true);
        check(|facts| gpu(facts).health = Reading::Value(GpuHealth::Lost { reason: "bus".into() }), true);
        check(|facts| facts.gpus = Reading::Value(vec![]), true);
        check(|facts| facts.gpus = Reading::Failed("no driver".into()), true);
        check(|facts| facts.kubelet = Reading::Failed("no socket".into()), true);
    }

    #[test]
    fn another_reason_for_an_unknown_memory_does_not_matter() {
        let (mut old, mut new) = (facts(), facts());
        old.memory = Reading::Failed("torn".into());
        new.memory = Reading::Failed("a pipe".into());
        assert!(!old.differs_materially(&new));
    }
}
