//! `nvml.yaml` of a scene: what NVML answers there.
//! In: either `error:` with the code that loading NVML gives, or `devices:` in index order and `pairs:` where NVML says more
//! than "no NVLink". A value that a device lacks is answered with the code `otherwise` names (`NotSupported` unless said).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::source::nvml::{
    Ancestor, Code, DeviceAnswers, DeviceMemory, Fault, MAX_DEVICES, NvmlAnswer, NvmlDevices, PairAnswers,
    Sensors,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NvmlFile {
    error: Option<Code>,
    devices: Option<Vec<DeviceLines>>,
    #[serde(default)]
    pairs: Vec<PairLines>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct DeviceLines {
    uuid: Option<String>,
    name: Option<String>,
    pci: Option<String>,
    memory: Option<DeviceMemory>,
    mig: Option<MigLine>,
    uncorrected_errors: Option<u64>,
    temperature: Option<u32>,
    power_milliwatts: Option<u32>,
    busy_percent: Option<u32>,
    memory_busy_percent: Option<u32>,
    #[serde(default = "not_supported")]
    otherwise: Code,
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum MigLine {
    Off,
    On,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PairLines {
    gpus: [usize; 2],
    nvlink: Option<bool>,
    ancestor: Option<Ancestor>,
}

fn not_supported() -> Code {
    Code::NotSupported
}

pub(super) fn parse(text: &str) -> Result<NvmlAnswer, String> {
    let file: NvmlFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    match (file.error, file.devices) {
        (Some(code), None) if file.pairs.is_empty() => Ok(Err(Fault::from(code))),
        (None, Some(devices)) if devices.len() <= MAX_DEVICES as usize => {
            check_uuids(&devices)?;
            let pairs = pairs(&devices, &file.pairs)?;
            Ok(Ok(NvmlDevices { devices: devices.into_iter().map(answers).collect(), pairs }))
        }
        (None, Some(devices)) => {
            Err(format!("expected at most {MAX_DEVICES} devices, found {}", devices.len()))
        }
        (Some(_), _) => Err("expected error: alone, found devices: or pairs: too".to_owned()),
        (None, None) => Err("expected error: or devices:, found neither".to_owned()),
    }
}

/// Everything is keyed by uuid; NVML never gives one twice, a copied paragraph does.
fn check_uuids(devices: &[DeviceLines]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for uuid in devices.iter().filter_map(|device| device.uuid.as_deref()) {
        if uuid.is_empty() || !seen.insert(uuid) {
            return Err(format!("expected a uuid of its own for each device, found {uuid:?}"));
        }
    }
    Ok(())
}

fn answers(device: DeviceLines) -> DeviceAnswers {
    let otherwise = Fault::from(device.otherwise);
    DeviceAnswers {
        uuid: device.uuid.ok_or(otherwise.clone()),
        name: device.name.ok_or(otherwise.clone()),
        pci: device.pci.ok_or(otherwise.clone()),
        memory: device.memory.ok_or(otherwise.clone()),
        mig: device.mig.ok_or(otherwise.clone()).map(|mig| match mig {
            MigLine::Off => node_facts::Mig::Off,
            MigLine::On => node_facts::Mig::On,
        }),
        uncorrected_errors: device.uncorrected_errors.ok_or(otherwise.clone()),
        sensors: Sensors {
            temperature: device.temperature.ok_or(otherwise.clone()),
            power_milliwatts: device.power_milliwatts.ok_or(otherwise.clone()),
            busy_percent: device.busy_percent.ok_or(otherwise.clone()),
            memory_busy_percent: device.memory_busy_percent.ok_or(otherwise),
        },
    }
}

/// Every pair, as the driver would be asked for it; a device that answers nothing else has no answer here either.
fn pairs(devices: &[DeviceLines], lines: &[PairLines]) -> Result<Vec<PairAnswers>, String> {
    let mut by_gpus = BTreeMap::new();
    for line in lines {
        let [a, b] = line.gpus;
        if a >= b || b >= devices.len() || by_gpus.insert([a, b], line).is_some() {
            let count = devices.len();
            return Err(format!(
                "expected pairs of two of the {count} devices, the lower index first and each pair once, found [{a}, {b}]"
            ));
        }
    }
    let mut pairs = Vec::new();
    for (b, second) in devices.iter().enumerate() {
        for (a, first) in devices[..b].iter().enumerate() {
            let lost = [first, second].map(|device| Fault::from(device.otherwise));
            let lost = lost.into_iter().find(Fault::device_is_lost);
            let otherwise = lost.unwrap_or(Fault::from(Code::NotSupported));
            let line = by_gpus.get(&[a, b]);
            pairs.push(PairAnswers {
                a,
                b,
                nvlink: line.and_then(|line| line.nvlink).ok_or(otherwise.clone()),
                ancestor: line.and_then(|line| line.ancestor).ok_or(otherwise),
            });
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_error(text: &str, expect: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expect), "expected {expect:?} in {error:?}");
    }

    #[test]
    fn a_typo_is_named_with_its_line() {
        check_error("devices:\n  - uuid: GPU-1\n    nmae: x\n", "nmae");
        check_error("devices:\n  - uuid: GPU-1\n    nmae: x\n", "line 3");
    }

    #[test]
    fn an_unknown_code_is_refused_with_the_known_ones() {
        check_error("error: GpuLots\n", "GpuLost");
    }

    #[test]
    fn a_file_says_error_or_devices() {
        check_error("{}", "found neither");
        check_error("error: GpuLost\ndevices: []\n", "expected error: alone");
    }

    #[test]
    fn each_device_has_a_uuid_of_its_own() {
        check_error("devices: [{uuid: GPU-1}, {uuid: GPU-1}]\n", "found \"GPU-1\"");
        check_error("devices: [{uuid: \"\"}]\n", "found \"\"");
        assert_eq!(parse("devices: [{name: a}, {name: b}]\n").unwrap().unwrap().devices.len(), 2);
    }

    #[test]
    fn plain_words_need_no_quotes() {
        let text = "devices:\n  - {uuid: GPU-1, pci: 0000:17:00.0, mig: Off, name: 5090}\n  - {uuid: GPU-2, mig: On}\n";
        let devices = parse(text).unwrap().unwrap().devices;
        assert_eq!(devices[0].pci.as_deref(), Ok("0000:17:00.0"));
        assert_eq!(devices[0].name.as_deref(), Ok("5090"));
        assert_eq!((&devices[0].mig, &devices[1].mig), (&Ok(node_facts::Mig::Off), &Ok(node_facts::Mig::On)));
    }

    #[test]
    fn a_text_that_unfolds_into_a_large_one_is_refused() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = level - 1;
            let items = vec![format!("*a{below}"); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        assert!(parse(&text).is_err());
        assert!(parse(&format!("devices: {}", "[".repeat(60_000))).is_err());
    }

    #[test]
    fn pairs_name_two_devices_of_the_file() {
        check_error("devices: [{uuid: a}]\npairs: [{gpus: [0, 1], nvlink: true}]\n", "found [0, 1]");
        check_error("devices: [{uuid: a}, {uuid: b}]\npairs: [{gpus: [1, 0]}]\n", "found [1, 0]");
        let twice = "devices: [{uuid: a}, {uuid: b}]\npairs: [{gpus: [0, 1]}, {gpus: [0, 1]}]\n";
        check_error(twice, "each pair once");
    }

    #[test]
    fn no_text_panics() {
        for text in ["", "[", "devices: 7", "*a", "&a [*a]", "devices: [[[[[[", "\u{0}", "error: [GpuLost]"] {
            assert!(parse(text).is_err(), "{text:?} is a scene's nvml.yaml");
        }
    }
}
