//! What is to be done, as data.
//! In: desired and live children. Out: [`Todo`]. Never: a call; comparing content that the API server may have filled
//! in: children are compared by name, uid and the hash that they carry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use kube::Resource;
use operator_render::{Desired, sealed_hash};
use serde::Serialize;

use super::Given;
use super::child::{Child, Kind, Target, name};
use super::{pods, sweep};
use crate::live::Live;
use crate::live::child::{LiveChild, find};

/// When a step is done: all of one stage before any of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The inputs, before anything is done with them.
    Record,
    /// What pods need, and the end of pods that have to go.
    Prepare,
    /// Pods and the router.
    Start,
    /// What nobody needs any more.
    Sweep,
}

/// One call or two.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Create(Child),
    /// By the server, over the object that was seen.
    Apply {
        child: Child,
        uid: String,
    },
    /// If it still has this uid.
    Delete(Target),
    /// A pod that we created and have not seen: it must not exist before another takes its place.
    Expect {
        pod: String,
    },
}

/// An action and what depends on it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) stage: Stage,
    /// Steps of one line depend on each other: after one that does not succeed, later stages skip the line.
    pub(crate) line: String,
    pub(crate) action: Action,
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.action {
            Action::Create(child) => write!(f, "create {child}"),
            Action::Apply { child, .. } => write!(f, "apply {child}"),
            Action::Delete(target) => write!(f, "delete {target}"),
            Action::Expect { pod } => write!(f, "expect no Pod {pod}"),
        }
    }
}

/// All steps of one pass, and what no step can do.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Todo {
    pub(crate) steps: Vec<Step>,
    pub(crate) waiting: Vec<String>,
    /// Lines on which something has to end first.
    blocked: BTreeSet<String>,
}

impl Todo {
    pub(crate) fn add(&mut self, stage: Stage, line: &str, action: Action) {
        self.steps.push(Step { stage, line: line.to_owned(), action });
    }

    pub(crate) fn wait(&mut self, sentence: String) {
        self.waiting.push(sentence);
    }

    pub(crate) fn block(&mut self, line: &str, sentence: String) {
        self.wait(sentence);
        self.blocked.insert(line.to_owned());
    }

    pub(crate) fn is_blocked(&self, line: &str) -> bool {
        self.blocked.contains(line)
    }
}

/// The line of the router.
const ROUTER: &str = "router";
/// The line of the ControllerRevision.
const RECORD: &str = "record";

/// What one pass does.
pub(crate) fn steps(
    desired: &Desired,
    live: &Live,
    given: &Given,
    recent: &BTreeMap<String, String>,
) -> Todo {
    let mut todo = Todo::default();
    record(desired, live, &mut todo);
    doors(desired, live, &mut todo);
    // Without a plan there are no limits to tell a router: one that runs keeps those that it has.
    if !given.leave_engines || live.deployments.is_empty() {
        router(desired, live, &mut todo);
    }
    if !given.leave_engines {
        pods::engines(desired, live, given, recent, &mut todo);
    }
    sweep::sweep(desired, live, given, &mut todo);
    todo
}

/// The inputs of this pass are the newest recorded ones. Inputs that come back (a change taken back by hand) get a new
/// number by being created anew: ControllerRevisions are never patched.
fn record(desired: &Desired, live: &Live, todo: &mut Todo) {
    let wanted = name(&desired.revision.metadata);
    let newest = live.revisions.iter().map(|revision| revision.content.number).max().unwrap_or(0);
    let mut stage = Stage::Record;
    if let Some(known) = live.revisions.iter().find(|revision| revision.name() == wanted) {
        if known.content.number == newest {
            return;
        }
        let target = Target::of(Kind::ControllerRevision, known);
        todo.add(Stage::Record, RECORD, Action::Delete(target));
        stage = Stage::Prepare;
    }
    let mut revision = desired.revision.clone();
    revision.revision = newest + 1;
    todo.add(stage, RECORD, Action::Create(Child::new(Kind::ControllerRevision, &revision)));
}

/// Services and policies: they need nothing and stand before pods do.
fn doors(desired: &Desired, live: &Live, todo: &mut Todo) {
    for policy in &desired.network_policies {
        let seen = find(&live.network_policies, name(&policy.metadata));
        mutable(Stage::Prepare, "policies", Kind::NetworkPolicy, policy, seen, todo);
    }
    for service in &desired.services {
        let seen = find(&live.services, name(&service.metadata));
        mutable(Stage::Prepare, name(&service.metadata), Kind::Service, service, seen, todo);
    }
}

fn router(desired: &Desired, live: &Live, todo: &mut Todo) {
    let Desired { router_config, router, disruption_budget, service_account, role, role_binding, .. } =
        desired;
    let prepare = Stage::Prepare;
    if let Some(account) = service_account {
        let seen = find(&live.service_accounts, name(&account.metadata));
        mutable(prepare, ROUTER, Kind::ServiceAccount, account, seen, todo);
    }
    if let Some(role) = role {
        mutable(prepare, ROUTER, Kind::Role, role, find(&live.roles, name(&role.metadata)), todo);
    }
    if let Some(binding) = role_binding {
        let seen = find(&live.role_bindings, name(&binding.metadata));
        // After its role: nobody may bind what is not there.
        mutable(Stage::Start, ROUTER, Kind::RoleBinding, binding, seen, todo);
    }
    if let Some(config) = router_config {
        let wanted = name(&config.metadata);
        match find(&live.config_maps, wanted) {
            None => todo.add(prepare, ROUTER, Action::Create(Child::new(Kind::ConfigMap, config))),
            Some(seen) if seen.ending => todo.wait(format!("ConfigMap {wanted} is ending")),
            Some(_) => {}
        }
    }
    if let Some(router) = router {
        let seen = find(&live.deployments, name(&router.metadata));
        mutable(Stage::Start, ROUTER, Kind::Deployment, router, seen, todo);
    }
    if let Some(budget) = disruption_budget {
        let seen = find(&live.disruption_budgets, name(&budget.metadata));
        mutable(Stage::Start, "budget", Kind::PodDisruptionBudget, budget, seen, todo);
    }
}

/// Created when it is not there, applied when it was rendered differently the last time.
fn mutable<K: Resource<DynamicType = ()> + Serialize, C>(
    stage: Stage,
    line: &str,
    kind: Kind,
    wanted: &K,
    seen: Option<&LiveChild<C>>,
    todo: &mut Todo,
) {
    match seen {
        Some(seen) if seen.ending => todo.wait(format!("{kind} {} is ending", seen.name())),
        Some(seen) if seen.applied.as_deref() == sealed_hash(wanted.meta()) => {}
        Some(seen) => {
            let uid = seen.uid.to_string();
            todo.add(stage, line, Action::Apply { child: Child::new(kind, wanted), uid });
        }
        None => todo.add(stage, line, Action::Create(Child::new(kind, wanted))),
    }
}
