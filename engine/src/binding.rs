//! Binds the process to the planned CPUs, and says how its memory follows.
//! In: the binding of the configuration. Out: a [`Report`] of what was asked and what holds.
//! Never: a refusal to start: a process on the wrong CPUs is slow, not wrong, and says so.
//! Called before any thread exists: threads inherit the binding. Memory is placed softly: Linux gives pages from the node
//! of the CPU that touches them first, so memory is on the planned node when all planned CPUs belong to it.
//! Source: sched_setaffinity(2), set_mempolicy(2) (MPOL_DEFAULT).

use std::collections::BTreeSet;
use std::path::Path;

use engine_spec::config::BindingConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// What was asked for and what holds.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `bound to 0-3`, `not asked`, or why not.
    pub cpus: String,
    pub memory: String,
    pub threads: usize,
}

/// Binds the calling thread, and with it every thread it starts.
pub fn bind(config: &BindingConfig) -> Report {
    let cpus = match &config.cpus {
        None => "not asked".to_owned(),
        Some(list) => match bind_cpus(list) {
            Ok(()) => format!("bound to {list}"),
            Err(why) => format!("not bound to {list}: {why}"),
        },
    };
    let memory = match config.memory_node {
        None => "not asked".to_owned(),
        Some(node) => memory_of(Path::new("/sys/devices/system/node"), node),
    };
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

fn bind_cpus(list: &str) -> Result<(), String> {
    let cpus = parse_cpu_list(list)?;
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|e| format!("the kernel refuses: {e}"))
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

fn memory_of(nodes: &Path, node: u32) -> String {
    let file = nodes.join(format!("node{node}/cpulist"));
    let Ok(list) = std::fs::read_to_string(&file) else {
        return format!("node {node} is not known here: memory is placed by first touch");
    };
    let (Ok(of_node), Ok(mine)) = (parse_cpu_list(&list), sched_getaffinity(None)) else {
        return format!("node {node}: its CPUs cannot be read; memory is placed by first touch");
    };
    let outside = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu) && !of_node.contains(cpu)).count();
    match outside {
        0 => format!("node {node} preferred: all CPUs of this process belong to it"),
        n => format!("node {node} not assured: {n} CPUs of this process are on other nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_list("0-2,7\n").unwrap(), BTreeSet::from([0, 1, 2, 7]));
        for bad in ["", "a", "1-", "3-1", "0-99999999999", "1,,2", "4294967296"] {
            assert!(parse_cpu_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_bound_is_said_and_nothing_breaks() {
        let config = BindingConfig { cpus: Some("1000".to_owned()), memory_node: Some(77), threads: Some(3) };
        let report = bind(&config);
        assert!(report.cpus.starts_with("not bound to 1000"), "{report:?}");
        assert!(report.memory.contains("not known"), "{report:?}");
        assert_eq!(report.threads, 3);
    }

    #[test]
    fn a_process_finds_itself_on_the_cpus_asked_for() {
        // In a thread of its own: the binding must not reach other tests.
        let handle = std::thread::spawn(|| {
            let report = bind(&BindingConfig { cpus: Some("0".to_owned()), ..BindingConfig::default() });
            (report.cpus, sched_getaffinity(None).unwrap().count())
        });
        let (cpus, count) = handle.join().unwrap();
        assert_eq!((cpus.as_str(), count), ("bound to 0", 1));
    }
}
