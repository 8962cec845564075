//! Log files of bounded size, and the last lines of a process for error messages.
//! Never: fails or blocks its caller. A line that cannot be written (a full disk, a lost folder) is dropped and
//! counted, because whoever writes here also drains a child's pipe, and an undrained pipe stops the child.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file that grows past this is put aside; [`KEPT`] older ones stay.
const ROTATE_BYTES: u64 = 16 << 20;
const KEPT: u32 = 2;
/// Longer lines are cut into pieces, so that a child that never ends its line cannot fill our memory.
const LINE_BYTES: usize = 16 << 10;
/// Lines kept for messages such as "its last words were".
const TAIL_LINES: usize = 12;

/// One log, shared by the threads that write to it.
#[derive(Debug, Clone)]
pub(crate) struct Log(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    writer: Mutex<Writer>,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    rotate_bytes: u64,
    /// None = not open: the next line tries again.
    file: Option<File>,
    written: u64,
    tail: VecDeque<String>,
}

impl Log {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self::with_rotation(path, ROTATE_BYTES)
    }

    fn with_rotation(path: PathBuf, rotate_bytes: u64) -> Self {
        let writer = Writer { path, rotate_bytes, file: None, written: 0, tail: VecDeque::new() };
        Self(Arc::new(Inner { writer: Mutex::new(writer), dropped: AtomicU64::new(0) }))
    }

    pub(crate) fn write_line(&self, line: &str) {
        let mut writer = self.writer();
        if writer.tail.len() == TAIL_LINES {
            writer.tail.pop_front();
        }
        writer.tail.push_back(line.to_owned());
        if writer.append(line).is_err() {
            writer.file = None;
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Copies `source` to its end, telling `each` about every line.
    pub(crate) fn drain(&self, source: impl io::Read, mut each: impl FnMut(&str)) {
        let mut source = io::BufReader::new(source);
        let mut line = Vec::new();
        loop {
            line.clear();
            // A read error means that the pipe is gone, as its end does.
            let read = io::Read::take(&mut source, LINE_BYTES as u64).read_until(b'\n', &mut line);
            if !matches!(read, Ok(bytes) if bytes > 0) {
                return;
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            self.write_line(text);
            each(text);
        }
    }

    /// The last lines, for "why did it end?": where some are plain text they are the program's own answer, and the
    /// JSON lines among them are its daily log.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let writer = self.writer();
        let plain: Vec<&String> = writer.tail.iter().filter(|line| !line.starts_with('{')).collect();
        let words =
            if plain.iter().all(|line| line.is_empty()) { writer.tail.iter().collect() } else { plain };
        words.into_iter().cloned().collect()
    }

    /// Before a process starts anew: its predecessor's last words are not its own.
    pub(crate) fn forget_tail(&self) {
        self.writer().tail.clear();
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic while writing a log line leaves nothing half done that matters.
        self.0.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn append(&mut self, line: &str) -> io::Result<()> {
        if self.file.is_some() && self.written >= self.rotate_bytes {
            self.file = None;
            self.rotate()?;
        }
        if self.file.is_none() {
            let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            self.written = file.metadata()?.len();
            self.file = Some(file);
            if self.written >= self.rotate_bytes {
                return self.append(line);
            }
        }
        let file = self.file.as_mut().expect("opened above");
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        file.write_all(&bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// `x.log` becomes `x.log.1`, which becomes `x.log.2`; the oldest goes.
    fn rotate(&self) -> io::Result<()> {
        for age in (1..KEPT).rev() {
            match std::fs::rename(older(&self.path, age), older(&self.path, age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, older(&self.path, 1))
    }
}

fn older(path: &Path, age: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_never_outgrows_its_bound_and_keeps_the_newest_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        let log = Log::with_rotation(path.clone(), 1000);
        for n in 0..1000 {
            log.write_line(&format!("line {n}"));
        }
        let sizes: Vec<u64> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(sizes.len(), 3, "the log and {KEPT} older ones");
        assert!(sizes.iter().all(|size| *size < 1100), "{sizes:?}");
        assert!(std::fs::read_to_string(path).unwrap().ends_with("line 999\n"));
        assert_eq!(log.dropped(), 0);
    }

    #[test]
    fn a_log_found_too_large_is_put_aside_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        std::fs::write(&path, "z".repeat(2000)).unwrap();
        Log::with_rotation(path.clone(), 1000).write_line("new");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "new\n");
    }

    #[test]
    fn a_full_disk_drops_lines_and_counts_them_but_keeps_the_tail() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let log = Log::new(path);
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let mut seen = 0;
        log.drain(text.as_bytes(), |_| seen += 1);
        assert_eq!((seen, log.dropped()), (100, 100));
        assert_eq!(log.last_words().last().map(String::as_str), Some("line 99"));
    }

    #[test]
    fn the_last_words_are_what_is_plain_text_or_else_everything() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("x.log"));
        log.write_line(r#"{"message":"starting"}"#);
        log.write_line("");
        assert_eq!(log.last_words(), [r#"{"message":"starting"}"#, ""]);
        log.write_line("engine: the checkpoint is damaged");
        assert_eq!(log.last_words(), ["", "engine: the checkpoint is damaged"]);
    }

    #[test]
    fn an_endless_line_is_cut_into_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("x.log"));
        let mut longest = 0;
        log.drain("x".repeat(3 * LINE_BYTES).as_bytes(), |line| longest = longest.max(line.len()));
        assert_eq!(longest, LINE_BYTES);
    }
}
