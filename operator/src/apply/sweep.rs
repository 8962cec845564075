//! Children that nobody needs any more.
//! In: what is desired, what is there. Out: deletions, by uid. Never: something that a live pod may still read: a
//! ConfigMap or claim goes after its pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use operator_render::{Desired, names, sealed_hash};

use super::Given;
use super::child::{Kind, Target, is_ending, label, name};
use super::steps::{Action, Stage, Todo};
use crate::live::Live;

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
    let mut others: Vec<_> =
        live.revisions.iter().filter(|revision| name(&revision.metadata) != wanted).collect();
    others.sort_by_key(|revision| std::cmp::Reverse(revision.revision));
    for old in others.iter().skip(KEPT_REVISIONS - 1) {
        if !given.kept_revisions.contains(name(&old.metadata)) {
            delete(Kind::ControllerRevision, &old.metadata, todo);
        }
    }
}

fn config_maps(desired: &Desired, live: &Live, given: &Given, todo: &mut Todo) {
    let in_use = in_use(desired, live);
    let rolled = live.deployments.iter().all(|deployment| has_rolled(deployment, desired));
    for seen in &live.config_maps {
        let meta = &seen.metadata;
        let of_router = label(meta, names::LABEL_COMPONENT) == Some("router");
        let free = !of_router || rolled;
        if free && !given.leave_engines && !in_use.contains(name(meta)) {
            delete(Kind::ConfigMap, meta, todo);
        }
    }
}

fn claims(desired: &Desired, live: &Live, given: &Given, todo: &mut Todo) {
    let in_use = in_use(desired, live);
    for claim in live.claims.iter().filter(|_| !given.leave_engines) {
        if !in_use.contains(name(&claim.metadata)) {
            delete(Kind::ResourceClaim, &claim.metadata, todo);
        }
    }
}

/// Names of ConfigMaps and claims that belong to a desired or a live pod.
fn in_use<'a>(desired: &'a Desired, live: &'a Live) -> BTreeSet<&'a str> {
    let wanted = desired.replicas.iter().map(|replica| name(&replica.pod.metadata));
    let alive = live.pods.iter().map(|pod| name(&pod.metadata));
    let router = desired.router_config.iter().map(|config| name(&config.metadata));
    wanted.chain(alive).chain(router).collect()
}

/// Whether all routers run what is desired, so that no pod reads an older ConfigMap.
fn has_rolled(deployment: &Deployment, desired: &Desired) -> bool {
    let wanted = desired.router.as_ref().and_then(|router| sealed_hash(&router.metadata));
    let status = deployment.status.clone().unwrap_or_default();
    let replicas = status.replicas.unwrap_or(0);
    wanted.is_some()
        && sealed_hash(&deployment.metadata) == wanted
        && status.observed_generation.is_some()
        && status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) == replicas
        && status.terminating_replicas.unwrap_or(0) == 0
}

fn others<K: Resource<DynamicType = ()>>(kind: Kind, live: &[Arc<K>], desired: &[K], todo: &mut Todo) {
    for seen in live {
        let meta = seen.meta();
        if !desired.iter().any(|wanted| name(wanted.meta()) == name(meta)) {
            delete(kind, meta, todo);
        }
    }
}

fn delete(kind: Kind, meta: &ObjectMeta, todo: &mut Todo) {
    if !is_ending(meta) {
        todo.add(Stage::Sweep, LINE, Action::Delete(Target::new(kind, meta)));
    }
}
