//! GPUs: NVML's answers about each, joined with what the kernel says of its PCI device.
//! In: a sample, the NUMA nodes. Out: GPUs in index order.
//! Never: a GPU without a uuid (everything is keyed by it; a note counts those), NUMA node 0 for "-1".

use std::collections::BTreeMap;

use node_facts::{Gpu, GpuHealth, NumaNode, Reading};

use super::{Notes, cpulist, excerpt, pci};
use crate::collect::Sample;
use crate::source::nvml::{Code, DeviceAnswers, Fault};
use crate::source::sysfs::PciFiles;

type NumaNodes = Reading<BTreeMap<u32, NumaNode>>;

pub(super) fn gpus(sample: &Sample, numa: &NumaNodes, notes: &mut Notes) -> Reading<Vec<Gpu>> {
    let on_bus = sample.gpus_on_bus.value().copied().unwrap_or(0);
    let gpus = match &sample.nvml {
        Ok(answers) => {
            let devices = (0..).zip(&answers.devices);
            let gpus = devices.filter_map(|(index, device)| gpu(index, device, sample, numa, notes));
            Reading::Value(gpus.collect::<Vec<_>>())
        }
        Err(fault) => match fault.code {
            Code::LibraryNotFound => Reading::Absent(fault.to_string()),
            // The library alone comes with many images.
            Code::DriverNotLoaded if sample.gpus_on_bus == Reading::Value(0) => {
                Reading::Absent(format!("{fault}, and the PCI bus shows no NVIDIA GPU"))
            }
            _ => Reading::Failed(fault.to_string()),
        },
    };
    let usable = gpus.value().map_or(0, Vec::len);
    if usable < on_bus {
        notes.add(format!("the PCI bus shows {on_bus} NVIDIA GPUs, NVML tells of {usable}"));
    }
    gpus
}

fn gpu(
    index: u32,
    device: &DeviceAnswers,
    sample: &Sample,
    numa: &NumaNodes,
    notes: &mut Notes,
) -> Option<Gpu> {
    let uuid = match &device.uuid {
        Ok(uuid) => uuid.clone(),
        Err(fault) => {
            notes.add(format!("GPU {index} is left out, its uuid is unknown: {fault}"));
            return None;
        }
    };
    let pci = match device.pci.as_ref().map(|text| pci::address(text)) {
        Ok(Ok(address)) => Reading::Value(address),
        Ok(Err(error)) => Reading::Failed(error.to_string()),
        Err(fault) => fault.reading(),
    };
    let numa_node = match &pci {
        Reading::Value(address) => match sample.pci.get(address) {
            Some(files) => numa_node(index, files, numa, notes),
            None => Reading::Failed(format!("PCI device {address} was not read")),
        },
        Reading::Absent(reason) | Reading::Failed(reason) => {
            Reading::Failed(format!("its PCI address is unknown: {reason}"))
        }
    };
    Some(Gpu {
        uuid,
        index,
        name: reading(&device.name),
        pci,
        numa_node,
        memory_total: reading(&device.memory).map(|memory| memory.total),
        memory_used: reading(&device.memory).map(|memory| memory.used),
        mig: reading(&device.mig),
        health: health(device),
    })
}

fn reading<T: Clone>(answer: &Result<T, Fault>) -> Reading<T> {
    answer.as_ref().map_or_else(Fault::reading, |value| Reading::Value(value.clone()))
}

/// The node that the kernel names. Firmware often names none (-1): then it is the only node there is, or the one that all
/// of the device's local CPUs belong to; a note says that it was inferred.
fn numa_node(index: u32, files: &PciFiles, numa: &NumaNodes, notes: &mut Notes) -> Reading<u32> {
    if let Reading::Absent(reason) = numa {
        return Reading::Absent(reason.clone());
    }
    let named = files.numa_node.parse(|text| {
        let number = text.trim().parse::<i64>().ok().filter(|&number| number >= -1);
        match (number, numa) {
            (None, _) => Err(format!("expected a NUMA node or -1, found {:?}", excerpt(text.trim()))),
            (Some(-1), _) => Ok(None),
            (Some(number), numa) => match (u32::try_from(number), numa) {
                (Ok(number), Reading::Value(nodes)) if nodes.contains_key(&number) => Ok(Some(number)),
                (Ok(number), Reading::Failed(_)) => Ok(Some(number)),
                _ => Err(format!("node {number} is not among the machine's NUMA nodes")),
            },
        }
    });
    match named {
        Reading::Value(Some(number)) => Reading::Value(number),
        Reading::Value(None) => match inferred_node(files, numa) {
            Ok((number, because)) => {
                notes.add(format!("GPU {index}: the kernel names no NUMA node (-1); {because}"));
                Reading::Value(number)
            }
            Err(reason) => Reading::Absent(format!("the kernel names no NUMA node (-1), and {reason}")),
        },
        Reading::Absent(reason) => Reading::Absent(reason),
        Reading::Failed(reason) => Reading::Failed(reason),
    }
}

/// The node of a device that the kernel names none for, and why it must be this one.
fn inferred_node(files: &PciFiles, numa: &NumaNodes) -> Result<(u32, String), String> {
    let nodes = numa.value().ok_or("the NUMA nodes are unknown")?;
    if let (Some(only), 1) = (nodes.keys().next(), nodes.len()) {
        return Ok((*only, format!("the machine has only node {only}")));
    }
    let local = match files.local_cpulist.parse(cpulist::parse) {
        Reading::Value(cpus) => cpus,
        Reading::Absent(reason) | Reading::Failed(reason) => return Err(reason),
    };
    let mut holders = Vec::new();
    for (number, node) in nodes {
        let cpus = node.cpus.value().ok_or_else(|| format!("the CPUs of NUMA node {number} are unknown"))?;
        if local.iter().any(|cpu| cpus.binary_search(cpu).is_ok()) {
            holders.push(*number);
        }
    }
    match holders[..] {
        [number] => Ok((number, format!("its local CPUs are all on node {number}"))),
        [] => Err("its local CPUs are on no node".to_owned()),
        _ => Err(format!("its local CPUs are on {} nodes", holders.len())),
    }
}

/// Lost: the device says so in any answer, or its memory cannot be trusted until a reset. A GPU without error counters is
/// healthy when its memory answers.
fn health(device: &DeviceAnswers) -> Reading<GpuHealth> {
    let faults = [
        device.memory.as_ref().err(),
        device.uncorrected_errors.as_ref().err(),
        device.mig.as_ref().err(),
        device.name.as_ref().err(),
        device.pci.as_ref().err(),
    ];
    if let Some(lost) = faults.into_iter().flatten().find(|fault| fault.device_is_lost()) {
        return Reading::Value(GpuHealth::Lost { reason: lost.to_string() });
    }
    match (&device.uncorrected_errors, &device.memory) {
        (Ok(errors @ 1..), _) => {
            let reason = format!("{errors} uncorrected memory errors since the driver was loaded; reset it");
            Reading::Value(GpuHealth::Lost { reason })
        }
        (_, Err(fault)) => Reading::Failed(fault.to_string()),
        (Ok(0), Ok(_)) => Reading::Value(GpuHealth::Healthy),
        (Err(fault), Ok(_)) if fault.code == Code::NotSupported => Reading::Value(GpuHealth::Healthy),
        (Err(fault), Ok(_)) => Reading::Failed(format!("its error counters are unknown: {fault}")),
    }
}
