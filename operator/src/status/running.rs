//! The pods in effect: those that exist under the name that their plan entry gives them, and have not failed.
//! In: what was seen. Out: [`Running`], made once a pass: an object may have a thousand pods.

use std::collections::BTreeMap;

use operator_plan::ReplicaPlan;

use super::Observed;
use crate::live::child::find;
use crate::live::claim::LiveClaim;
use crate::live::pod::LivePod;

/// Pods in effect with their plan entries, in the order of the replicas' names.
#[derive(Debug, Clone, Default)]
pub(super) struct Running<'a> {
    by_replica: BTreeMap<&'a str, (&'a LivePod, &'a ReplicaPlan)>,
}

impl<'a> Running<'a> {
    pub(super) fn of(observed: &Observed<'a>) -> Self {
        let Some(effect) = observed.effect else { return Self::default() };
        let plan = effect.planned.plan.replicas.iter();
        let plan: BTreeMap<&str, &ReplicaPlan> =
            plan.map(|replica| (replica.name.as_str(), replica)).collect();
        let desired = effect.desired.replicas.iter();
        let names: BTreeMap<&str, &str> = desired
            .filter_map(|wanted| Some((wanted.pod.metadata.name.as_deref()?, wanted.replica.as_str())))
            .collect();
        let pods = observed.gathered.live.staying().filter(|pod| !pod.has_failed());
        let by_replica = pods.filter_map(|pod| {
            let replica = *plan.get(names.get(pod.name())?)?;
            Some((replica.name.as_str(), (pod, replica)))
        });
        Self { by_replica: by_replica.collect() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a LivePod, &'a ReplicaPlan)> + '_ {
        self.by_replica.values().copied()
    }

    /// The pod of a replica, by the replica's name.
    pub(super) fn of_replica(&self, name: &str) -> Option<(&'a LivePod, &'a ReplicaPlan)> {
        self.by_replica.get(name).copied()
    }

    /// The plan entry of a pod.
    pub(super) fn plan_of(&self, pod: &LivePod) -> Option<&'a ReplicaPlan> {
        self.iter().find(|(own, _)| own.uid == pod.uid).map(|(_, replica)| replica)
    }

    pub(super) fn len(&self) -> usize {
        self.by_replica.len()
    }
}

/// The claim of a pod: it carries the pod's name.
pub(super) fn claim_of<'a>(observed: &Observed<'a>, pod: &LivePod) -> Option<&'a LiveClaim> {
    find(&observed.gathered.live.claims, pod.name())
}
