//! One pass over one object: gather, plan, check, render, apply, status.
//! In: a key from the queue. Out: children and a status that say the same, and when to look again.
//! Never: a wait for something to happen (whatever happens wakes the object again); a write when nothing differs.

pub mod budget;
pub mod decide;
pub mod dispatch;
mod preview;
pub mod questions;
pub mod queue;
pub mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fail::fail_point;
use fathom_crds::{InferenceCluster, InferenceClusterSpec, InferenceClusterStatus};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use operator_plan::{Enforcement, Planned};
use operator_render::{Desired, Neighbours, Owner, RenderInput};
use tokio::time::Instant;

use crate::apply::{ApplyContext, ApplyError, Given, Outcome, RecentPods};
use crate::chain::chain;
use crate::events::Events;
use crate::gather::kept::Stored;
use crate::gather::shelf::ObjectKey;
use crate::gather::{Gathered, Sources};
use crate::metrics::Metrics;
use crate::question::{self, Answer};
use crate::status::{self, Effect, Intent, Observed, WriteError};
use budget::{Budget, Verdict};
use decide::{Carried, Decision, Wanted, decide};
use questions::Questions;
use queue::Next;
use written::Written;

/// What a pass works with.
pub struct Context {
    pub client: Client,
    pub sources: Arc<Sources>,
    pub questions: Arc<Questions>,
    pub budget: Budget,
    pub written: Written,
    pub events: Events,
    pub metrics: Arc<Metrics>,
    /// Image where an object names none.
    pub default_image: String,
    pub neighbours: Neighbours,
    /// Objects are planned one after the other, so that two never get the same GPU.
    pub planning: Mutex<()>,
    /// Pods created and not seen yet, by object; bounded by the objects that exist.
    pub recent: Mutex<BTreeMap<Arc<str>, Arc<RecentPods>>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// Why a pass did not come to its end; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("the children could not all be written")]
    Apply(#[from] ApplyError),
    #[error("the status could not be written")]
    Status(#[from] WriteError),
}

/// Brings one object closer to what it asks for.
///
/// # Errors
/// [`ReconcileError`]: what stopped the pass. Whatever the user can mend is a condition of the object instead.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(stored) = context.sources.stores.clusters.get(key) else {
        return Ok(Next::Forget);
    };
    if stored.meta().deletion_timestamp.is_some() {
        // Owner references take the children along.
        return Ok(Next::Settled);
    }
    if let Stored::Undecodable { metadata, error } = &*stored {
        let (namespace, name) = (&key.namespace, metadata.name.as_deref().unwrap_or_default());
        if status::write_decode_failed(&context.client, namespace, name, error, Timestamp::now()).await? {
            tracing::warn!(object = %key, error, "the stored object is not readable; its status says so");
        }
        return Ok(Next::Settled);
    }
    let Some(Planning { gathered, decision, verdict }) = context.plan(key) else {
        return Ok(Next::Forget);
    };
    fail_point!("reconcile::planned");
    let desired = decision.carried.as_ref().map(|carried| {
        let Carried { spec, image, planned, enforcement, .. } = carried;
        context.render(&gathered.cluster, spec, planned, enforcement, image)
    });
    fail_point!("reconcile::rendered");
    let applied = context.apply(&gathered, &decision, &verdict, desired.as_ref()).await;
    fail_point!("reconcile::applied");
    let (outcome, failure) = match applied {
        Ok(outcome) => (outcome, None),
        Err(error) => (Outcome::default(), Some(error)),
    };
    let effect = effect(&decision, desired.as_ref(), &outcome);
    let (answer, ask_again) = context.question(key, &gathered, effect.as_ref());
    let said = failure.as_ref().map(|error| chain(error));
    let observed = Observed {
        gathered: &gathered,
        intent: intent(&decision),
        effect,
        answered: answer.as_ref(),
        rejections: &verdict.rejections,
        failure: said.as_deref(),
    };
    context.write_status(key, &observed).await?;
    fail_point!("reconcile::status");
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(next(&outcome, [verdict.again, ask_again])),
    }
}

/// Everything up to the plan, of one moment.
struct Planning {
    gathered: Gathered,
    decision: Decision,
    verdict: Verdict,
}

impl Context {
    /// Gathers, plans, and reserves what was planned, with no other object in between.
    fn plan(&self, key: &ObjectKey) -> Option<Planning> {
        let _alone = self.planning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gathered = self.sources.gather(key)?;
        let meta = &gathered.cluster.metadata;
        let uid = meta.uid.clone()?;
        let verdict = self.budget.weigh(&uid, meta.generation, &gathered.live.pods, Instant::now());
        self.metrics.rejected_pods.inc_by(verdict.news.into());
        if let Some(nodes) = &mut gathered.surroundings.nodes {
            for (name, why) in &verdict.excluded {
                if let Some(node) = nodes.get_mut(name) {
                    node.excluded = Some(why.clone());
                }
            }
        }
        let offers = |node: &str, resource: &str| self.sources.offers(node, resource);
        let decision = decide(&gathered, &self.default_image, offers);
        let replicas = decision.carried.as_ref().map_or(&[][..], |carried| &carried.planned.plan.replicas);
        self.sources.ledger.promise(&uid, key, replicas, decision.waits_for_room());
        // Every other object's replicas: nobody reads them after planning, and sixteen passes at once would keep them.
        gathered.surroundings.taken = Vec::new();
        Some(Planning { gathered, decision, verdict })
    }

    fn render(
        &self,
        cluster: &InferenceCluster,
        spec: &InferenceClusterSpec,
        planned: &Planned,
        enforcement: &Enforcement,
        image: &str,
    ) -> Desired {
        let meta = &cluster.metadata;
        operator_render::render(&RenderInput {
            owner: Owner {
                namespace: meta.namespace.as_deref().unwrap_or_default(),
                name: cluster.name(),
                uid: meta.uid.as_deref().unwrap_or_default(),
            },
            spec,
            planned,
            enforcement,
            image,
            neighbours: &self.neighbours,
        })
    }

    async fn apply(
        &self,
        gathered: &Gathered,
        decision: &Decision,
        verdict: &Verdict,
        desired: Option<&Desired>,
    ) -> Result<Outcome, ApplyError> {
        let (Some(carried), Some(desired)) = (&decision.carried, desired) else {
            return Ok(Outcome::default());
        };
        let status = gathered.cluster.status.as_ref();
        let kept: BTreeSet<String> = status
            .iter()
            .flat_map(|status| [&status.current_inputs, &status.last_good_inputs])
            .flatten()
            .cloned()
            .collect();
        let given = Given {
            held_back: verdict.held_back.clone(),
            leave_engines: carried.leave_engines,
            kept_revisions: kept,
        };
        let recent = self.recent(gathered.cluster.metadata.uid.as_deref().unwrap_or_default());
        let context = ApplyContext { client: self.client.clone(), given: &given, recent: &recent };
        crate::apply::apply(&context, desired, &gathered.live).await
    }

    fn recent(&self, uid: &str) -> Arc<RecentPods> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(recent.entry(uid.into()).or_default())
    }

    fn question(
        &self,
        key: &ObjectKey,
        gathered: &Gathered,
        effect: Option<&Effect<'_>>,
    ) -> (Option<Answer>, Option<Duration>) {
        let uid = gathered.cluster.metadata.uid.as_deref().unwrap_or_default();
        let question =
            effect.and_then(|effect| question::question(&gathered.cluster, &gathered.live, effect));
        self.questions.consider(uid, key, question)
    }

    /// Writes the status if it differs, tells its transitions as events, and remembers it until the watch shows it.
    async fn write_status(&self, key: &ObjectKey, observed: &Observed<'_>) -> Result<(), WriteError> {
        let cluster = &observed.gathered.cluster;
        let empty = InferenceClusterStatus::default();
        let before = cluster.status.as_ref().unwrap_or(&empty);
        let after = status::status(observed, before, Timestamp::now());
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        if !self.written.is_due(uid, &after, cluster.status.as_ref()) {
            return Ok(());
        }
        if status::write(&self.client, cluster, &after).await? {
            self.written.sent(uid, &after);
            self.events.tell(cluster, &before.conditions, &after.conditions).await;
            self.sources.stores.remember_status(key, cluster, after);
        }
        Ok(())
    }

    /// Drops what is kept in memory of an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.sources.ledger.forget(uid);
        self.questions.forget(uid);
        self.budget.forget(uid);
        self.written.forget(uid);
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

fn intent(decision: &Decision) -> Intent<'_> {
    match &decision.wanted {
        Wanted::Refused { reason, message } => Intent::Refused { reason: *reason, message },
        Wanted::Planned { planned, enforcement, .. } => {
            Intent::Planned { planned, enforcement: enforcement.as_ref().map_err(String::as_str) }
        }
    }
}

fn effect<'a>(
    decision: &'a Decision,
    desired: Option<&'a Desired>,
    outcome: &'a Outcome,
) -> Option<Effect<'a>> {
    let Carried { spec, planned, enforcement, .. } = decision.carried.as_ref()?;
    Some(Effect { spec, planned, enforcement, desired: desired?, outcome })
}

/// What the API server refused may be allowed later, and a taken name may become free: nothing tells, so it is tried.
fn next(outcome: &Outcome, times: [Option<Duration>; 2]) -> Next {
    if !outcome.refused.is_empty()
        || !outcome.taken_names.is_empty()
        || !outcome.image_volume_dropped.is_empty()
    {
        return Next::Failed;
    }
    match times.into_iter().flatten().min() {
        Some(wait) => Next::After(wait),
        None => Next::Settled,
    }
}

#[cfg(test)]
mod tests;
