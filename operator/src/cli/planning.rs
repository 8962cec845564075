//! From a file to a plan: what `fathom plan` and `fathom local` have in common.
//! In: a file with an InferenceCluster, facts. Out: [`Loaded`], then a plan; its table for people.
//! Never: starting anything. A mistake in the file is an error of one line; a spec that fits nowhere is a plan.

mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use engine_spec::{EngineConfig, ModelShape};
use fathom_crds::InferenceCluster;
use fathom_crds::inference_cluster::{MemoryBinding, PlacementMode};
use fathom_operator::shape::unknown_shape;
use node_facts::NodeFacts;
use operator_plan::{Enforcement, Mode, NO_SURROUNDINGS, PlanInput, Planned, named_shape};

pub(crate) use table::print_table;

/// Larger files hold no InferenceCluster.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Larger files are no `config.json` of a model.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A file that was read, with the model's dimensions.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) cluster: InferenceCluster,
    pub(crate) shape: ModelShape,
    /// The model's folder as far as this machine is concerned, whether it is there or not; absent when the source is
    /// not a folder.
    pub(crate) model_path: Option<PathBuf>,
    /// Bytes of the checkpoint, if its folder can be read.
    weight_bytes: Option<u64>,
}

/// Reads an InferenceCluster and finds out the dimensions of its model: from the model's folder if it can be read, else
/// from `model.shape`, else from `model.name`.
pub(crate) fn load(file: &Path) -> anyhow::Result<Loaded> {
    let cluster = read(file)?;
    let model = &cluster.spec.model;
    let model_path = model.source.host_path.as_ref().map(|path| beside(file, path));
    let folder = model_path.as_deref().filter(|path| path.exists());
    let named = named_shape(&cluster.spec);
    let (shape, weight_bytes) = match (folder, named) {
        (Some(folder), _) => (folder_shape(folder, &cluster)?, weight_bytes(folder)),
        (None, Some(named)) => (named.shape(), None),
        (None, None) => bail!("{}: {}", file.display(), unknown(&cluster, model_path.as_deref())),
    };
    Ok(Loaded { cluster, shape, model_path, weight_bytes })
}

/// Reads an InferenceCluster; its model is not looked for.
pub(crate) fn read(file: &Path) -> anyhow::Result<InferenceCluster> {
    let text = read_bounded(file, MAX_FILE_BYTES)?;
    fathom_crds::read(&text).with_context(|| format!("{}", file.display()))
}

impl Loaded {
    pub(crate) fn name(&self) -> &str {
        self.cluster.name()
    }

    /// A plan for these nodes.
    pub(crate) fn plan(&self, nodes: &[NodeFacts]) -> Planned {
        operator_plan::plan(&PlanInput {
            name: self.name(),
            spec: &self.cluster.spec,
            shape: &self.shape,
            nodes,
            weight_bytes: self.weight_bytes,
            image: None,
            surroundings: &NO_SURROUNDINGS,
        })
    }

    /// A plan for this machine.
    pub(crate) fn plan_here(&self) -> Planned {
        self.plan(&[fathom_node_agent::read_machine(Path::new("/"))])
    }

    /// What each engine of a plan is told, in the plan's order; addresses are the caller's part. Needs the model's
    /// folder on this machine.
    pub(crate) fn engines(&self, planned: &Planned) -> anyhow::Result<Vec<EngineConfig>> {
        let path = self.model_folder()?.display().to_string();
        let (spec, enforcement) = (&self.cluster.spec, self.enforcement());
        let config = |replica| {
            let mut config = operator_plan::engine_config(planned, replica, spec, &enforcement, &path);
            // The dimensions were read from the folder itself, whatever the model is called.
            config.model.shape = None;
            // The CPUs were read from this machine; what a container takes of them costs speed, not the start.
            config.binding.cpus_required = false;
            config
        };
        Ok(planned.plan.replicas.iter().map(config).collect())
    }

    /// Without Kubernetes the engines bind themselves.
    fn enforcement(&self) -> Enforcement {
        let placement = &self.cluster.spec.placement;
        let mode = match placement.mode {
            PlacementMode::Unmanaged => Mode::Unmanaged,
            PlacementMode::Auto | PlacementMode::DRA | PlacementMode::Kubelet | PlacementMode::Soft => {
                Mode::Soft { gpu_resource: None }
            }
        };
        let bind_memory = placement.memory_binding != MemoryBinding::Off;
        Enforcement {
            mode,
            because: "there is no Kubernetes here".to_owned(),
            bind_memory,
            memory_because: String::new(),
        }
    }

    /// What each router of a plan is told.
    pub(crate) fn routers(&self, planned: &Planned) -> Vec<EngineConfig> {
        let indices = 0..planned.plan.routers;
        indices.map(|index| operator_plan::router_config(planned, &self.cluster.spec, index)).collect()
    }

    /// The model's folder, which must be there.
    fn model_folder(&self) -> anyhow::Result<PathBuf> {
        let Some(path) = &self.model_path else {
            bail!("spec.model.source must be a hostPath to run on this machine");
        };
        path.canonicalize().with_context(|| format!("model folder {}", path.display()))
    }
}

/// A path of the file: relative ones are relative to the file's folder.
fn beside(file: &Path, path: &str) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(path)
}

fn unknown(cluster: &InferenceCluster, folder: Option<&Path>) -> String {
    let besides = folder.map_or_else(String::new, |folder| format!(", and {} is not here", folder.display()));
    unknown_shape(&cluster.spec, &besides)
}

/// The dimensions that the folder's own `config.json` gives; they must be those of `model.shape` if that is set.
fn folder_shape(folder: &Path, cluster: &InferenceCluster) -> anyhow::Result<ModelShape> {
    let file = folder.join("config.json");
    let text = read_bounded(&file, MAX_CONFIG_BYTES)?;
    let shape = ModelShape::from_config_json(&text).with_context(|| format!("{}", file.display()))?;
    if cluster.spec.model.shape.is_some()
        && let Some(named) = named_shape(&cluster.spec)
        && let Some(difference) = shape.difference(&named.shape())
    {
        bail!("{} is not the model that spec.model.shape {named} says: {difference}", file.display());
    }
    Ok(shape)
}

/// Bytes of all weight files of a folder; nothing if they cannot all be seen.
fn weight_bytes(folder: &Path) -> Option<u64> {
    let mut bytes = 0u64;
    for entry in folder.read_dir().ok()? {
        let path = entry.ok()?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            bytes = bytes.saturating_add(path.metadata().ok()?.len());
        }
    }
    (bytes > 0).then_some(bytes)
}

/// The text of a file that is not larger than it may be.
fn read_bounded(file: &Path, limit: u64) -> anyhow::Result<String> {
    use std::io::Read as _;
    let shown = file.display();
    let opened = std::fs::File::open(file).with_context(|| format!("cannot read {shown}"))?;
    let mut text = String::new();
    opened.take(limit + 1).read_to_string(&mut text).with_context(|| format!("cannot read {shown}"))?;
    if text.len() as u64 > limit {
        bail!("{shown} is larger than {limit} bytes");
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
