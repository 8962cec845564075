//! Who of several operators may write: the holder of one Lease.
//! In: the API server's Lease, a monotonic clock. Out: [`Standing`], as a channel.
//! Never: trust in another machine's clock. A candidate takes the Lease only after it has itself watched it lie still for
//! its whole duration; the holder stops writing before anybody else can have done so.

mod machine;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use machine::{Machine, Seen, Step};

/// One call to the API server may take so long; a slow one is tried again.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether this process may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Somebody else may, or nobody yet.
    Waiting,
    Leading,
}

/// Which Lease, and as whom.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    pub namespace: String,
    pub name: String,
    /// Name of this pod: one that restarts in place goes on as holder.
    pub identity: String,
    pub duration: Duration,
}

/// Keeps the Lease until `stop`, then gives it back.
pub async fn hold(
    client: Client,
    settings: LeaseSettings,
    standing: watch::Sender<Standing>,
    stop: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let mut machine = Machine::new(settings.duration);
    loop {
        let step = machine.next(Instant::now());
        announce(&standing, &machine, &settings);
        let wake = match step {
            Step::Wait(until) => until,
            Step::Look | Step::Write(_) => {
                carry_out(&api, &settings, &mut machine, step).await;
                continue;
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep_until(wake) => {}
        }
    }
    let leading = machine.leads(Instant::now());
    standing.send_replace(Standing::Waiting);
    if leading {
        release(&api, &settings, &machine).await;
    }
}

/// Tells the others, once per change.
fn announce(standing: &watch::Sender<Standing>, machine: &Machine, settings: &LeaseSettings) {
    let now = if machine.leads(Instant::now()) { Standing::Leading } else { Standing::Waiting };
    let changed = standing.send_if_modified(|held| std::mem::replace(held, now) != now);
    if changed {
        match now {
            Standing::Leading => tracing::info!(lease = settings.name, "this operator leads"),
            Standing::Waiting => {
                tracing::warn!(lease = settings.name, "this operator no longer leads; nothing is written")
            }
        }
    }
}

/// One call, and what the machine makes of its answer.
async fn carry_out(api: &Api<Lease>, settings: &LeaseSettings, machine: &mut Machine, step: Step) {
    let started = Instant::now();
    let wrote = matches!(step, Step::Write(_));
    let call = async {
        match step {
            Step::Write(seen) => write(api, settings, seen).await.map(Some),
            Step::Look | Step::Wait(_) => api.get_opt(&settings.name).await,
        }
    };
    // A holder has no time to lose to a call that hangs.
    let answer = tokio::time::timeout(machine.patience(started).min(CALL_TIMEOUT), call).await;
    match answer {
        Ok(Ok(lease)) => {
            let seen = lease.as_ref().map(|lease| seen_of(lease, settings));
            if wrote { machine.written(started, seen) } else { machine.looked(Instant::now(), seen) }
        }
        Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
            machine.outrun(Instant::now());
        }
        Ok(Err(error)) => {
            tracing::warn!(lease = settings.name, %error, "cannot reach the Lease; trying again");
            machine.failed(Instant::now());
        }
        Err(_) => {
            tracing::warn!(lease = settings.name, "no answer about the Lease in time; trying again");
            machine.failed(Instant::now());
        }
    }
}

/// Creates the Lease, takes it over, or renews it; the resource version makes a lost race a conflict.
async fn write(api: &Api<Lease>, settings: &LeaseSettings, seen: Option<Seen>) -> kube::Result<Lease> {
    let now = MicroTime(Timestamp::now());
    let held_already = seen.as_ref().is_some_and(|seen| seen.ours);
    let before = seen.as_ref().map(|seen| seen.lease.spec.clone().unwrap_or_default()).unwrap_or_default();
    let transitions = before.lease_transitions.unwrap_or(0) + i32::from(seen.is_some() && !held_already);
    let spec = LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(settings.duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: if held_already { before.acquire_time } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    match seen {
        None => {
            let metadata = ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() };
            api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
        }
        Some(seen) => {
            let lease = Lease { metadata: seen.lease.metadata.clone(), spec: Some(spec) };
            api.replace(&settings.name, &PostParams::default(), &lease).await
        }
    }
}

/// Gives the Lease back, so that the next operator need not wait. Failing is no harm: it runs out.
async fn release(api: &Api<Lease>, settings: &LeaseSettings, machine: &Machine) {
    let Some(seen) = machine.seen() else { return };
    let mut lease = seen.lease.as_ref().clone();
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    let params = PostParams::default();
    let call = api.replace(&settings.name, &params, &lease);
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(_)) => tracing::info!(lease = settings.name, "gave the Lease back"),
        Ok(Err(error)) => {
            tracing::warn!(lease = settings.name, %error, "cannot give the Lease back; it runs out")
        }
        Err(_) => tracing::warn!(lease = settings.name, "no answer to giving the Lease back; it runs out"),
    }
}

fn seen_of(lease: &Lease, settings: &LeaseSettings) -> Seen {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    Seen {
        ours: holder == settings.identity,
        free: holder.is_empty(),
        duration: seconds.map_or(settings.duration, Duration::from_secs),
        lease: Arc::new(lease.clone()),
    }
}

#[cfg(test)]
mod tests;
