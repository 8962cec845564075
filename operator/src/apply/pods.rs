//! Engine pods: which are kept, which have to go, which may start.
//! In: desired replicas, live pods. Out: steps. Never: two pods of one replica, or a pod on GPUs or CPUs that a pod of
//! this object on its way out still holds (surge 0: there is no room for two).
//! A pod of an older revision that serves goes only when all newer pods are ready, so a revision that misses its gate
//! stops with the first of each role; one that does not serve goes at once, so taking a bad change back needs no hands.

use std::collections::{BTreeMap, BTreeSet};

use operator_plan::ReplicaPlan;
use operator_render::{Desired, DesiredReplica, names, plan_entry, sealed_hash};

use super::Given;
use super::child::{Child, Kind, Target, name};
use super::steps::{Action, Stage, Todo};
use crate::live::Live;
use crate::live::child::{find, label};
use crate::live::pod::LivePod;

/// What becomes of the pods of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its pod is there.
    Kept,
    /// Its pod is to be created.
    Missing,
    /// Something has to go first, or is waited for.
    Blocked,
}

/// Steps for all engine replicas.
pub(crate) fn engines(
    desired: &Desired,
    live: &Live,
    given: &Given,
    recent: &BTreeMap<String, String>,
    todo: &mut Todo,
) {
    let engines: Vec<&LivePod> = live.pods.iter().map(AsRef::as_ref).filter(|pod| pod.is_engine()).collect();
    surplus(desired, &engines, todo);
    let mut turns = Turns::new(desired, &engines);
    for replica in &desired.replicas {
        let own: Vec<&LivePod> = engines.iter().filter(|pod| is_of(pod, replica)).copied().collect();
        let mut fate = fate(replica, &own, given, &mut turns, todo);
        if fate == Fate::Missing {
            fate = may_start(replica, &engines, given, todo);
        }
        needs(replica, live, fate, todo);
        if fate == Fate::Missing {
            start(replica, recent, todo);
        }
    }
}

/// Pods of replicas that shall not exist.
fn surplus(desired: &Desired, engines: &[&LivePod], todo: &mut Todo) {
    for pod in engines {
        if !desired.replicas.iter().any(|replica| is_of(pod, replica)) {
            end(pod, pod.name(), todo);
        }
    }
}

/// Which pods of an older revision go in this pass although they serve.
struct Turns {
    /// Every pod that is up to date is ready, none is missing, and none is on its way out.
    open: bool,
    /// Roles without a pod that is up to date, missing or on its way out. Their first turn waits for nobody: a decode is
    /// never ready before a prefill of its revision is.
    untried: BTreeSet<String>,
    /// Roles that have had their turn: one pod each.
    taken: BTreeSet<String>,
    /// What replicas without any pod need: whoever holds it makes room, or the two would wait for each other.
    missing: Vec<ReplicaPlan>,
}

impl Turns {
    fn new(desired: &Desired, engines: &[&LivePod]) -> Self {
        let mut turns =
            Self { open: true, untried: BTreeSet::new(), taken: BTreeSet::new(), missing: Vec::new() };
        let mut tried = BTreeSet::new();
        for replica in &desired.replicas {
            let wanted = name(&replica.pod.metadata);
            let mut own = engines.iter().filter(|pod| is_of(pod, replica)).peekable();
            let role = label(&replica.pod.metadata, names::LABEL_ROLE).unwrap_or_default();
            turns.untried.insert(role.to_owned());
            if own.peek().is_none() {
                turns.missing.extend(plan_entry(&replica.pod));
                turns.open = false;
                // The missing one is about to be the first.
                tried.insert(role);
            }
            for pod in own {
                let outdated = pod.name() != wanted;
                if !outdated || pod.ending {
                    tried.insert(role);
                }
                turns.open &= !pod.ending && (outdated || pod.is_ready());
            }
        }
        turns.untried.retain(|role| !tried.contains(role.as_str()));
        turns
    }

    fn goes(&mut self, pod: &LivePod) -> bool {
        let role = &*pod.content.role;
        let in_the_way = self.missing.iter().any(|missing| holds(pod, missing));
        let open = self.open || self.untried.contains(role);
        in_the_way || (open && self.taken.insert(role.to_owned()))
    }
}

fn fate(
    replica: &DesiredReplica,
    own: &[&LivePod],
    given: &Given,
    turns: &mut Turns,
    todo: &mut Todo,
) -> Fate {
    let wanted = name(&replica.pod.metadata);
    let mut fate = Fate::Missing;
    for pod in own {
        let current = pod.name() == wanted;
        if pod.ending {
            todo.wait(format!("pod {} is ending", pod.name()));
            fate = Fate::Blocked;
        } else if current && !pod.has_ended() {
            fate = if fate == Fate::Blocked { fate } else { Fate::Kept };
        } else if current && let Some(why) = given.held_back.get(&replica.replica) {
            todo.wait(why.clone());
            fate = Fate::Blocked;
        } else {
            fate = Fate::Blocked;
            if current || !pod.is_ready() || turns.goes(pod) {
                end(pod, &replica.replica, todo);
            } else {
                todo.wait(format!("pod {} serves until newer pods are ready", pod.name()));
            }
        }
    }
    fate
}

/// Whether a missing pod may be created now.
fn may_start(replica: &DesiredReplica, engines: &[&LivePod], given: &Given, todo: &mut Todo) -> Fate {
    if let Some(why) = given.held_back.get(&replica.replica) {
        todo.wait(why.clone());
        return Fate::Blocked;
    }
    let Some(entry) = plan_entry(&replica.pod) else { return Fate::Missing };
    let wanted = name(&replica.pod.metadata);
    let holder = engines
        .iter()
        .find(|pod| pod.name() != wanted && !pod.has_ended() && !is_of(pod, replica) && holds(pod, &entry));
    match holder {
        Some(pod) => {
            todo.wait(format!("pod {wanted} waits for what pod {} holds", pod.name()));
            Fate::Blocked
        }
        None => Fate::Missing,
    }
}

/// Whether a pod has what a replica needs.
fn holds(pod: &LivePod, needed: &ReplicaPlan) -> bool {
    pod.content.made_from.as_ref().is_some_and(|made_from| overlaps(needed, &made_from.entry))
}

/// Whether two replicas cannot run at once: a plan never gives one GPU to two, or one CPU unless it says so.
fn overlaps(a: &ReplicaPlan, b: &ReplicaPlan) -> bool {
    let gpu = a.gpus.iter().any(|gpu| b.gpus.iter().any(|other| other.uuid == gpu.uuid));
    let shared = a.cpus_shared || b.cpus_shared;
    let cpu = !shared && a.cpus.iter().any(|cpu| b.cpus.contains(cpu));
    a.node == b.node && (gpu || cpu)
}

/// ConfigMap and claim of a replica. They are as old as their pod: what is left of an earlier pod of the same name is
/// replaced when a new pod is to start, and recreated beside a running one only when it is gone.
fn needs(replica: &DesiredReplica, live: &Live, fate: Fate, todo: &mut Todo) {
    if fate == Fate::Blocked {
        return;
    }
    let wanted = name(&replica.config.metadata);
    let line = &replica.replica;
    let mut blocked = None;
    match find(&live.config_maps, wanted) {
        None => todo.add(Stage::Prepare, line, Action::Create(Child::new(Kind::ConfigMap, &replica.config))),
        Some(seen) if seen.ending => blocked = Some(format!("ConfigMap {wanted} is ending")),
        Some(seen)
            if fate == Fate::Missing && seen.applied.as_deref() != sealed_hash(&replica.config.metadata) =>
        {
            todo.add(Stage::Record, line, Action::Delete(Target::of(Kind::ConfigMap, seen)));
            todo.add(Stage::Prepare, line, Action::Create(Child::new(Kind::ConfigMap, &replica.config)));
        }
        Some(_) => {}
    }
    if let Some(claim) = &replica.claim {
        match find(&live.claims, wanted) {
            None => todo.add(Stage::Prepare, line, Action::Create(Child::new(Kind::ResourceClaim, claim))),
            Some(seen) if seen.ending => {
                blocked = Some(format!("ResourceClaim {wanted} is ending"));
            }
            Some(_) => {}
        }
    }
    if let Some(sentence) = blocked {
        todo.block(line, sentence);
    }
}

fn start(replica: &DesiredReplica, recent: &BTreeMap<String, String>, todo: &mut Todo) {
    let pod = Child::new(Kind::Pod, &replica.pod);
    let line = &replica.replica;
    if todo.is_blocked(line) {
        return;
    }
    if let Some(before) = recent.get(line).filter(|before| **before != pod.name) {
        todo.add(Stage::Prepare, line, Action::Expect { pod: before.clone() });
    }
    todo.add(Stage::Start, line, Action::Create(pod));
}

/// Deletes a pod, or waits for one that is being deleted.
fn end(pod: &LivePod, line: &str, todo: &mut Todo) {
    if pod.ending {
        todo.wait(format!("pod {} is ending", pod.name()));
    } else {
        todo.add(Stage::Prepare, line, Action::Delete(Target::of(Kind::Pod, pod)));
    }
}

/// Role and number say which replica a pod is; its name says what it was made from.
fn is_of(pod: &LivePod, replica: &DesiredReplica) -> bool {
    let same = |own: &str, key| !own.is_empty() && Some(own) == label(&replica.pod.metadata, key);
    same(&pod.content.role, names::LABEL_ROLE) && same(&pod.content.index, names::LABEL_REPLICA)
}
