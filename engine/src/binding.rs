//! Binds the process to the planned CPUs and NUMA node, and says what holds.
//! In: the binding of the configuration. Out: a [`Report`] of what was asked, what was achieved, and why not.
//! Never: a refusal to start: a process on the wrong CPUs is slow, not wrong. One whose binding is required stays up
//! and unready instead, and says why.
//! Called before any thread exists: threads inherit affinity and memory policy.
//! Sources: sched_setaffinity(2), set_mempolicy(2), numa(7).

mod memory;
mod numa_maps;

use std::collections::BTreeSet;

use engine_spec::config::BindingConfig;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

pub use numa_maps::{PagesByNode, pages_by_node};

/// What was asked for and what holds.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub cpus: Bound,
    pub memory: Bound,
    pub threads: usize,
}

/// One resource.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Bound {
    /// As the configuration says it.
    pub asked: Option<String>,
    pub state: State,
    /// Why it is not achieved, and what to do.
    pub error: Option<String>,
    /// Without it the process is never ready.
    pub required: bool,
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum State {
    Achieved,
    Refused,
    /// It was not refused, and it cannot be seen whether it holds.
    Unknown,
    NotAsked,
}

impl State {
    /// As `/server_info` and metrics write it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Achieved => "achieved",
            State::Refused => "refused",
            State::Unknown => "unknown",
            State::NotAsked => "notAsked",
        }
    }
}

impl Bound {
    fn not_asked() -> Self {
        Self { asked: None, state: State::NotAsked, error: None, required: false }
    }

    fn of(asked: String, required: bool, result: Result<(), (State, String)>) -> Self {
        let (state, error) = match result {
            Ok(()) => (State::Achieved, None),
            Err((state, why)) => (state, Some(why)),
        };
        Self { asked: Some(asked), state, error, required }
    }

    /// One line for the log.
    pub fn line(&self) -> String {
        let asked = self.asked.as_deref().unwrap_or_default();
        match &self.error {
            Some(why) => format!("{asked}: {}: {why}", self.state.as_str()),
            None if asked.is_empty() => self.state.as_str().to_owned(),
            None => format!("{asked}: {}", self.state.as_str()),
        }
    }
}

impl Report {
    /// Nothing asked.
    pub fn unbound(threads: usize) -> Self {
        Self { cpus: Bound::not_asked(), memory: Bound::not_asked(), threads }
    }

    /// Both resources by name.
    pub fn resources(&self) -> [(&'static str, &Bound); 2] {
        [("cpus", &self.cpus), ("memory", &self.memory)]
    }

    /// Why the process may not become ready.
    pub fn unmet(&self) -> Option<String> {
        let unmet = |(name, bound): (&str, &Bound)| {
            let missing = bound.required && bound.state != State::Achieved && bound.state != State::NotAsked;
            missing.then(|| {
                let asked = bound.asked.as_deref().unwrap_or_default();
                let why = bound.error.as_deref().unwrap_or("it cannot be seen whether it holds");
                format!("the binding of {name} to {asked} is required and {}: {why}", bound.state.as_str())
            })
        };
        let unmet: Vec<String> = self.resources().into_iter().filter_map(unmet).collect();
        (!unmet.is_empty()).then(|| unmet.join("; "))
    }
}

/// Binds the calling thread, and with it every thread it starts.
pub fn bind(config: &BindingConfig) -> Report {
    let cpus = config
        .cpus
        .as_ref()
        .map_or_else(Bound::not_asked, |list| Bound::of(list.clone(), config.cpus_required, bind_cpus(list)));
    let memory = config.memory_node.map_or_else(Bound::not_asked, |node| {
        let bound = memory::bind(node, config.memory_required).map_err(|why| (State::Refused, why));
        Bound::of(format!("node {node}"), config.memory_required, bound)
    });
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = config.threads.map_or(available, |n| n as usize);
    Report { cpus, memory, threads }
}

/// Raises the soft limit of open files to the hard one: the usual 1,024 would end at as many connections, or at half as
/// many streams of a router.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, current = limit.current, "the limit of open files stays as it is");
    }
}

/// The kernel takes what it can of a list without a word, so the result is read back.
fn bind_cpus(list: &str) -> Result<(), (State, String)> {
    let cpus = parse_cpu_list(list).map_err(|why| (State::Refused, why))?;
    let mut set = CpuSet::new();
    for cpu in &cpus {
        set.set(*cpu);
    }
    sched_setaffinity(None, &set).map_err(|errno| (State::Refused, cpu_error(errno)))?;
    let now = sched_getaffinity(None)
        .map_err(|errno| (State::Unknown, format!("the CPUs of this process cannot be read: {errno}")))?;
    let has: BTreeSet<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| now.is_set(*cpu)).collect();
    if has == cpus {
        return Ok(());
    }
    let (has, all) = (has.len(), cpus.len());
    let why = format!("only {has} of these {all} CPUs exist here or are allowed to this process");
    Err((State::Refused, why))
}

fn cpu_error(errno: Errno) -> String {
    match errno {
        Errno::INVAL => {
            "EINVAL: none of these CPUs exists here or is allowed to this process; the plan was made for another \
             machine, or the cgroup's cpuset excludes them"
                .to_owned()
        }
        Errno::PERM => "EPERM: sched_setaffinity is not allowed to this process; its seccomp profile must let it \
                        through"
            .to_owned(),
        errno => format!("the kernel refuses: {errno}"),
    }
}

/// `0-3,8`: CPU numbers below what the kernel's set can hold.
pub fn parse_cpu_list(list: &str) -> Result<BTreeSet<usize>, String> {
    let mut cpus = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let cpu: usize =
                text.trim().parse().map_err(|_| format!("`{part}` is no CPU or range of CPUs"))?;
            let most = CpuSet::MAX_CPU;
            if cpu < most { Ok(cpu) } else { Err(format!("CPU {cpu} is beyond {}", most - 1)) }
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}` runs backwards"));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests;
