//! Reads what is appended to a log, line by line, across its rotation.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Read at once at most; more is for the next look.
const PIECE_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Follower {
    path: PathBuf,
    /// Kept open: after a rotation its rest is still to be read.
    file: File,
    /// A line whose end has not been written yet.
    begun: Vec<u8>,
}

impl Follower {
    /// From the present end of the file on.
    pub(super) fn from_end(path: PathBuf) -> io::Result<Self> {
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { path, file, begun: Vec::new() })
    }

    /// The whole lines that were added since the last look.
    pub(super) fn new_lines(&mut self) -> io::Result<Vec<String>> {
        let read = (&mut self.file).take(PIECE_BYTES).read_to_end(&mut self.begun)?;
        if read == 0 && self.was_rotated() {
            self.file = File::open(&self.path)?;
            return self.new_lines();
        }
        let Some(end) = self.begun.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let rest = self.begun.split_off(end + 1);
        let whole = std::mem::replace(&mut self.begun, rest);
        Ok(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect())
    }

    /// Whether the path leads to another file now. Absent for a moment, between the two: not yet.
    fn was_rotated(&self) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), self.path.metadata()) else { return false };
        (own.dev(), own.ino()) != (there.dev(), there.ino())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_whole_once_each_and_across_a_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"old\n").unwrap();
        let mut follower = Follower::from_end(path.clone()).unwrap();
        assert_eq!(follower.new_lines().unwrap(), [""; 0]);
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(follower.new_lines().unwrap(), ["one"]);
        file.write_all(b"o\nthree\n").unwrap();
        std::fs::rename(&path, folder.path().join("x.log.1")).unwrap();
        assert_eq!(follower.new_lines().unwrap(), ["two", "three"]);
        assert_eq!(follower.new_lines().unwrap(), [""; 0], "no new file yet");
        std::fs::write(&path, "four\n").unwrap();
        assert_eq!(follower.new_lines().unwrap(), ["four"]);
    }
}
