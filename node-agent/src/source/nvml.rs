//! What NVML answers, call by call: a value, or the fault that NVML gave instead.
//! In: the driver (`driver`), or a scene's `nvml.yaml`. Out: [`NvmlAnswer`].
//! Never: one failing call that hides the answers of the others.

mod driver;
mod watchdog;

use std::fmt;

use node_facts::Reading;
use serde::Deserialize;

pub(crate) use driver::{Session, ask_driver};

/// No machine has more; a driver that says so is not to be believed.
pub(crate) const MAX_DEVICES: u32 = 128;

/// All devices, or why there is no NVML.
pub(crate) type NvmlAnswer = Result<NvmlDevices, Fault>;

#[derive(Debug, Clone, Default)]
pub(crate) struct NvmlDevices {
    /// In index order.
    pub(crate) devices: Vec<DeviceAnswers>,
    pub(crate) pairs: Vec<PairAnswers>,
}

#[derive(Debug, Clone)]
pub(crate) struct DeviceAnswers {
    pub(crate) uuid: Result<String, Fault>,
    pub(crate) name: Result<String, Fault>,
    /// As NVML writes it: `00000000:17:00.0`.
    pub(crate) pci: Result<String, Fault>,
    pub(crate) memory: Result<DeviceMemory, Fault>,
    pub(crate) mig: Result<node_facts::Mig, Fault>,
    /// Since the driver was loaded.
    pub(crate) uncorrected_errors: Result<u64, Fault>,
    pub(crate) sensors: Sensors,
}

/// What moves all the time; for dashboards, no plan looks at it.
#[derive(Debug, Clone)]
pub(crate) struct Sensors {
    /// Of the GPU's core, in degrees Celsius.
    pub(crate) temperature: Result<u32, Fault>,
    pub(crate) power_milliwatts: Result<u32, Fault>,
    /// Percent of time in which a kernel ran.
    pub(crate) busy_percent: Result<u32, Fault>,
    /// Percent of time in which memory was read or written.
    pub(crate) memory_busy_percent: Result<u32, Fault>,
}

impl Sensors {
    pub(crate) fn failed(fault: &Fault) -> Self {
        let failed = || Err(fault.clone());
        Sensors {
            temperature: failed(),
            power_milliwatts: failed(),
            busy_percent: failed(),
            memory_busy_percent: failed(),
        }
    }
}

/// In bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceMemory {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Two devices, by their index; `a < b`.
#[derive(Debug, Clone)]
pub(crate) struct PairAnswers {
    pub(crate) a: usize,
    pub(crate) b: usize,
    /// Whether they reach each other over NVLink, directly or through switches.
    pub(crate) nvlink: Result<bool, Fault>,
    pub(crate) ancestor: Result<Ancestor, Fault>,
}

/// Closest common ancestor on the PCI tree, as NVML names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Ancestor {
    Internal,
    Single,
    Multiple,
    HostBridge,
    Node,
    System,
}

/// A call that NVML did not answer with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    /// What the code does not say.
    pub(crate) detail: Option<String>,
}

/// NVML's return codes, by the names of nvml-wrapper; those that facts never depend on are `Unknown` with a detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Code {
    LibraryNotFound,
    DriverNotLoaded,
    LibRmVersionMismatch,
    FunctionNotFound,
    NoPermission,
    NotSupported,
    GpuLost,
    ResetRequired,
    Timeout,
    Unknown,
}

impl Fault {
    /// The device itself is gone, not only one of its values.
    pub(crate) fn device_is_lost(&self) -> bool {
        matches!(self.code, Code::GpuLost | Code::ResetRequired)
    }

    /// "Not supported" is an answer: there is none. Everything else leaves the value unknown.
    pub(crate) fn reading<T>(&self) -> Reading<T> {
        match self.code {
            Code::NotSupported => Reading::Absent(self.to_string()),
            Code::LibraryNotFound
            | Code::DriverNotLoaded
            | Code::LibRmVersionMismatch
            | Code::FunctionNotFound
            | Code::NoPermission
            | Code::GpuLost
            | Code::ResetRequired
            | Code::Timeout
            | Code::Unknown => Reading::Failed(self.to_string()),
        }
    }
}

impl From<Code> for Fault {
    fn from(code: Code) -> Self {
        Fault { code, detail: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.code {
            Code::LibraryNotFound => "no NVIDIA library (libnvidia-ml.so.1)",
            Code::DriverNotLoaded => "the NVIDIA driver is not loaded",
            Code::LibRmVersionMismatch => {
                "NVIDIA library and kernel driver have different versions; reboot or reload the driver"
            }
            Code::FunctionNotFound => "the NVIDIA library is too old for this call",
            Code::NoPermission => "NVML: no permission",
            Code::NotSupported => "NVML: not supported by this GPU",
            Code::GpuLost => "the GPU has fallen off the bus",
            Code::ResetRequired => "the GPU needs a reset",
            Code::Timeout => "NVML did not answer in time",
            // Either the driver's own "unknown error", or a code without a name here and its text.
            Code::Unknown => match &self.detail {
                Some(detail) => return write!(f, "NVML: {detail}"),
                None => "NVML: an internal driver error",
            },
        };
        match &self.detail {
            Some(detail) => write!(f, "{meaning} ({detail})"),
            None => f.write_str(meaning),
        }
    }
}
