//! Last step: what a reconcile saw, as the object's status.
//! In: [`Observed`], the status before, the time. Out: the status; [`write()`] sends it if it differs.
//! Never: decisions, times other than those of transitions: the same input gives the same status, so that a steady
//! object is not written.

mod condition;
mod write;

use fathom_crds::conditions::Reason;
use fathom_crds::{InferenceClusterSpec, InferenceClusterStatus};
use k8s_openapi::jiff;
use operator_plan::{Enforcement, Planned};
use operator_render::Desired;

use crate::apply::Outcome;
use crate::gather::Gathered;
use crate::question::Answer;

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
    let _ = (observed, now);
    before.clone()
}
