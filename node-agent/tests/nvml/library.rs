//! A stand-in for libnvidia-ml.so.1, compiled by the tests of `src/source/nvml/driver.rs`: the calls that the reader makes,
//! for four devices that answer differently. With `--cfg no_driver`, initialising fails as without the kernel module.
//! Device 0 is whole; 1 is in MIG mode and has no error counters; 2 has no handle any more; 3 answers memory with a code
//! that no header knows. 0 and 1 have NVLink. The temperature is 30 and the number of readings so far, the power the number
//! of questions about pairs: what a session asks again, and what it does not. A call that is missing here
//! (`nvmlDeviceGetName`) is an old library's.
//! Source: nvml.h, return codes and structure versions.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

type Device = *mut c_void;

static READINGS: AtomicU32 = AtomicU32::new(0);
static PAIRS: AtomicU32 = AtomicU32::new(0);

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const DRIVER_NOT_LOADED: c_int = 9;
const GPU_IS_LOST: c_int = 15;
const ARGUMENT_VERSION_MISMATCH: c_int = 25;
const P2P_OK: c_uint = 0;
const P2P_NOT_SUPPORTED: c_uint = 5;
const CAPS_NVLINK: c_int = 2;
const TOPOLOGY_HOST_BRIDGE: c_uint = 30;

#[repr(C)]
pub struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: [c_uint; 2],
    bus_id: [c_char; 32],
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// A handle is the index plus one, so that it is never null.
fn index(device: Device) -> usize {
    device as usize - 1
}

fn write(text: &str, to: *mut c_char, bytes: usize) {
    assert!(text.len() < bytes);
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller gave room for `bytes` bytes, and the text with its end is no longer.
        unsafe { to.add(at).write(byte as c_char) }
    }
}

fn answer<T>(place: *mut T, value: T) -> c_int {
    // SAFETY: every caller of NVML gives a valid place for the answer.
    unsafe { place.write(value) }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    if cfg!(no_driver) { DRIVER_NOT_LOADED } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    READINGS.fetch_add(1, Ordering::Relaxed);
    answer(count, 4)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> c_int {
    if index == 2 { GPU_IS_LOST } else { answer(device, (index as usize + 1) as Device) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, bytes: c_uint) -> c_int {
    write(&format!("GPU-{}", index(device)), uuid, bytes as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, info: *mut PciInfo) -> c_int {
    let bus = 0xb0 + index(device);
    let mut bus_id = [0; 32];
    write(&format!("00000000:{bus:02X}:00.0"), bus_id.as_mut_ptr(), 32);
    let bus = bus as c_uint;
    answer(info, PciInfo { bus_id_legacy: [0; 16], domain: 0, bus, device: 0, ids: [0; 2], bus_id })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut Memory) -> c_int {
    // SAFETY: the caller gives a structure whose version field is set.
    let version = unsafe { (*memory).version };
    match (version >> 24, index(device)) {
        (2, 3) => 77,
        (2, _) => answer(memory, Memory { version, total: 1000, reserved: 60, free: 900, used: 40 }),
        _ => ARGUMENT_VERSION_MISMATCH,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(device: Device, now: *mut c_uint, later: *mut c_uint) -> c_int {
    answer(later, 0);
    answer(now, c_uint::from(index(device) == 1))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    kind: c_int,
    counter: c_int,
    errors: *mut c_ulonglong,
) -> c_int {
    const UNCORRECTED: c_int = 1;
    const VOLATILE: c_int = 0;
    let asked = c_ulonglong::from((kind, counter) == (UNCORRECTED, VOLATILE));
    if index(device) == 1 { NOT_SUPPORTED } else { answer(errors, asked * 6) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetP2PStatus(
    first: Device,
    second: Device,
    capability: c_int,
    status: *mut c_uint,
) -> c_int {
    PAIRS.fetch_add(1, Ordering::Relaxed);
    let linked = capability == CAPS_NVLINK && index(first) + index(second) == 1;
    answer(status, if linked { P2P_OK } else { P2P_NOT_SUPPORTED })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTopologyCommonAncestor(_: Device, _: Device, level: *mut c_uint) -> c_int {
    answer(level, TOPOLOGY_HOST_BRIDGE)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(_: Device, sensor: c_int, degrees: *mut c_uint) -> c_int {
    const CORE: c_int = 0;
    if sensor == CORE { answer(degrees, 30 + READINGS.load(Ordering::Relaxed)) } else { NOT_SUPPORTED }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerUsage(_: Device, milliwatts: *mut c_uint) -> c_int {
    answer(milliwatts, PAIRS.load(Ordering::Relaxed))
}

#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, busy: *mut Utilization) -> c_int {
    if index(device) == 1 { NOT_SUPPORTED } else { answer(busy, Utilization { gpu: 70, memory: 20 }) }
}
