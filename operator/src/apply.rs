//! Fifth step: makes the cluster what was rendered, with as few calls as possible.
//! In: desired and live children. Out: [`Outcome`]. Never: decisions about content.
//! First a pure list of steps, then their execution. When nothing differs there is no step and no call.
//! Everything is created by POST, which takes nothing over; immutable kinds are never patched, the others are later
//! applied by the server, with the uid. Nothing is done to an object that does not carry the owner's uid.

mod child;
mod execute;
mod ownership;
mod pods;
mod steps;
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use kube::Client;
use operator_render::{Desired, owner_uid};

use crate::live::Live;
use execute::Executor;

/// Field manager of everything applied.
pub const FIELD_MANAGER: &str = "fathom-operator";

/// What applying came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Writes that the API server took.
    pub writes: u32,
    /// What is waited for, as sentences: `pod flash-decode-0-ab12c is ending`.
    pub waiting: Vec<String>,
    /// Names that belong to somebody else's object: `Service flash`.
    pub taken_names: Vec<String>,
    /// Children that the API server refused, with its sentence.
    pub refused: Vec<Refused>,
    /// Pods whose image volume the API server dropped.
    pub image_volume_dropped: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    /// `Pod flash-prefill-0-ab12c`.
    pub child: String,
    pub message: String,
    /// Whether another try with the same input may succeed (a quota, a missing namespace label changed ...).
    pub forbidden: bool,
}

/// What applying needs besides desired and live children.
#[derive(Clone)]
pub struct ApplyContext<'a> {
    pub client: Client,
    pub given: &'a Given,
    /// Of this object, kept by the caller as long as the object lives.
    pub recent: &'a RecentPods,
}

impl std::fmt::Debug for ApplyContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApplyContext").field("given", &self.given).finish_non_exhaustive()
    }
}

/// What the caller has decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// Replicas (`flash-prefill-0`) that get no new pod yet, each with the sentence that says why. Their failed pod
    /// stays to be looked at until then.
    pub held_back: BTreeMap<String, String>,
    /// There is no plan to carry out: engine pods, a running router, and what they need, are left as they are.
    pub leave_engines: bool,
    /// ControllerRevisions that are kept whatever their age.
    pub kept_revisions: BTreeSet<String>,
}

/// Pods that this process has created and not seen yet, by replica: a view that lags behind our own writes must not
/// make a second pod of a replica. Holds at most one entry a replica.
#[derive(Debug, Default)]
pub struct RecentPods {
    created: Mutex<BTreeMap<String, String>>,
}

impl RecentPods {
    fn snapshot(&self) -> BTreeMap<String, String> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn created(&self, replica: &str, pod: &str) {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.insert(replica.to_owned(), pod.to_owned());
    }

    /// The pod has been seen, or is known to be gone.
    fn forget(&self, pod: &str) {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, name| name != pod);
    }
}

/// Why applying stopped. What had been done stays done; the next pass goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("{action} {child} failed; it is tried again")]
    Call { action: &'static str, child: String, source: Box<kube::Error> },
    #[error("the rendered children carry no owner; this is a mistake in rendering")]
    NoOwner,
}

/// Makes the children of one object what was rendered, as far as one pass can. Never two passes of one object at once.
///
/// # Errors
/// [`ApplyError`]: a call that failed for a reason that is not the object's. Refusals and taken names are outcomes.
pub async fn apply(
    context: &ApplyContext<'_>,
    desired: &Desired,
    live: &Live,
) -> Result<Outcome, ApplyError> {
    let meta = &desired.revision.metadata;
    let (Some(uid), Some(namespace)) = (owner_uid(meta), meta.namespace.as_deref()) else {
        return Err(ApplyError::NoOwner);
    };
    for pod in &live.pods {
        context.recent.forget(pod.name());
    }
    let todo = steps::steps(desired, live, context.given, &context.recent.snapshot());
    let executor = Executor::new(context.client.clone(), namespace, uid, context.recent);
    executor.run(todo).await
}
