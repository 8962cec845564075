//! What is wanted, and what is carried out: usually the same.
//! In: everything gathered. Out: [`Decision`]. Never: I/O. A spec that cannot be carried out (mode Plan, no place, refused)
//! leaves in place what the last one made, and that is still healed: from its ControllerRevision.

use engine_spec::ModelShape;
use fathom_crds::InferenceClusterSpec;
use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::{MemoryBinding, PlacementMode, RolloutMode, RuntimeKind};
use operator_plan::{Enforcement, Mode, PlanInput, Planned, Surroundings, named_shape};
use operator_render::{Recorded, lasting};

use crate::gather::{Gathered, running_enforcement};
use crate::shape::unknown_shape;

/// What one reconcile is going to do.
#[derive(Debug)]
pub struct Decision {
    pub wanted: Wanted,
    /// `None`: nothing was ever carried out, and nothing can be.
    pub carried: Option<Carried>,
}

/// What the object's own spec came to.
#[derive(Debug)]
pub enum Wanted {
    /// Refused before planning.
    Refused {
        reason: Reason,
        message: String,
    },
    Planned {
        planned: Box<Planned>,
        enforcement: Result<Enforcement, String>,
        image: String,
    },
}

/// What is carried out.
#[derive(Debug)]
pub struct Carried {
    pub spec: InferenceClusterSpec,
    pub image: String,
    pub planned: Planned,
    pub enforcement: Enforcement,
    /// There is no place for what ran last: engine pods are left alone, the rest is healed.
    pub leave_engines: bool,
}

impl Decision {
    /// Whether room that comes free may change it.
    pub fn waits_for_room(&self) -> bool {
        match &self.wanted {
            Wanted::Refused { .. } => false,
            Wanted::Planned { planned, enforcement, .. } => !planned.is_feasible() || enforcement.is_err(),
        }
    }
}

/// Decides. `offers_gpus` tells whether a node offers devices of an extended resource at the moment.
pub fn decide(
    gathered: &Gathered,
    default_image: &str,
    offers_gpus: impl Fn(&str, &str) -> bool,
) -> Decision {
    let spec = &gathered.cluster.spec;
    let recorded = newest(gathered);
    let shape = match accepted(spec) {
        Ok(shape) => shape,
        Err((reason, message)) => {
            let carried = recorded.and_then(|recorded| healed(gathered, recorded, &offers_gpus));
            return Decision { wanted: Wanted::Refused { reason, message }, carried };
        }
    };
    let image = operator_render::image_for(spec, recorded.as_ref(), default_image);
    let enforcement = enforcement(gathered, spec);
    let planned = planned(gathered, spec, &shape, &image, enforcement.as_ref().ok(), &offers_gpus);
    let unchanged = recorded.as_ref().is_some_and(|recorded| recorded.spec == lasting(spec));
    let apply = spec.rollout.mode == RolloutMode::Apply || unchanged;
    let carried = match &enforcement {
        Ok(enforcement) if apply && planned.is_feasible() => Some(Carried {
            spec: spec.clone(),
            image: image.clone(),
            planned: planned.clone(),
            enforcement: enforcement.clone(),
            leave_engines: false,
        }),
        _ => recorded.and_then(|recorded| healed(gathered, recorded, &offers_gpus)),
    };
    Decision { wanted: Wanted::Planned { planned: Box::new(planned), enforcement, image }, carried }
}

/// What ran last, planned again from its record: what is there stays where it is.
fn healed(
    gathered: &Gathered,
    recorded: Recorded,
    offers_gpus: &impl Fn(&str, &str) -> bool,
) -> Option<Carried> {
    let shape = accepted(&recorded.spec).ok()?;
    let enforcement = enforcement(gathered, &recorded.spec).ok()?;
    let Recorded { spec, image, .. } = recorded;
    let planned = planned(gathered, &spec, &shape, &image, Some(&enforcement), offers_gpus);
    let leave_engines = !planned.is_feasible();
    Some(Carried { spec, image, planned, enforcement, leave_engines })
}

/// The inputs that were carried out last.
fn newest(gathered: &Gathered) -> Option<Recorded> {
    let revisions = gathered.live.revisions.iter();
    revisions
        .filter_map(|revision| revision.content.read(revision.name()))
        .max_by_key(|recorded| recorded.number)
}

/// The dimensions of a spec that this version can carry out at all.
fn accepted(spec: &InferenceClusterSpec) -> Result<ModelShape, (Reason, String)> {
    if spec.runtime.kind == RuntimeKind::SGLang {
        let message = "spec.runtime.kind SGLang is not supported yet: use Fathom";
        return Err((Reason::RuntimeNotSupported, message.to_owned()));
    }
    if spec.model.source.hugging_face.is_some() {
        let message = "spec.model.source.huggingFace is not supported yet: use pvc, image or hostPath";
        return Err((Reason::SourceNotSupported, message.to_owned()));
    }
    let named = named_shape(spec).ok_or_else(|| (Reason::UnknownShape, unknown_shape(spec, "")))?;
    Ok(named.shape())
}

/// Who enforces. What runs keeps the enforcement that it was made with as long as the spec admits it: a driver that is
/// installed or restarts, an agent that is away, a label of the namespace restart no engine.
fn enforcement(gathered: &Gathered, spec: &InferenceClusterSpec) -> Result<Enforcement, String> {
    let fresh = operator_plan::enforcement(spec, &gathered.abilities);
    let runs_with_gpus = gathered.surroundings.present.iter().any(|present| !present.replica.gpus.is_empty());
    let same_kind = runs_with_gpus == has_gpus(spec);
    match (running_enforcement(&gathered.live), fresh) {
        (Some(running), fresh) if same_kind && admits(spec, &running) => match fresh {
            // The same, with today's reasons.
            Ok(fresh) if (&fresh.mode, fresh.bind_memory) == (&running.mode, running.bind_memory) => {
                Ok(fresh)
            }
            Ok(_) | Err(_) => Ok(running),
        },
        (_, fresh) => fresh,
    }
}

fn has_gpus(spec: &InferenceClusterSpec) -> bool {
    spec.decode.gpus > 0
        || spec.prefill.as_ref().is_some_and(|prefill| prefill.replicas > 0 && prefill.gpus > 0)
}

/// Whether an enforcement is one of those that the spec may come to.
fn admits(spec: &InferenceClusterSpec, running: &Enforcement) -> bool {
    let mode = match (spec.placement.mode, &running.mode) {
        (PlacementMode::Auto, _)
        | (PlacementMode::DRA, Mode::Dra { .. })
        | (PlacementMode::Kubelet, Mode::Kubelet { .. })
        | (PlacementMode::Soft, Mode::Soft { .. })
        | (PlacementMode::Unmanaged, Mode::Unmanaged) => true,
        // Nothing to claim: the engine binds itself.
        (PlacementMode::DRA, Mode::Soft { .. }) => !has_gpus(spec),
        _ => false,
    };
    let binds_itself = matches!(running.mode, Mode::Dra { .. } | Mode::Soft { .. });
    let memory = match spec.placement.memory_binding {
        MemoryBinding::Auto => true,
        MemoryBinding::Off => !running.bind_memory,
        MemoryBinding::Required => running.bind_memory || !binds_itself,
    };
    mode && memory
}

fn planned(
    gathered: &Gathered,
    spec: &InferenceClusterSpec,
    shape: &ModelShape,
    image: &str,
    enforcement: Option<&Enforcement>,
    offers_gpus: &impl Fn(&str, &str) -> bool,
) -> Planned {
    let narrowed = without_silent_plugins(gathered, enforcement, offers_gpus);
    operator_plan::plan(&PlanInput {
        name: gathered.cluster.name(),
        spec,
        shape,
        nodes: &gathered.facts,
        weight_bytes: None,
        image: Some(image),
        surroundings: narrowed.as_ref().unwrap_or(&gathered.surroundings),
    })
}

/// Where GPUs come from a device plugin, a node whose plugin has not registered (yet, after a restart) refuses pods for
/// good: nothing new goes there until it offers its GPUs.
fn without_silent_plugins(
    gathered: &Gathered,
    enforcement: Option<&Enforcement>,
    offers_gpus: &impl Fn(&str, &str) -> bool,
) -> Option<Surroundings> {
    let resource = match &enforcement?.mode {
        Mode::Kubelet { gpu_resource: Some(resource) } | Mode::Soft { gpu_resource: Some(resource) } => {
            resource
        }
        _ => return None,
    };
    let mut surroundings = gathered.surroundings.clone();
    for (name, node) in surroundings.nodes.iter_mut().flatten() {
        if node.excluded.is_none() && !offers_gpus(name, resource) {
            node.excluded = Some(format!("it offers no {resource} at the moment"));
        }
    }
    Some(surroundings)
}
