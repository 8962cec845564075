//! How many pods of each role there are, and how many there should be.
//! In: what is carried out, or only wished for; live pods. Out: [`RoleCounts`].
//! Never: counters that are remembered: everything is counted anew from what lives.

use std::fmt::{self, Display, Formatter};

use engine_spec::Role;
use fathom_crds::InferenceClusterSpec;
use operator_render::sealed_hash;

use super::running::Running;
use super::{Effect, Observed};
use crate::live::child::{Rollout, find};
use crate::live::pod::ROUTER;

/// Pods of one role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Ready pods of what is carried out now.
    pub(super) ready: usize,
    /// Pods of what is carried out now.
    pub(super) current: usize,
    pub(super) wanted: usize,
}

impl Count {
    pub(super) fn is_ready(self) -> bool {
        self.ready >= self.wanted
    }

    pub(super) fn is_updated(self) -> bool {
        self.current >= self.wanted
    }
}

/// `1/2`.
impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ready, self.wanted)
    }
}

/// Pods of every role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RoleCounts {
    pub(super) prefill: Count,
    /// Decode, or unified where there is no prefill.
    pub(super) decode: Count,
    pub(super) router: Count,
    /// Engine pods, and router pods as the Deployment counts them, that belong to something earlier.
    pub(super) outdated: usize,
}

impl RoleCounts {
    pub(super) fn of(observed: &Observed<'_>, running: &Running<'_>) -> Self {
        match &observed.effect {
            Some(effect) if effect.planned.is_feasible() => Self::of_effect(observed, effect, running),
            // An impossible spec: what it asks for, beside what still runs.
            Some(effect) => Self::of_wish(effect.spec, observed),
            None => Self::of_wish(&observed.gathered.cluster.spec, observed),
        }
    }

    fn of_effect(observed: &Observed<'_>, effect: &Effect<'_>, running: &Running<'_>) -> Self {
        let plan = &effect.planned.plan;
        let mut counts = Self::default();
        for replica in &plan.replicas {
            counts.engine(replica.role).wanted += 1;
        }
        for (pod, replica) in running.iter() {
            let count = counts.engine(replica.role);
            count.current += 1;
            count.ready += usize::from(pod.is_ready());
        }
        let engines = observed.gathered.live.staying().filter(|pod| !pod.is_router());
        let outdated = engines.filter(|pod| !pod.has_failed()).count().saturating_sub(running.len());
        let (router, outdated_routers) = router(observed, effect);
        Self { router, outdated: outdated + outdated_routers, ..counts }
    }

    /// No plan is carried out: what the spec asks for, and whatever runs of an earlier one.
    fn of_wish(spec: &InferenceClusterSpec, observed: &Observed<'_>) -> Self {
        let pods: Vec<_> = observed.gathered.live.staying().filter(|pod| !pod.has_failed()).collect();
        let count = |replicas: i32, roles: &[&str]| {
            let of_role = pods.iter().filter(|pod| roles.contains(&&*pod.content.role));
            let wanted = usize::try_from(replicas).unwrap_or(0);
            Count { ready: of_role.filter(|pod| pod.is_ready()).count(), current: 0, wanted }
        };
        Self {
            prefill: count(spec.prefill_replicas(), &["prefill"]),
            decode: count(spec.decode.replicas, &["decode", "unified"]),
            router: count(spec.router.replicas, &[ROUTER]),
            outdated: pods.iter().filter(|pod| !pod.is_router()).count(),
        }
    }

    fn engine(&mut self, role: Role) -> &mut Count {
        match role {
            Role::Prefill => &mut self.prefill,
            Role::Decode | Role::Unified | Role::Router => &mut self.decode,
        }
    }

    pub(super) fn all(&self) -> [(&'static str, Count); 3] {
        [("prefill", self.prefill), ("decode", self.decode), ("router", self.router)]
    }

    /// No engine pod is asked for.
    pub(super) fn is_zero(&self) -> bool {
        self.prefill.wanted == 0 && self.decode.wanted == 0
    }

    pub(super) fn is_ready(&self) -> bool {
        self.all().iter().all(|(_, count)| count.is_ready())
    }

    pub(super) fn is_updated(&self) -> bool {
        self.outdated == 0 && self.all().iter().all(|(_, count)| count.is_updated())
    }

    /// `prefill 0/1, router 1/2`: the roles that lack pods.
    pub(super) fn lacking(&self) -> String {
        let roles = self.all();
        let lacking = roles.iter().filter(|(_, count)| !count.is_ready());
        lacking.map(|(role, count)| format!("{role} {count}")).collect::<Vec<_>>().join(", ")
    }
}

/// The router's pods as its Deployment counts them. Figures of another Deployment than the desired one, or of an earlier
/// generation, count for nothing.
fn router(observed: &Observed<'_>, effect: &Effect<'_>) -> (Count, usize) {
    let wanted = effect.planned.plan.routers as usize;
    let found = effect.desired.router.as_ref().and_then(|desired| {
        let meta = &desired.metadata;
        let live = find(&observed.gathered.live.deployments, meta.name.as_deref()?)?;
        let told = live.applied.as_deref() == sealed_hash(meta) && live.content.is_observed;
        told.then_some(live.content)
    });
    let Rollout { replicas, updated, ready, .. } = found.unwrap_or_default();
    // While old pods are ready beside new ones, only as many as are new can be counted as new and ready.
    (Count { ready: ready.min(updated), current: updated, wanted }, replicas.saturating_sub(updated))
}
