//! What to say of a model whose dimensions nobody knows.

use engine_spec::NamedShape;
use fathom_crds::InferenceClusterSpec;

/// Lists the names that would do; `besides` tells what else was tried.
pub fn unknown_shape(spec: &InferenceClusterSpec, besides: &str) -> String {
    let names: Vec<String> = NamedShape::ALL.iter().map(ToString::to_string).collect();
    format!(
        "the dimensions of model {:?} are not known by name{besides}: set spec.model.shape to one of {}",
        spec.model.name,
        names.join(", ")
    )
}
