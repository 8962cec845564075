//! `fathom undo`: back to the inputs that were Ready last.
//! In: the object, its ControllerRevisions. Out: the object with the spec of one of them. Never: a spec made up here.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use fathom_crds::InferenceCluster;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{Api, ListParams, PostParams};
use operator_render::names::LABEL_OWNER_UID;
use operator_render::{Recorded, recorded};

use super::connection::{self, ClusterArgs, Connection};
use super::print;

/// Who the API server says has changed the object.
const MANAGER: &str = "kubectl-fathom";

/// Beginnings of the names under which GitOps tools apply objects; they would take the change back.
const GITOPS: [&str; 5] = ["argocd", "kustomize-controller", "helm-controller", "flux", "rancher"];

/// Gives an InferenceCluster the spec back that was Ready last, or that of another of its five kept ControllerRevisions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl fathom undo flash -n team-a              # the spec that was Ready last
  kubectl fathom undo flash --to flash-3f2a9c01d4  # another one
  kubectl fathom undo flash --dry-run              # what would change")]
pub(crate) struct Args {
    /// Name of the InferenceCluster.
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// ControllerRevision to go back to. Absent: the one that was Ready last.
    #[arg(long, value_name = "REVISION")]
    to: Option<String>,
    /// Say what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let told = connection::run(undo(args))?;
    print(&told)?;
    Ok(ExitCode::SUCCESS)
}

async fn undo(args: &Args) -> anyhow::Result<String> {
    let connection = args.cluster.connect(None).await?;
    let name = &args.name;
    let stored = connection.stored(name).await?;
    let object = stored.with_context(|| {
        format!("there is no InferenceCluster {name} in namespace {}", connection.namespace)
    })?;
    let kept = kept(&connection, &object).await?;
    let target = target(&object, args.to.as_deref(), &kept)?;
    let restored = restored(&object, target, default_image(&kept));
    let mut told = told(&object, &restored, target, args.dry_run)?;
    if restored.spec == object.spec {
        told.push_str(&others(&kept, target));
    }
    if !args.dry_run && restored.spec != object.spec {
        let api: Api<InferenceCluster> = Api::namespaced(connection.client.clone(), &connection.namespace);
        let manager = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        api.replace(name, &manager, &restored).await.map_err(|error| match error {
            kube::Error::Api(status) if status.is_conflict() => {
                anyhow!("{name} was changed by somebody else at this moment; look again, and repeat")
            }
            kube::Error::Api(status) => anyhow!("{}", status.message),
            other => anyhow::Error::new(other).context("the cluster does not answer"),
        })?;
    }
    Ok(told)
}

/// The object's ControllerRevisions, newest first; those that this program cannot read are left out.
async fn kept(connection: &Connection, object: &InferenceCluster) -> anyhow::Result<Vec<Recorded>> {
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    let api: Api<ControllerRevision> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let of_object = ListParams::default().labels(&format!("{LABEL_OWNER_UID}={uid}"));
    let revisions = api.list(&of_object).await.context("cannot list the ControllerRevisions")?;
    let mut kept: Vec<Recorded> = revisions.items.iter().filter_map(recorded).collect();
    kept.sort_by_key(|kept| std::cmp::Reverse(kept.number));
    Ok(kept)
}

fn target<'a>(
    object: &InferenceCluster,
    to: Option<&str>,
    kept: &'a [Recorded],
) -> anyhow::Result<&'a Recorded> {
    let status = object.status.clone().unwrap_or_default();
    let names: Vec<&str> = kept.iter().map(|kept| kept.name.as_str()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let wanted = match (to, status.last_good_inputs, status.current_inputs) {
        (Some(to), _, _) => to.to_owned(),
        (None, None, _) => {
            bail!("nothing was Ready yet, so there is nothing to go back to; --to takes one of: {names}")
        }
        (None, Some(good), _) => good,
    };
    let found = kept.iter().find(|kept| kept.name == wanted);
    found.with_context(|| {
        format!("ControllerRevision {wanted} is not kept any more; --to takes one of: {names}")
    })
}

/// The image that the operator gave last to a spec that names none.
fn default_image(kept: &[Recorded]) -> Option<&str> {
    let newest = kept.iter().find(|kept| kept.spec.runtime.image.is_none());
    newest.map(|kept| kept.image.as_str())
}

/// The object with the spec of a revision. Its rollout stays as it is: it is no part of what was kept. The image is named
/// where the operator's default has changed since.
fn restored(object: &InferenceCluster, target: &Recorded, default: Option<&str>) -> InferenceCluster {
    let mut restored = object.clone();
    restored.spec = target.spec.clone();
    restored.spec.rollout = object.spec.rollout.clone();
    if restored.spec.runtime.image.is_none() && default.is_some_and(|default| default != target.image) {
        restored.spec.runtime.image = Some(target.image.clone());
    }
    restored.metadata.managed_fields = None;
    restored.status = None;
    restored
}

/// What else `--to` takes.
fn others(kept: &[Recorded], target: &Recorded) -> String {
    let others = kept.iter().filter(|other| other.name != target.name);
    let others: Vec<&str> = others.map(|other| other.name.as_str()).collect();
    if others.is_empty() { String::new() } else { format!("--to takes one of: {}\n", others.join(", ")) }
}

fn told(
    object: &InferenceCluster,
    restored: &InferenceCluster,
    target: &Recorded,
    dry_run: bool,
) -> anyhow::Result<String> {
    let name = object.name();
    let differences = super::diff::differences(&object.spec, &restored.spec)?;
    if differences.is_empty() {
        return Ok(format!("{name} has the spec of {} already\n", target.name));
    }
    let would = if dry_run { "would have" } else { "has" };
    let mut text = format!("{name} {would} the spec of {} again\n", target.name);
    for difference in differences {
        let _ = writeln!(text, "  {difference}");
    }
    if object.spec.rollout.mode == fathom_crds::inference_cluster::RolloutMode::Plan {
        text.push_str(
            "rollout.mode is Plan: the plan is written to the status, and nothing is carried out\n",
        );
    }
    if let Some(tool) = gitops(object) {
        let _ = writeln!(
            text,
            "{tool} applies this object and will take this back: change it in its source as well"
        );
    }
    Ok(text)
}

/// A GitOps tool among those that have written the spec.
fn gitops(object: &InferenceCluster) -> Option<&str> {
    let entries = object.metadata.managed_fields.as_ref()?.iter();
    let mut managers = entries.filter_map(|entry| entry.manager.as_deref());
    managers.find(|manager| GITOPS.iter().any(|known| manager.starts_with(known)))
}

#[cfg(test)]
mod tests;
