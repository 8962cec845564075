//! What the kubelet of this node decided, asked every second.
//! In: its folder (state files, configuration, the PodResources socket) and the control groups of its pods.
//! Out: [`Heard`], the newest answer. Never: an end because the kubelet is away; it restarts, and its socket with it.

mod allocations;
mod pod_resources;
mod policies;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use node_facts::{CgroupCpus, KubeletFacts, PodCgroups, Reading};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::derive::cpus_of;
use crate::source::Tree;
use crate::source::pods::PodGroups;
use pod_resources::{Answers, PodResources};
use policies::Policies;

const EVERY: Duration = Duration::from_secs(1);
/// Policies change with a restart of the kubelet only.
const POLICIES_EVERY: Duration = Duration::from_secs(5);
/// Where the groups of pods are never changes; a node that has no pod yet has none.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
/// While a kubelet restarts, what it gave to pods stays theirs.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The kubelet's facts, and remarks that belong to no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) facts: Reading<KubeletFacts>,
    pub(crate) notes: Vec<String>,
}

impl Heard {
    pub(crate) fn nothing(reason: &str) -> Self {
        Heard { facts: Reading::Absent(reason.to_owned()), notes: Vec::new() }
    }
}

/// One kubelet.
#[derive(Debug)]
pub(crate) struct Kubelet {
    folder: Tree,
    sys: Tree,
    socket: PodResources,
    policies: Option<(Instant, Policies)>,
    groups: Option<(Instant, Reading<PodGroups>)>,
    answered: Option<(Instant, Answers)>,
}

impl Kubelet {
    /// `folder`: /var/lib/kubelet, as it is mounted. `sys`: the tree that holds the host's sysfs.
    pub(crate) fn new(folder: PathBuf, sys: Tree) -> Self {
        let socket = PodResources::at(folder.join("pod-resources/kubelet.sock"));
        let folder = Tree::disk(&folder);
        Kubelet { folder, sys, socket, policies: None, groups: None, answered: None }
    }

    /// Asks for ever; whoever runs this drops it.
    pub(crate) async fn keep_asking(mut self, heard: watch::Sender<Heard>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self.ask().await;
            heard.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
        }
    }

    pub(crate) async fn ask(&mut self) -> Heard {
        let mut notes = Vec::new();
        let answers = self.answers(&mut notes).await;
        let policies = self.policies();
        notes.extend(policies.note.clone());
        let facts = KubeletFacts {
            cpu_manager: policies.cpu_manager,
            topology_manager: policies.topology_manager,
            memory_manager: policies.memory_manager,
            reserved_cpus: policies.reserved_cpus,
            devices: answers.devices,
            pods: answers.pods,
            cgroups: self.cgroups(),
        };
        Heard { facts: Reading::Value(facts), notes }
    }

    /// What the kubelet says, or for a while what it said last.
    async fn answers(&mut self, notes: &mut Vec<String>) -> Answers {
        let answers = self.socket.ask().await;
        if answers.pods.value().is_some() {
            notes.extend(answers.note.clone());
            self.answered = Some((Instant::now(), answers.clone()));
            return answers;
        }
        match &self.answered {
            Some((when, last)) if when.elapsed() < REMEMBERED => {
                let reason = answers.pods.reason().unwrap_or_default();
                notes.push(format!("the kubelet does not answer, its last allocations are shown: {reason}"));
                last.clone()
            }
            _ => answers,
        }
    }

    fn policies(&mut self) -> Policies {
        match &self.policies {
            Some((when, policies)) if when.elapsed() < POLICIES_EVERY => policies.clone(),
            _ => {
                let policies = policies::read(&self.folder);
                self.policies = Some((Instant::now(), policies.clone()));
                policies
            }
        }
    }

    fn cgroups(&mut self) -> Reading<Vec<PodCgroups>> {
        let groups = match self.groups.take() {
            Some((when, groups)) if when.elapsed() < SEARCH_EVERY => (when, groups),
            _ => (Instant::now(), PodGroups::find(&self.sys)),
        };
        let (_, groups) = self.groups.insert(groups);
        groups.clone().map(|groups| pods_of(&groups, &self.sys))
    }
}

fn pods_of(groups: &PodGroups, sys: &Tree) -> Vec<PodCgroups> {
    let mut pods: BTreeMap<String, Vec<CgroupCpus>> = BTreeMap::new();
    for group in groups.containers(sys) {
        let (cpus, mems) = (cpus_of(&group.cpus), cpus_of(&group.mems));
        pods.entry(group.pod_uid).or_default().push(CgroupCpus { id: group.container_id, cpus, mems });
    }
    pods.into_iter().map(|(uid, containers)| PodCgroups { uid, containers }).collect()
}

#[cfg(test)]
mod tests;
