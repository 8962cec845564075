//! Asks the driver of this machine, through nvml-wrapper.
//! Never: a wait without end (see `watchdog`), a change of the device's state.
//! A single reading loads the library and lets it go. A session keeps it loaded, since loading takes longer than asking; it
//! loads anew after any failure of the whole, so a driver that comes late, or is replaced, is found without a restart.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::watchdog::{Turn, watched};
use super::{
    Ancestor, Code, DeviceAnswers, DeviceMemory, Fault, MAX_DEVICES, NvmlAnswer, NvmlDevices, PairAnswers,
    Sensors,
};

/// Loading takes up to a few seconds where nothing keeps the driver awake (no persistence mode).
const PATIENCE: Duration = Duration::from_secs(10);

static TURN: Turn = Turn::new();

/// Every answer of this machine's NVML, in bounded time.
pub(crate) fn ask_driver() -> NvmlAnswer {
    watched(&TURN, PATIENCE, || ask(None))?
}

/// A driver that is asked again and again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Session {
    // Held only by a call in the watchdog's turn, so it is never waited for.
    loaded: Arc<Mutex<Option<Loaded>>>,
}

#[derive(Debug)]
struct Loaded {
    nvml: Nvml,
    /// Links between devices do not move while the devices are the same.
    pairs: Option<KnownPairs>,
}

#[derive(Debug)]
struct KnownPairs {
    uuids: Vec<Option<String>>,
    answers: Vec<PairAnswers>,
}

impl Session {
    /// Every answer, in bounded time. Blocks.
    pub(crate) fn ask(&self) -> NvmlAnswer {
        let loaded = self.loaded.clone();
        watched(&TURN, PATIENCE, move || {
            ask_loaded(&mut loaded.lock().unwrap_or_else(PoisonError::into_inner), None)
        })?
    }
}

fn ask_loaded(loaded: &mut Option<Loaded>, library: Option<&Path>) -> NvmlAnswer {
    let session = match loaded.take() {
        Some(session) => session,
        None => Loaded { nvml: load(library)?, pairs: None },
    };
    let session = loaded.insert(session);
    let answer = ask_all(&session.nvml, &mut session.pairs);
    let useless = |devices: &NvmlDevices| {
        !devices.devices.is_empty() && devices.devices.iter().all(|device| device.uuid.is_err())
    };
    if answer.as_ref().map_or(true, useless) {
        *loaded = None;
    }
    answer
}

/// `library`: another file than the loader's libnvidia-ml.so.1.
fn ask(library: Option<&Path>) -> NvmlAnswer {
    ask_loaded(&mut None, library)
}

fn load(library: Option<&Path>) -> Result<Nvml, Fault> {
    let mut nvml = Nvml::builder();
    if let Some(library) = library {
        nvml.lib_path(library.as_os_str());
    }
    nvml.init().map_err(fault)
}

fn ask_all(nvml: &Nvml, known: &mut Option<KnownPairs>) -> NvmlAnswer {
    let count = nvml.device_count().map_err(fault)?;
    if count > MAX_DEVICES {
        let detail = format!("it counts {count} devices, at most {MAX_DEVICES} are believed");
        return Err(Fault { code: Code::Unknown, detail: Some(detail) });
    }
    let handles: Vec<_> = (0..count).map(|index| nvml.device_by_index(index).map_err(fault)).collect();
    let devices: Vec<DeviceAnswers> = handles.iter().map(device_answers).collect();
    let uuids: Vec<_> = devices.iter().map(|device| device.uuid.clone().ok()).collect();
    let known = match known.take() {
        Some(pairs) if pairs.uuids == uuids => known.insert(pairs),
        _ => known.insert(KnownPairs { answers: all_pairs(nvml, &handles), uuids }),
    };
    Ok(NvmlDevices { devices, pairs: known.answers.clone() })
}

fn all_pairs(nvml: &Nvml, handles: &[Result<Device<'_>, Fault>]) -> Vec<PairAnswers> {
    let mut pairs = Vec::new();
    for (b, second) in handles.iter().enumerate() {
        for (a, first) in handles[..b].iter().enumerate() {
            if let (Ok(first), Ok(second)) = (first, second) {
                pairs.push(pair_answers(nvml, (a, first), (b, second)));
            }
        }
    }
    pairs
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
        sensors: sensors(handle),
    }
}

fn sensors(handle: &Result<Device<'_>, Fault>) -> Sensors {
    let busy = call(handle, Device::utilization_rates);
    Sensors {
        temperature: call(handle, |device| device.temperature(TemperatureSensor::Gpu)),
        power_milliwatts: call(handle, Device::power_usage),
        busy_percent: busy.as_ref().map(|busy| busy.gpu).map_err(Clone::clone),
        memory_busy_percent: busy.map(|busy| busy.memory),
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
