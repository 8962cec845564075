//! Children that nobody needs any more.
//! In: what is desired, what is there. Out: deletions, by uid. Never: something that a live pod may still read: a
//! ConfigMap or claim goes after its pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Resource;
use operator_render::{Desired, sealed_hash};

use super::Given;
use super::child::{Kind, Target, name};
use super::steps::{Action, Stage, Todo};
use crate::live::Live;
use crate::live::child::{LiveChild, Mounted, Rollout};

/// Recorded changes that can be gone back to.
const KEPT_REVISIONS: usize = 5;

const LINE: &str = "sweep";

/// Deletions of this pass.
pub(crate) fn sweep(desired: &Desired, live: &Live, given: &Given, todo: &mut Todo) {
    revisions(desired, live, given, todo);
    config_maps(desired, live, given, todo);
    claims(desired, live, given, todo);
    others(Kind::PodDisruptionBudget, &live.disruption_budgets, desired.disruption_budget.as_slice(), todo);
    others(Kind::Deployment, &live.deployments, desired.router.as_slice(), todo);
    others(Kind::RoleBinding, &live.role_bindings, desired.role_binding.as_slice(), todo);
    others(Kind::Role, &live.roles, desired.role.as_slice(), todo);
    others(Kind::ServiceAccount, &live.service_accounts, desired.service_account.as_slice(), todo);
    others(Kind::Service, &live.services, &desired.services, todo);
    others(Kind::NetworkPolicy, &live.network_policies, &desired.network_policies, todo);
}

fn revisions(desired: &Desired, live: &Live, given: &Given, todo: &mut Todo) {
    let wanted = name(&desired.revision.metadata);
    let mut others: Vec<_> = live.revisions.iter().filter(|revision| revision.name() != wanted).collect();
    others.sort_by_key(|revision| std::cmp::Reverse(revision.content.number));
    for old in others.iter().skip(KEPT_REVISIONS - 1) {
        if !given.kept_revisions.contains(old.name()) {
            delete(Kind::ControllerRevision, old, todo);
        }
    }
}

fn config_maps(desired: &Desired, live: &Live, given: &Given, todo: &mut Todo) {
    let in_use = in_use(desired, live);
    let rolled = live.deployments.iter().all(|deployment| has_rolled(deployment, desired));
    for seen in &live.config_maps {
        let free = rolled || seen.content == Mounted::ByEngine;
        if free && !given.leave_engines && !in_use.contains(seen.name()) {
            delete(Kind::ConfigMap, seen, todo);
        }
    }
}

fn claims(desired: &Desired, live: &Live, given: &Given, todo: &mut Todo) {
    let in_use = in_use(desired, live);
    for claim in live.claims.iter().filter(|_| !given.leave_engines) {
        if !in_use.contains(claim.name()) {
            delete(Kind::ResourceClaim, claim, todo);
        }
    }
}

/// Names of ConfigMaps and claims that belong to a desired or a live pod.
fn in_use<'a>(desired: &'a Desired, live: &'a Live) -> BTreeSet<&'a str> {
    let wanted = desired.replicas.iter().map(|replica| name(&replica.pod.metadata));
    let alive = live.pods.iter().map(|pod| pod.name());
    let router = desired.router_config.iter().map(|config| name(&config.metadata));
    wanted.chain(alive).chain(router).collect()
}

/// Whether all routers run what is desired, so that no pod reads an older ConfigMap.
fn has_rolled(deployment: &LiveChild<Rollout>, desired: &Desired) -> bool {
    let wanted = desired.router.as_ref().and_then(|router| sealed_hash(&router.metadata));
    let rollout = deployment.content;
    wanted.is_some()
        && deployment.applied.as_deref() == wanted
        && rollout.is_observed
        && rollout.updated == rollout.replicas
        && rollout.terminating == 0
}

fn others<K, C>(kind: Kind, live: &[Arc<LiveChild<C>>], desired: &[K], todo: &mut Todo)
where
    K: Resource<DynamicType = ()>,
{
    for seen in live {
        if !desired.iter().any(|wanted| name(wanted.meta()) == seen.name()) {
            delete(kind, seen, todo);
        }
    }
}

fn delete<C>(kind: Kind, seen: &LiveChild<C>, todo: &mut Todo) {
    if !seen.ending {
        todo.add(Stage::Sweep, LINE, Action::Delete(Target::of(kind, seen)));
    }
}
