//! The folder in which a local cluster lives: `state.json`, `plan.json`, `config/`, `logs/`, and a lock.
//! Files are replaced whole (written beside, then renamed), so a reader never sees half of one.
//! The lock decides whether a supervisor is alive: the kernel drops it with its holder, so no crash leaves it behind.
//! Process ids are only believed together with the process's start time, because ids are used again.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine_spec::config::Role;
use serde::{Deserialize, Serialize};

use super::launch::ProcessSpec;
use super::supervise::machine::{Phase, ProcessState};

/// A killed process keeps its lock until the last of its threads is gone; its children may be dead before.
const DYING: Duration = Duration::from_secs(5);
/// Its log lies beside those of the processes.
pub(crate) const SUPERVISOR: &str = "supervisor";

#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("cannot {attempt} {}", .path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not readable: {detail}; `fathom local up` writes it anew", .path.display())]
    Parse { path: PathBuf, detail: String },
    #[error("`{name}` is already running{}: `fathom local down {name}` ends it", held_by(.by.as_ref()))]
    Held { name: String, by: Option<ProcessIdentity> },
    #[error("a name is a DNS label: 1 to 40 of a-z, 0-9 and `-`, starting with a letter; found `{0}`")]
    Name(String),
}

fn held_by(by: Option<&ProcessIdentity>) -> String {
    by.map(|by| format!(" (process {})", by.pid)).unwrap_or_default()
}

/// What `state.json` holds, for `status`, `down` and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterState {
    pub(crate) name: String,
    pub(crate) phase: Phase,
    /// The OpenAI-compatible address, once the router listens.
    pub(crate) endpoint: Option<String>,
    /// Served model name.
    pub(crate) model: String,
    /// Why it is not as it should be, for people.
    pub(crate) message: Option<String>,
    pub(crate) supervisor: ProcessIdentity,
    /// An orderly end takes at most this long.
    pub(crate) stop_within_ms: u64,
    pub(crate) processes: Vec<ProcessStatus>,
}

impl ClusterState {
    /// Corrects what a supervisor that was killed left behind; says whether there was anything to correct.
    /// Its processes died with it.
    pub(crate) fn mark_dead(&mut self) -> bool {
        if self.phase == Phase::Stopped {
            return false;
        }
        self.phase = Phase::Stopped;
        for process in &mut self.processes {
            process.pid = None;
            if process.state != ProcessState::Failed {
                process.state = ProcessState::Stopped;
            }
        }
        true
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessStatus {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) state: ProcessState,
    pub(crate) pid: Option<u32>,
    pub(crate) restarts: u32,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    /// How it ended the last time: `exit code 2`, `signal 9`.
    pub(crate) last_exit: Option<String>,
    /// Its last words, when it has exited.
    pub(crate) last_lines: Vec<String>,
    /// Log lines that could not be written.
    pub(crate) dropped_log_lines: u64,
}

/// A process, told apart from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    /// Clock ticks from boot to its start.
    start_ticks: u64,
}

impl ProcessIdentity {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, start_ticks: start_ticks(&stat)? })
    }

    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, start_ticks: 0 })
    }

    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

/// The 22nd field of /proc/PID/stat; None for a zombie. The 2nd, the program's name, may itself hold blanks and `)`.
/// Source: proc_pid_stat(5).
fn start_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(22 - 3 - 1)?.parse().ok()
}

/// Held as long as a supervisor, or the `up` that prepares for it, is alive.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// For the supervisor in the background, which goes on holding it as its standard input.
    pub(crate) fn hand_over(&self) -> io::Result<File> {
        self.0.try_clone()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ClusterFolder {
    pub(crate) name: String,
    root: PathBuf,
}

impl ClusterFolder {
    pub(crate) fn new(state_root: &Path, name: &str) -> Result<Self, StateError> {
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let valid = name.len() <= 40
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && !name.ends_with('-')
            && name.chars().all(label);
        if !valid {
            return Err(StateError::Name(name.to_owned()));
        }
        Ok(Self { name: name.to_owned(), root: state_root.join(name) })
    }

    /// All clusters that ever ran here, by name.
    pub(crate) fn all(state_root: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(state_root).into_iter().flatten().flatten();
        let mut found: Vec<Self> = entries
            .filter_map(|entry| Self::new(state_root, entry.file_name().to_str()?).ok())
            .filter(|folder| folder.state_path().exists())
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    pub(crate) fn log_path(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn config_path(&self, process: &str) -> PathBuf {
        self.root.join("config").join(format!("{process}.json"))
    }

    fn state_path(&self) -> PathBuf {
        self.root.join("state.json")
    }

    /// Takes the cluster for this process, or says who has it.
    pub(crate) fn lock(&self) -> Result<Lock, StateError> {
        create_folder(&self.root)?;
        let path = self.root.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io_error("open", &path))?;
        self.claim(file, &path)
    }

    /// The supervisor's side of [`Lock::hand_over`]: the lock came as standard input.
    pub(crate) fn lock_from_stdin(&self) -> Result<Lock, StateError> {
        let path = self.root.join("lock");
        let inherited = || {
            let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
            let (given, expected) = (file.metadata()?, std::fs::metadata(&path)?);
            let same = (given.dev(), given.ino()) == (expected.dev(), expected.ino());
            same.then_some(file).ok_or_else(|| io::Error::other("`fathom local up` starts this, nobody else"))
        };
        let file = inherited().map_err(io_error("take over", &path))?;
        self.claim(file, &path)
    }

    fn claim(&self, mut file: File, path: &Path) -> Result<Lock, StateError> {
        let deadline = Instant::now() + DYING;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(io_error("lock", path)(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let by = read_holder(&mut file);
            let dying = by.is_some_and(|by| !by.is_alive());
            if !dying || Instant::now() >= deadline {
                return Err(StateError::Held { name: self.name.clone(), by });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let own = serde_json::to_string(&ProcessIdentity::own()).expect("two numbers");
        // The lock holds without this; the id only helps people.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(own.as_bytes()));
        Ok(Lock(file))
    }

    /// The supervisor (or the `up` before it) that is alive; asks without touching the lock, so it disturbs nobody.
    pub(crate) fn holder(&self) -> Option<ProcessIdentity> {
        let by_lock = File::open(self.root.join("lock")).ok().and_then(|mut file| read_holder(&mut file));
        // On a full disk the lock's holder may not have left its identity there.
        let by_state = || self.read_state().ok().flatten().map(|state| state.supervisor);
        by_lock.filter(ProcessIdentity::is_alive).or_else(|| by_state().filter(ProcessIdentity::is_alive))
    }

    /// What the last supervisor left or the present one wrote; None if there never was one.
    pub(crate) fn read_state(&self) -> Result<Option<ClusterState>, StateError> {
        let path = self.state_path();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let parsed = serde_json::from_str(&text);
        parsed.map(Some).map_err(|error| StateError::Parse { path, detail: error.to_string() })
    }

    pub(crate) fn write_state(&self, state: &ClusterState) -> Result<(), StateError> {
        write_json(&self.state_path(), state)
    }

    /// Lays out the folder for a new run. Logs of earlier runs stay.
    pub(crate) fn prepare(&self, plan: &impl Serialize, specs: &[ProcessSpec]) -> Result<(), StateError> {
        create_folder(&self.logs())?;
        let config = self.root.join("config");
        match std::fs::remove_dir_all(&config) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("clear", &config)(error));
            }
            _ => create_folder(&config)?,
        }
        write_json(&self.root.join("plan.json"), plan)?;
        specs.iter().try_for_each(|spec| self.write_config(spec))
    }

    pub(crate) fn write_config(&self, spec: &ProcessSpec) -> Result<(), StateError> {
        write_json(&self.config_path(&spec.name), &spec.config)
    }

    /// The processes as [`Self::prepare`] laid them down, by name.
    pub(crate) fn read_configs(&self) -> Result<Vec<ProcessSpec>, StateError> {
        let folder = self.root.join("config");
        let mut specs = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io_error("read", &folder))? {
            let path = entry.map_err(io_error("read", &folder))?.path();
            let Some(name) = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".json")) else {
                continue;
            };
            let text = std::fs::read_to_string(&path).map_err(io_error("read", &path))?;
            let config = serde_json::from_str(&text)
                .map_err(|error| StateError::Parse { path: path.clone(), detail: error.to_string() })?;
            specs.push(ProcessSpec { name: name.to_owned(), config });
        }
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(specs)
    }
}

fn read_holder(file: &mut File) -> Option<ProcessIdentity> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn create_folder(path: &Path) -> Result<(), StateError> {
    std::fs::create_dir_all(path).map_err(io_error("create folder", path))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StateError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let beside = PathBuf::from(name);
    let write = || {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        io_error("write", path)(error)
    })
}

fn io_error(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { attempt, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(root: &tempfile::TempDir) -> ClusterFolder {
        ClusterFolder::new(root.path(), "needle").unwrap()
    }

    fn state() -> ClusterState {
        ClusterState {
            name: "needle".to_owned(),
            phase: Phase::Ready,
            endpoint: None,
            model: "needle".to_owned(),
            message: None,
            supervisor: ProcessIdentity::own(),
            stop_within_ms: 1,
            processes: Vec::new(),
        }
    }

    #[test]
    fn a_second_lock_is_refused_with_the_holders_id_and_a_dropped_one_is_free() {
        let root = tempfile::tempdir().unwrap();
        let held = folder(&root).lock().unwrap();
        let error = folder(&root).lock().unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        let handed_over = held.hand_over().unwrap();
        drop(held);
        assert!(folder(&root).lock().is_err(), "the lock lives on where it was handed to");
        drop(handed_over);
        folder(&root).lock().unwrap();
    }

    #[test]
    fn names_that_could_leave_the_folder_are_refused() {
        let root = Path::new("/s");
        for bad in ["", "..", "a/b", "A", "1a", "a-", &"a".repeat(41), "ä"] {
            assert!(matches!(ClusterFolder::new(root, bad), Err(StateError::Name(_))), "{bad}");
        }
        for good in ["a", "flash-2", &"a".repeat(40)] {
            ClusterFolder::new(root, good).unwrap();
        }
    }

    #[test]
    fn a_state_is_read_as_written_and_a_damaged_one_is_named() {
        let root = tempfile::tempdir().unwrap();
        let folder = folder(&root);
        assert_eq!(folder.read_state().unwrap(), None);
        create_folder(&folder.root).unwrap();
        folder.write_state(&state()).unwrap();
        assert_eq!(folder.read_state().unwrap(), Some(state()));
        assert_eq!(ClusterFolder::all(root.path()).len(), 1);
        std::fs::write(folder.state_path(), "{").unwrap();
        let error = folder.read_state().unwrap_err().to_string();
        assert!(error.contains("state.json"), "{error}");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.json");
        write_json(&path, &1).unwrap();
        std::os::unix::fs::symlink("/dev/full", root.path().join("x.json.new")).unwrap();
        assert!(write_json(&path, &2).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_process_id_with_another_start_time_is_another_process() {
        let own = ProcessIdentity::own();
        assert!(own.is_alive());
        assert!(!ProcessIdentity { start_ticks: own.start_ticks + 1, ..own }.is_alive());
    }

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let fields = "S 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4711 100 200";
        assert_eq!(start_ticks(&format!("7 (a b) c) {fields}")), Some(4711));
        assert_eq!(start_ticks(&format!("7 (x) Z{}", &fields[1..])), None);
        assert_eq!(start_ticks("7 (x"), None);
    }
}
