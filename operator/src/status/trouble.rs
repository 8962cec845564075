//! What works less well than planned, read from pods, claims, facts and what the API server said.
//! In: what was seen. Out: [`Trouble`]s, worst first. Never: times and counters that move by themselves.

use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::AchievedState;
use node_facts::GpuHealth;
use operator_plan::{ComputeDevice, Mode, gib};

use super::achieved::achieved;
use super::running::{Running, claim_of};
use super::verdicts::requires_binding;
use super::{Effect, Observed};
use crate::live::pod::{Container, Ended, LivePod};

/// Longest part of a container's last words that is repeated.
const MAX_WORDS_BYTES: usize = 400;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) reason: Reason,
    pub(super) message: String,
    /// Whether it stays until somebody changes something.
    pub(super) stuck: bool,
}

/// What [`Trouble`]s an object has, worst first.
pub(super) fn troubles(observed: &Observed<'_>, running: &Running<'_>) -> Vec<Trouble> {
    let mut found = Vec::new();
    if let Some(effect) = &observed.effect {
        found.extend(dropped_volumes(effect));
        found.extend(refusals(effect));
        found.extend(refused_bindings(observed, effect, running));
        found.extend(lost_gpus(observed, effect, running));
    }
    found.extend(rejections(observed));
    for pod in observed.gathered.live.staying() {
        found.extend(pod_trouble(observed, running, pod));
    }
    found.sort_by_key(|trouble| rank(trouble.reason));
    found
}

/// Worst first: what cannot heal by itself, then what may.
fn rank(reason: Reason) -> usize {
    const ORDER: [Reason; 12] = [
        Reason::ImageVolumeUnsupported,
        Reason::PodRefused,
        Reason::ModelMismatch,
        Reason::GpuLost,
        Reason::TopologyRejected,
        Reason::OutOfMemory,
        Reason::CrashLoop,
        Reason::ContainerRefused,
        Reason::ImagePull,
        Reason::NotAchieved,
        Reason::ClaimPending,
        Reason::Unschedulable,
    ];
    ORDER.iter().position(|known| *known == reason).unwrap_or(ORDER.len())
}

fn dropped_volumes(effect: &Effect<'_>) -> Option<Trouble> {
    let pods = &effect.outcome.image_volume_dropped;
    let first = pods.first()?;
    let others = more(pods.len());
    Some(Trouble {
        reason: Reason::ImageVolumeUnsupported,
        message: format!(
            "the API server dropped the image volume of pod {first}{others}: turn on the feature gate ImageVolume of API server and kubelets, or use spec.model.source.pvc or hostPath"
        ),
        stuck: true,
    })
}

fn refusals(effect: &Effect<'_>) -> Option<Trouble> {
    let first = effect.outcome.refused.first()?;
    let others = more(effect.outcome.refused.len());
    let message = format!("{}{others} was refused: {}", first.child, sentence(&first.message));
    Some(Trouble { reason: Reason::PodRefused, message, stuck: true })
}

/// Engines that stay not ready because they could not bind themselves as the spec requires.
fn refused_bindings(observed: &Observed<'_>, effect: &Effect<'_>, running: &Running<'_>) -> Vec<Trouble> {
    if !requires_binding(effect) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (pod, replica) in running.iter().filter(|(pod, _)| !pod.is_ready()) {
        let achieved = achieved(observed, effect, pod, replica);
        for (resource, part) in [("CPUs", achieved.cpus), ("memory", achieved.memory)] {
            let refused = part.filter(|part| part.state == AchievedState::Refused);
            if let Some(why) = refused.and_then(|part| part.message) {
                let message = format!(
                    "pod {} could not bind its {resource} ({}), which the spec requires",
                    pod.name(),
                    sentence(&why)
                );
                found.push(Trouble { reason: Reason::NotAchieved, message, stuck: true });
            }
        }
    }
    found
}

/// GPUs of running replicas that are no longer offered, or that the driver calls lost.
fn lost_gpus(observed: &Observed<'_>, effect: &Effect<'_>, running: &Running<'_>) -> Vec<Trouble> {
    let mut found = Vec::new();
    for (pod, replica) in running.iter() {
        for gpu in &replica.gpus {
            if let Some(why) = lost(observed, effect, &replica.node, &gpu.uuid) {
                found.push(Trouble {
                    reason: Reason::GpuLost,
                    message: format!(
                        "GPU {} of pod {} {why} on node {}: the pod stays as it is; look at the node, and delete the pod to have it planned anew",
                        gpu.uuid,
                        pod.name(),
                        replica.node
                    ),
                    stuck: false,
                });
            }
        }
    }
    found
}

/// Why a GPU counts as lost. A node whose driver offers nothing at all has lost its driver, not its GPUs.
fn lost(observed: &Observed<'_>, effect: &Effect<'_>, node: &str, uuid: &str) -> Option<String> {
    let claims = matches!(effect.enforcement.mode, Mode::Dra { .. });
    let offered = observed.gathered.offered_gpus.as_ref().and_then(|offers| offers.get(node));
    if claims && offered.is_some_and(|offered| !offered.is_empty() && !offered.iter().any(|o| o == uuid)) {
        return Some("is no longer offered".to_owned());
    }
    let facts = observed.gathered.facts.iter().find(|facts| facts.node == node)?;
    let gpu = facts.gpus.value()?.iter().find(|gpu| gpu.uuid == uuid);
    match gpu.map(|gpu| gpu.health.value()) {
        None => (!claims).then(|| "is no longer seen".to_owned()),
        Some(Some(GpuHealth::Lost { reason })) => Some(format!("is lost ({reason})")),
        Some(Some(GpuHealth::Healthy) | None) => None,
    }
}

fn rejections(observed: &Observed<'_>) -> Vec<Trouble> {
    let told = observed.rejections.iter();
    told.map(|rejection| {
        let next = if rejection.given_up {
            "no further pod is tried until the spec or the node changes"
        } else {
            "the next one is tried after a delay, or on another node"
        };
        Trouble {
            reason: Reason::TopologyRejected,
            message: format!(
                "the kubelet of node {} rejected {} pods of {}: {}: {}; {next}",
                rejection.node,
                rejection.times,
                rejection.replica,
                rejection.reason,
                sentence(&rejection.message)
            ),
            stuck: rejection.given_up,
        }
    })
    .collect()
}

fn pod_trouble(observed: &Observed<'_>, running: &Running<'_>, pod: &LivePod) -> Option<Trouble> {
    if pod.has_failed() {
        // Pods that a kubelet rejected are told by `rejections`, with their count.
        let told = observed.rejections.iter().any(|rejection| *rejection.reason == *pod.content.reason);
        return (!told).then(|| failed(pod));
    }
    if pod.is_ready() {
        return None;
    }
    if let Some(said) = &pod.content.unschedulable {
        return Some(unschedulable(observed, running, pod, said));
    }
    pod.content.containers.iter().find_map(|container| match (&container.waiting, &container.last_end) {
        (Some((reason, message)), _) if is_pull(reason) => Some(Trouble {
            reason: Reason::ImagePull,
            message: format!(
                "image {} of pod {}: {reason}: {}",
                container.image,
                pod.name(),
                sentence(message)
            ),
            stuck: true,
        }),
        (Some((reason, message)), _) if is_creation(reason) => Some(Trouble {
            reason: Reason::ContainerRefused,
            message: format!(
                "container {} of pod {} cannot be started: {reason}: {}",
                container.name,
                pod.name(),
                sentence(message)
            ),
            stuck: true,
        }),
        (_, Some(end)) if container.restarts > 0 || end.exit_code != 0 => {
            Some(ended(running, pod, container, end))
        }
        _ => None,
    })
}

/// The scheduler never says which constraint of a claim failed; the plan knows what it asked for.
fn unschedulable(observed: &Observed<'_>, running: &Running<'_>, pod: &LivePod, said: &str) -> Trouble {
    let said = sentence(said);
    if claim_of(observed, pod).is_some_and(|claim| !claim.is_allocated()) {
        let wanted = running.plan_of(pod).map_or_else(String::new, |replica| {
            let uuids: Vec<&str> = replica.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
            format!(" of GPUs {} on node {}", uuids.join(", "), replica.node)
        });
        return Trouble {
            reason: Reason::ClaimPending,
            message: format!("claim {}{wanted} is not allocated: {said}", pod.name()),
            stuck: false,
        };
    }
    let message = format!("pod {} finds no node: {said}", pod.name());
    Trouble { reason: Reason::Unschedulable, message, stuck: false }
}

fn failed(pod: &LivePod) -> Trouble {
    let (reason, message) = (pod.failure(), sentence(&pod.content.message));
    Trouble {
        reason: Reason::CrashLoop,
        message: format!("pod {} failed: {reason}: {message}; it is replaced", pod.name()),
        stuck: false,
    }
}

fn ended(running: &Running<'_>, pod: &LivePod, container: &Container, end: &Ended) -> Trouble {
    let (why, words) = (&*end.reason, last_words(&end.message));
    let (name, pod_name) = (&container.name, pod.name());
    let times = times(container.restarts);
    let how = format!("container {name} of pod {pod_name} ended ({why}, exit code {}){times}", end.exit_code);
    if why == "OOMKilled" {
        return Trouble {
            reason: Reason::OutOfMemory,
            message: format!("{how}: it used more memory than it may. {}", memory_plan(running, pod)),
            stuck: true,
        };
    }
    let said = if words.is_empty() {
        format!("; `kubectl logs --previous {pod_name}` may say why")
    } else {
        format!(". Its last words: {words}")
    };
    let reason = if is_model_mismatch(words) { Reason::ModelMismatch } else { Reason::CrashLoop };
    Trouble { reason, message: format!("{how}{said}"), stuck: true }
}

/// Where the memory of a pod went, as far as the plan knows.
fn memory_plan(running: &Running<'_>, pod: &LivePod) -> String {
    let Some(replica) = running.plan_of(pod) else {
        return "It belongs to an earlier plan, or is a router".to_owned();
    };
    let pool = match replica.device {
        ComputeDevice::Cpu => format!("{} of KV pool, ", gib(replica.device_pool.bytes)),
        ComputeDevice::Cuda => String::new(),
    };
    format!(
        "Its plan gives it {}: {pool}{} of host cache, the rest for itself; a smaller spec.hostCache or contextTokens leaves it more",
        gib(replica.memory_bytes),
        gib(replica.host_cache_bytes)
    )
}

fn is_pull(reason: &str) -> bool {
    ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"]
        .contains(&reason)
}

fn is_creation(reason: &str) -> bool {
    ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"].contains(&reason)
}

/// The engine starts its last words with the name of this reason when a checkpoint is not what was planned.
fn is_model_mismatch(words: &str) -> bool {
    words.contains("ModelMismatch") || words.contains("is not the model")
}

fn times(restarts: i32) -> String {
    match restarts {
        0 => String::new(),
        1 => ", restarted once".to_owned(),
        n => format!(", restarted {n} times"),
    }
}

fn more(count: usize) -> String {
    if count > 1 { format!(" and {} more", count - 1) } else { String::new() }
}

fn sentence(message: &str) -> &str {
    let message = message.trim();
    if message.is_empty() { "no reason given" } else { bounded(message.trim_end_matches('.')) }
}

/// The last line that says something.
fn last_words(message: &str) -> &str {
    bounded(message.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default())
}

fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_WORDS_BYTES)]
}
