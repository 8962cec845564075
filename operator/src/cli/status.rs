//! `fathom status`: how an object of a cluster is.
//! In: its status. Out: text, or the status itself. Never: a look at pods: the operator has looked.

pub(super) mod text;

use std::process::ExitCode;

use fathom_crds::conditions::ConditionType;
use fathom_crds::inference_cluster::InferenceClusterStatus;
use k8s_openapi::jiff;

use super::connection::{self, ClusterArgs, Reported};
use super::{Output, print};

/// Shows how an InferenceCluster of a cluster is: its address, its pods, and what is wrong.
///
/// Exit code 0 when it is Ready, 1 when it is not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl fathom status flash -n team-a
  kubectl fathom status flash -o json | jq -r .status.endpoint")]
pub(crate) struct Args {
    /// Name of the InferenceCluster.
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reported = connection::run(async { args.cluster.connect(None).await?.reported(&args.name).await })?;
    match args.output {
        Output::Table => print(&text::text(&reported, jiff::Timestamp::now()))?,
        Output::Json => print(&json(&reported)?)?,
    }
    Ok(if is_ready(&reported.status) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The status as it is stored.
pub(super) fn json(reported: &Reported) -> anyhow::Result<String> {
    let Reported { name, namespace, generation, status } = reported;
    let value = serde_json::json!({
        "name": name, "namespace": namespace, "generation": generation, "status": status,
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn is_ready(status: &InferenceClusterStatus) -> bool {
    let ready = ConditionType::Ready.to_string();
    status.conditions.iter().any(|condition| condition.type_ == ready && condition.status == "True")
}

#[cfg(test)]
pub(super) mod canned;
#[cfg(test)]
mod tests;
