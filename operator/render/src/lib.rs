//! From a plan to Kubernetes objects.
//! In: [`RenderInput`]. Out: [`Desired`]. Never: I/O, decisions, failure: a plan leaves nothing open, render only spells.
//! Same input, same bytes. What makes a pod another pod is written down in `pod_hash.rs`: inputs, never what is rendered
//! here, so that a new version of this crate restarts nothing.

mod claim;
mod config;
mod desired;
mod digest;
pub mod names;
mod owned;
mod pod;
mod pod_hash;
mod policies;
mod record;
mod router;
mod services;

pub use desired::{Desired, DesiredReplica, Neighbours, Owner, RenderInput};
pub use owned::{owner_uid, sealed_hash};
pub use record::{RecordText, Recorded, enforced, image_for, lasting, plan_entry, record_name, recorded};

use operator_plan::ReplicaPlan;
use owned::Children;
use router::RouterChildren;

/// The children that shall exist for a plan.
pub fn render(input: &RenderInput<'_>) -> Desired {
    let children = Children::new(input.owner);
    let RouterChildren { config, deployment, budget, account, role, binding } =
        router::router(input, &children).unwrap_or_default();
    Desired {
        revision: record::record(input, &children),
        replicas: input.planned.plan.replicas.iter().map(|entry| replica(input, &children, entry)).collect(),
        services: services::services(input, &children),
        router_config: config,
        router: deployment,
        disruption_budget: budget,
        network_policies: policies::policies(input, &children),
        service_account: account,
        role,
        role_binding: binding,
    }
}

/// One engine pod, and what it needs before it can start. Pod, claim and ConfigMap carry one name.
fn replica(input: &RenderInput<'_>, children: &Children<'_>, entry: &ReplicaPlan) -> DesiredReplica {
    let hash = pod_hash::pod_hash(input, entry);
    let name = format!("{}-{hash}", entry.name);
    let labels = owned::replica_labels(input, entry, &hash);
    DesiredReplica {
        replica: entry.name.clone(),
        config: config::engine(input, children, entry, children.meta(&name, labels.clone())),
        claim: claim::claim(input, entry, children.meta(&name, labels.clone())),
        pod: pod::pod(input, entry, children.meta(&name, labels)),
    }
}
