//! Which cluster a command means: the named one, or the only one there is.

use std::path::Path;

use super::state::{ClusterFolder, ClusterState, StateError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SelectError {
    #[error("no cluster has run here yet: `fathom local up -f FILE` starts one")]
    None,
    #[error("no cluster `{name}` has run here; there are: {known}")]
    Unknown { name: String, known: String },
    #[error("which cluster? Name one of: {known}")]
    Several { known: String },
    #[error(transparent)]
    State(#[from] StateError),
}

/// The cluster called `name`; without a name the only one that runs, or the only one there is.
pub(crate) fn select(
    state_root: &Path,
    name: Option<&str>,
) -> Result<(ClusterFolder, ClusterState), SelectError> {
    let all = ClusterFolder::all(state_root);
    let known = all.iter().map(|folder| folder.name.as_str()).collect::<Vec<_>>().join(", ");
    let folder = match name {
        Some(name) => ClusterFolder::new(state_root, name)?,
        None => {
            let running: Vec<_> = all.iter().filter(|folder| folder.holder().is_some()).collect();
            match (running.as_slice(), all.as_slice()) {
                (_, []) => return Err(SelectError::None),
                ([only], _) => (*only).clone(),
                ([], [only]) => only.clone(),
                _ => return Err(SelectError::Several { known }),
            }
        }
    };
    match (folder.read_state()?, all.is_empty()) {
        (Some(state), _) => Ok((folder, state)),
        (None, true) => Err(SelectError::None),
        (None, false) => Err(SelectError::Unknown { name: folder.name, known }),
    }
}
