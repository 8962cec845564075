//! What a plan chose, what it rejected and why: conditions, events and `fathom plan` are made from this.
//! Never: a second computation.

mod text;

use std::fmt::{self, Display, Formatter};

use engine_spec::Role;
use fathom_crds::conditions::Reason;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Rejected places that are listed; the rest is counted.
pub(crate) const MAX_REJECTED: usize = 32;

/// Notes that are kept.
const MAX_NOTES: usize = 32;

/// A plan with its explanation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    pub plan: Plan,
    pub report: Report,
}

impl Planned {
    /// Whether everything asked for has its place.
    pub fn is_feasible(&self) -> bool {
        self.report.refusals.is_empty()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What one replica of each role needs.
    pub sizes: Vec<SizeReport>,
    /// Why the spec fits nowhere; empty for a plan that can be carried out.
    pub refusals: Vec<Refusal>,
    /// Replicas that run and stay where they are. Places are looked at for the others alone.
    #[serde(default)]
    pub kept: u32,
    /// Places that could not take a replica, at most 32.
    pub rejected: Vec<Rejected>,
    pub rejected_total: u32,
    pub host_cache: Vec<HostCacheReport>,
    /// What a reader should know besides, at most 32.
    pub notes: Vec<String>,
    pub notes_total: u32,
}

impl Report {
    pub(crate) fn refuse(&mut self, reason: Reason, message: String) {
        self.refusals.push(Refusal { reason, message });
    }

    /// `describe` is called only for notes that are kept.
    pub(crate) fn note(&mut self, describe: impl FnOnce() -> String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(describe());
        }
        self.notes_total = self.notes_total.saturating_add(1);
    }

    /// `describe` is called only for places that are listed.
    pub(crate) fn reject(&mut self, describe: impl FnOnce() -> Rejected) {
        if self.rejected.len() < MAX_REJECTED {
            self.rejected.push(describe());
        }
        self.rejected_total = self.rejected_total.saturating_add(1);
    }
}

/// Needs of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SizeReport {
    pub role: Role,
    pub replicas: u32,
    pub gpus: u32,
    /// Weights on one rank.
    pub weight_bytes_per_rank: u64,
    /// Smallest GPU that can hold a rank and one request of the full context; absent on the CPU.
    pub gpu_memory_bytes: Option<u64>,
    /// Host memory without the host tier, and on the CPU with the smallest device pool.
    pub memory_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
}

/// A place that could not take a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    pub node: String,
    pub numa_node: Option<u32>,
    /// The roles that do not fit.
    pub roles: Vec<Role>,
    pub reason: RejectReason,
    pub message: String,
}

impl Rejected {
    /// `n3/numa1`, or `n3` for a whole machine.
    pub fn place(&self) -> String {
        place(&self.node, self.numa_node)
    }
}

pub(crate) fn place(node: &str, numa_node: Option<u32>) -> String {
    numa_node.map_or_else(|| node.to_owned(), |numa| format!("{node}/numa{numa}"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RejectReason {
    /// The facts do not say.
    Unknown,
    TooFewGpus,
    GpuMemory,
    TooFewCpus,
    Memory,
    /// It fits, and other replicas of this plan have taken it.
    Taken,
    /// Kubernetes says that the node is not Ready.
    NotReady,
    /// The node takes no new pods.
    Cordoned,
    /// The labels that the object asks for are not there.
    Selector,
    /// A taint that the object does not tolerate.
    Tainted,
    /// The facts are too old to place anything new.
    Stale,
    /// Kept away from this object for now.
    Excluded,
}

impl Display for RejectReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The host tier of one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostCacheReport {
    pub replica: String,
    /// Absent when as much as there is room for was asked.
    pub asked_bytes: Option<u64>,
    pub granted_bytes: u64,
    /// Granted bytes per byte of the device pool of one rank.
    pub ratio: f64,
    pub limited_by: HostCacheLimit,
    /// A sentence with the arithmetic.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HostCacheLimit {
    /// Granted what was asked.
    AsAsked,
    /// What the NUMA node may still promise.
    NumaHeadroom,
    /// The memory limit of the control group.
    CgroupLimit,
    /// Off: it would hold less than the device pool.
    BelowDevicePool,
    /// Off: the device pool lies in host memory already.
    OnCpu,
}

/// `112.6 GiB`: rounded down, so that a text never promises more than there is.
pub fn gib(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if bytes >= unit {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// `131,072`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
