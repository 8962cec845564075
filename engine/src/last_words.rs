//! Why a process ended, for whoever looks at its pod.
//! In: one line. Out: Kubernetes' termination message.
//! Never: a file that was not there: outside of a pod, stderr is enough.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// Where a container's runtime looks for it.
pub const FILE: &str = "/dev/termination-log";

/// Kubernetes keeps so much.
const MAX_BYTES: usize = 4096;

/// Replaces what is in `file`, if it is there.
pub fn write(file: &Path, line: &str) {
    if let Ok(mut file) = OpenOptions::new().write(true).truncate(true).open(file) {
        // Nobody is left to be told that it failed.
        let _ = file.write_all(&line.as_bytes()[..line.floor_char_boundary(MAX_BYTES)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_replace_what_was_there_and_make_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (there, missing) = (folder.path().join("log"), folder.path().join("none"));
        std::fs::write(&there, "of the container before, and longer").unwrap();
        write(&there, "ModelMismatch");
        write(&missing, "ModelMismatch");
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "ModelMismatch");
        assert!(!missing.exists());
        write(&there, &"ä".repeat(5000));
        assert_eq!(std::fs::metadata(&there).unwrap().len(), 4096);
    }
}
