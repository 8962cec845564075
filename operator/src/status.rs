//! Last step: what a reconcile saw, as the object's status.
//! In: [`Observed`], the status before, the time. Out: the status; [`write()`] sends it if it differs.
//! Never: decisions, times other than those of transitions: the same input gives the same status, so that a steady
//! object is not written.

mod achieved;
mod condition;
mod roles;
mod running;
mod tables;
mod trouble;
mod verdicts;
mod write;

use fathom_crds::conditions::{ConditionType, Reason};
use fathom_crds::inference_cluster::PlacementStatus;
use fathom_crds::{InferenceCluster, InferenceClusterSpec, InferenceClusterStatus};
use k8s_openapi::jiff;
use operator_plan::{Enforcement, Planned};
use operator_render::Desired;

use crate::apply::Outcome;
use crate::gather::Gathered;
use crate::question::Answer;

use roles::RoleCounts;
use running::Running;
use verdicts::Seen;

pub use write::{WriteError, write, write_decode_failed};

/// What one reconcile saw and did.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub gathered: &'a Gathered,
    /// What the object's own spec came to.
    pub intent: Intent<'a>,
    /// What is carried out: the spec's plan, or in mode Plan that of the recorded inputs. `None`: nothing was ever
    /// carried out, or the spec before any plan was refused.
    pub effect: Option<Effect<'a>>,
    /// The last answer, whatever it was asked for.
    pub answered: Option<&'a Answer>,
    /// Pods that kubelets rejected, and how often they were replaced.
    pub rejections: &'a [Rejection],
    /// Why this reconcile could not finish, if it could not: tried again.
    pub failure: Option<&'a str>,
}

/// What the object's own spec came to.
#[derive(Debug, Clone, Copy)]
pub enum Intent<'a> {
    /// Refused before planning: an unknown shape, a source or runtime that is not supported.
    Refused { reason: Reason, message: &'a str },
    Planned {
        planned: &'a Planned,
        /// Or what the cluster lacks for the mode asked for.
        enforcement: Result<&'a Enforcement, &'a str>,
    },
}

/// What is carried out.
#[derive(Debug, Clone, Copy)]
pub struct Effect<'a> {
    pub spec: &'a InferenceClusterSpec,
    pub planned: &'a Planned,
    pub enforcement: &'a Enforcement,
    pub desired: &'a Desired,
    pub outcome: &'a Outcome,
}

/// A replica whose pod a kubelet rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// `flash-prefill-0`.
    pub replica: String,
    pub node: String,
    /// The pod's own reason: `TopologyAffinityError`.
    pub reason: String,
    pub message: String,
    pub times: u32,
    /// Whether no further pod is tried.
    pub given_up: bool,
}

/// The status of an object.
pub fn status(
    observed: &Observed<'_>,
    before: &InferenceClusterStatus,
    now: jiff::Timestamp,
) -> InferenceClusterStatus {
    let cluster = &observed.gathered.cluster;
    let running = Running::of(observed);
    let counts = RoleCounts::of(observed, &running);
    let troubles = trouble::troubles(observed, &running);
    let (planned, enforcement) = observed.intent.parts();
    let plan = planned.map(|planned| tables::plan(observed, &running, planned, before));
    // In mode Plan the table shows the new plan; what was achieved is asked of what runs.
    let carried = observed.effect.map(|effect| tables::plan(observed, &running, effect.planned, before));
    let replicas = carried.map(|plan| plan.replicas).unwrap_or_default();
    let seen = Seen { observed, counts, troubles: &troubles, replicas: &replicas, before };
    let verdicts = verdicts::all(&seen);
    let is_ready = verdicts.iter().any(|verdict| verdict.kind == ConditionType::Ready && verdict.is_true());
    let revision = observed.effect.map(|effect| effect.planned.plan.revision.clone());
    let inputs = observed.effect.and_then(|effect| effect.desired.revision.metadata.name.clone());
    let good = |now: &Option<String>, before: &Option<String>| {
        if is_ready { now.clone() } else { before.clone() }
    };
    let in_effect = observed.effect.map(|effect| effect.enforcement).or(enforcement);
    let shown = observed.effect.map(|effect| effect.planned).or(planned);
    InferenceClusterStatus {
        observed_generation: cluster.metadata.generation,
        conditions: condition::merge(&before.conditions, &verdicts, cluster.metadata.generation, now),
        summary: Some(tables::summary(&counts, in_effect.map(|it| it.mode.name()), shown)),
        host_cache: planned.map(tables::host_cache).unwrap_or_default(),
        queue_limit: planned.map(|planned| tables::queue_limit(observed, &planned.plan.queue_limit, before)),
        plan,
        endpoint: observed.effect.map(|_| endpoint(cluster)),
        last_good_revision: good(&revision, &before.last_good_revision),
        current_revision: revision.or_else(|| before.current_revision.clone()),
        last_good_inputs: good(&inputs, &before.last_good_inputs),
        current_inputs: inputs.or_else(|| before.current_inputs.clone()),
        placement: in_effect.map(|it| PlacementStatus {
            mode: it.mode.name().to_owned(),
            because: it.because.clone(),
            memory: it.memory_because.clone(),
        }),
    }
}

impl<'a> Intent<'a> {
    fn parts(&self) -> (Option<&'a Planned>, Option<&'a Enforcement>) {
        match *self {
            Intent::Refused { .. } => (None, None),
            Intent::Planned { planned, enforcement } => (Some(planned), enforcement.ok()),
        }
    }
}

fn endpoint(cluster: &InferenceCluster) -> String {
    format!("http://{}.{}.svc", cluster.name(), cluster.metadata.namespace.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests;
