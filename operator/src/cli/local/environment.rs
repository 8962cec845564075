//! What `fathom local` takes from its surroundings: the state folder and the programs beside it.
//! In: XDG_STATE_HOME, HOME, this program's own path. Out: an [`Environment`]; nothing else here reads the environment.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvironmentError {
    #[error("no folder to keep state in: set XDG_STATE_HOME or HOME to an absolute path")]
    NoStateFolder,
    #[error("looked for the programs beside `fathom`, but its own path is not readable")]
    OwnPath(#[source] std::io::Error),
    #[error(
        "looked for the engine at {}, found no program there: install `fathom-engine` beside `fathom` \
         (./dev build leaves both in target/release)", .0.display()
    )]
    NoEngine(PathBuf),
}

#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// One folder per cluster lies in it.
    pub(crate) state_root: PathBuf,
    /// Where the programs lie.
    programs: PathBuf,
}

impl Environment {
    pub(crate) fn read() -> Result<Self, EnvironmentError> {
        let own = std::env::current_exe().map_err(EnvironmentError::OwnPath)?;
        let state_root = state_root(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
            .ok_or(EnvironmentError::NoStateFolder)?;
        let programs = own.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self { state_root, programs })
    }

    /// The engine program, checked to be there.
    pub(crate) fn engine(&self) -> Result<PathBuf, EnvironmentError> {
        let path = self.programs.join("fathom-engine");
        let runs = path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        if runs { Ok(path) } else { Err(EnvironmentError::NoEngine(path)) }
    }
}

/// `$XDG_STATE_HOME/fathom`, or `~/.local/state/fathom`. The XDG rule: a relative value counts as absent.
fn state_root(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(xdg).or_else(|| Some(absolute(home)?.join(".local/state"))).map(|path| path.join("fathom"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_xdg_folder_counts_as_absent() {
        let os = |text: &str| Some(OsString::from(text));
        assert_eq!(state_root(os("/s"), os("/h")), Some(PathBuf::from("/s/fathom")));
        assert_eq!(state_root(os("s"), os("/h")), Some(PathBuf::from("/h/.local/state/fathom")));
        assert_eq!(state_root(None, None), None);
    }
}
