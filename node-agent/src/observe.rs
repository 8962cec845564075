//! The loop that keeps the facts new: files every second, NVML beside it, the kubelet beside both.
//! In: a machine or a scene, the kubelet's answers. Out: a [`State`] every second.
//! Never: facts that wait for NVML (its thread may hang for minutes), or for a kubelet that is away.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use node_facts::NodeFacts;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::collect::{self, Reader, Sample, Trees};
use crate::derive;
use crate::gpu_watch::GpuWatch;
use crate::kubelet::Heard;
use crate::scene::{Scene, SceneError};
use crate::source::Tree;
use crate::source::nvml::{Code, Fault, NvmlAnswer, Session};
use crate::state::{GpuSensors, Observation, State};

pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// Layout of the machine: NUMA nodes, CPUs, PCI devices, limits.
const LAYOUT_EVERY: Duration = Duration::from_secs(15);
/// The first facts wait this long for NVML, so that they do not begin with "no answer yet".
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// Remarks of the machine and of the kubelet together.
const MAX_NOTES: usize = 40;

/// What is observed.
#[derive(Debug, Clone)]
pub(crate) enum Machine {
    /// Trees of the host, and its driver.
    Host { trees: Trees, driver: Session },
    /// A scene, opened anew each second: a folder may be changed while it plays.
    Scene(String),
}

impl Machine {
    /// The host whose sysfs lies under `root`. procfs is the agent's own: it tells of the host's memory too.
    pub(crate) fn host(root: PathBuf) -> Self {
        let (sys, proc) = (Tree::disk(&root), Tree::disk(std::path::Path::new("/")));
        Machine::Host { trees: Trees { sys, proc, reader: Reader::Agent }, driver: Session::default() }
    }

    pub(crate) fn scene(name_or_path: String) -> Result<Self, SceneError> {
        Scene::find(&name_or_path)?;
        Ok(Machine::Scene(name_or_path))
    }

    fn trees(&self) -> Result<Trees, SceneError> {
        match self {
            Machine::Host { trees, .. } => Ok(trees.clone()),
            Machine::Scene(scene) => Ok(Scene::find(scene)?.into_parts().0),
        }
    }

    fn ask_gpus(&self) -> NvmlAnswer {
        match self {
            Machine::Host { driver, .. } => driver.ask(),
            Machine::Scene(scene) => match Scene::find(scene) {
                Ok(scene) => scene.into_parts().1,
                Err(error) => Err(Fault { code: Code::Unknown, detail: Some(error.to_string()) }),
            },
        }
    }
}

/// Asks NVML for ever, or until only a new container helps: then says why.
pub(crate) async fn ask_gpus(machine: Machine, answers: watch::Sender<Option<Arc<NvmlAnswer>>>) -> String {
    let mut watch = GpuWatch::default();
    loop {
        let asked = machine.clone();
        // Blocks at most for the watchdog's patience.
        let answer = tokio::task::spawn_blocking(move || asked.ask_gpus()).await;
        let answer = answer.unwrap_or_else(|_| Err(Fault::from(Code::Unknown)));
        let seen = watch.note(answer, Instant::now());
        answers.send_replace(Some(Arc::new(seen.answer)));
        if let Some(reason) = seen.give_up {
            return reason;
        }
        sleep(seen.ask_again).await;
    }
}

/// What [`observe`] listens to.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) machine: Machine,
    /// Name of the node; absent: the host name.
    pub(crate) node: Option<String>,
    pub(crate) gpus: watch::Receiver<Option<Arc<NvmlAnswer>>>,
    pub(crate) kubelet: watch::Receiver<Heard>,
}

/// Observes for ever; whoever runs this drops it.
pub(crate) async fn observe(
    mut inputs: Inputs,
    instance: Arc<str>,
    states: watch::Sender<Option<Arc<State>>>,
) {
    // An end of the wait without an answer is in the answer below.
    let _ = timeout(FIRST_ANSWER, inputs.gpus.wait_for(Option::is_some)).await;
    let mut layout: Option<(Instant, Sample)> = None;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let gpus = inputs.gpus.borrow().as_deref().cloned();
        let machine = inputs.machine.clone();
        let before = layout.take();
        let read = tokio::task::spawn_blocking(move || read(&machine, before, gpus)).await;
        let Ok(Some((sampled, observation))) = read else { continue };
        layout = Some(sampled);
        let observation = complete(observation, &inputs);
        states.send_modify(|state| {
            *state = Some(Arc::new(match state {
                Some(state) => state.next(observation),
                None => State::first(instance.clone(), observation),
            }));
        });
    }
}

type Sampled = (Instant, Sample);

/// One reading. A scene that cannot be opened for the moment (it is being changed) gives none, and the facts grow old.
fn read(
    machine: &Machine,
    before: Option<Sampled>,
    gpus: Option<NvmlAnswer>,
) -> Option<(Sampled, Observation)> {
    let trees = match machine.trees() {
        Ok(trees) => trees,
        Err(error) => {
            tracing::warn!(%error, "the scene cannot be read");
            return None;
        }
    };
    let gpus = gpus.unwrap_or_else(|| Err(no_answer_yet()));
    let (when, sample) = match before {
        Some((when, sample)) if when.elapsed() < LAYOUT_EVERY && matches!(machine, Machine::Host { .. }) => {
            (when, collect::refresh(&sample, &trees, gpus))
        }
        _ => (Instant::now(), collect::sample(&trees, gpus)),
    };
    let observation = Observation {
        facts: derive::facts(&sample),
        sensors: sensors(&sample),
        gpus_on_bus: sample.gpus_on_bus.clone(),
        at: Instant::now(),
        unix_ms: unix_ms(),
    };
    Some(((when, sample), observation))
}

fn no_answer_yet() -> Fault {
    Fault { code: Code::Timeout, detail: Some("asked for the first time".to_owned()) }
}

fn sensors(sample: &Sample) -> Vec<GpuSensors> {
    let devices = sample.nvml.iter().flat_map(|answer| &answer.devices);
    let named = devices.filter_map(|device| {
        Some(GpuSensors { uuid: device.uuid.clone().ok()?, sensors: device.sensors.clone() })
    });
    named.collect()
}

/// A clock before 1970 is for people to notice.
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Adds what others know.
fn complete(observation: Observation, inputs: &Inputs) -> Observation {
    let Heard { facts: kubelet, notes } = inputs.kubelet.borrow().clone();
    let mut facts = NodeFacts { kubelet, ..observation.facts };
    if let Some(node) = &inputs.node {
        facts.node.clone_from(node);
    }
    facts.notes.extend(notes);
    facts.notes.truncate(MAX_NOTES);
    Observation { facts, ..observation }
}
