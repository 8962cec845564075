//! Asks the driver of this machine, through nvml-wrapper.
//! Never: a wait without end (see `watchdog`), a change of the device's state.
//! The library is loaded at each reading: a driver that comes late, or is replaced, is found without a restart.

use std::path::Path;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TopologyLevel,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::watchdog::{Turn, watched};
use super::{
    Ancestor, Code, DeviceAnswers, DeviceMemory, Fault, MAX_DEVICES, NvmlAnswer, NvmlDevices, PairAnswers,
};

/// Loading takes up to a few seconds where nothing keeps the driver awake (no persistence mode).
const PATIENCE: Duration = Duration::from_secs(10);

static TURN: Turn = Turn::new();

/// Every answer of this machine's NVML, in bounded time.
pub(crate) fn ask_driver() -> NvmlAnswer {
    watched(&TURN, PATIENCE, || ask(None))?
}

/// `library`: another file than the loader's libnvidia-ml.so.1.
fn ask(library: Option<&Path>) -> NvmlAnswer {
    let mut nvml = Nvml::builder();
    if let Some(library) = library {
        nvml.lib_path(library.as_os_str());
    }
    let nvml = nvml.init().map_err(fault)?;
    let count = nvml.device_count().map_err(fault)?;
    if count > MAX_DEVICES {
        let detail = format!("it counts {count} devices, at most {MAX_DEVICES} are believed");
        return Err(Fault { code: Code::Unknown, detail: Some(detail) });
    }
    let handles: Vec<_> = (0..count).map(|index| nvml.device_by_index(index).map_err(fault)).collect();
    let devices = handles.iter().map(device_answers).collect();
    let mut pairs = Vec::new();
    for (b, second) in handles.iter().enumerate() {
        for (a, first) in handles[..b].iter().enumerate() {
            if let (Ok(first), Ok(second)) = (first, second) {
                pairs.push(pair_answers(&nvml, (a, first), (b, second)));
            }
        }
    }
    Ok(NvmlDevices { devices, pairs })
}

fn device_answers(handle: &Result<Device<'_>, Fault>) -> DeviceAnswers {
    DeviceAnswers {
        uuid: call(handle, Device::uuid),
        name: call(handle, Device::name),
        pci: call(handle, |device| device.pci_info().map(|info| info.bus_id)),
        memory: call(handle, Device::memory_info)
            .map(|memory| DeviceMemory { total: memory.total, used: memory.used }),
        // NVML_DEVICE_MIG_DISABLE is 0.
        mig: call(handle, Device::mig_mode).map(|mode| match mode.current {
            0 => node_facts::Mig::Off,
            _ => node_facts::Mig::On,
        }),
        uncorrected_errors: call(handle, |device| {
            device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
        }),
    }
}

fn pair_answers(
    nvml: &Nvml,
    (a, first): (usize, &Device<'_>),
    (b, second): (usize, &Device<'_>),
) -> PairAnswers {
    let nvlink = first.p2p_status(second, P2pCapabilitiesIndex::NvLink);
    PairAnswers {
        a,
        b,
        nvlink: nvlink.map(|status| matches!(status, P2pStatus::Ok)).map_err(fault),
        ancestor: nvml.topology_common_ancestor(first, second).map(ancestor).map_err(fault),
    }
}

fn call<'a, 'n, T>(
    handle: &'a Result<Device<'n>, Fault>,
    ask: impl FnOnce(&'a Device<'n>) -> Result<T, NvmlError>,
) -> Result<T, Fault> {
    handle.as_ref().map_err(Clone::clone).and_then(|device| ask(device).map_err(fault))
}

fn ancestor(level: TopologyLevel) -> Ancestor {
    match level {
        TopologyLevel::Internal => Ancestor::Internal,
        TopologyLevel::Single => Ancestor::Single,
        TopologyLevel::Multiple => Ancestor::Multiple,
        TopologyLevel::HostBridge => Ancestor::HostBridge,
        TopologyLevel::Node => Ancestor::Node,
        TopologyLevel::System => Ancestor::System,
    }
}

fn fault(error: NvmlError) -> Fault {
    let code = match &error {
        NvmlError::LibloadingError(error) if library_is_missing(&error.to_string()) => Code::LibraryNotFound,
        NvmlError::DriverNotLoaded => Code::DriverNotLoaded,
        NvmlError::LibRmVersionMismatch => Code::LibRmVersionMismatch,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => Code::FunctionNotFound,
        NvmlError::NoPermission => Code::NoPermission,
        NvmlError::NotSupported => Code::NotSupported,
        NvmlError::GpuLost => Code::GpuLost,
        NvmlError::ResetRequired => Code::ResetRequired,
        NvmlError::Timeout => Code::Timeout,
        NvmlError::Unknown => Code::Unknown,
        _ => return Fault { code: Code::Unknown, detail: Some(error.to_string()) },
    };
    code.into()
}

/// The loader's text is the only place that tells a missing library from one that does not load: it begins with the file
/// that was not found, and that may be a library which NVML itself needs.
fn library_is_missing(text: &str) -> bool {
    text.starts_with("libnvidia-ml.so") && text.contains("No such file or directory")
}

#[cfg(test)]
mod tests;
