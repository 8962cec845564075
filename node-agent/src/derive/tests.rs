use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use node_facts::{GpuHealth, LinkKind};

use super::*;
use crate::collect::{self, Trees};
use crate::source::Tree;
use crate::source::nvml::{
    Ancestor, Code, DeviceAnswers, DeviceMemory, Fault, NvmlAnswer, NvmlDevices, PairAnswers, Sensors,
};

const VIRTUAL_BUS: &str = "LNXSYSTM:00/VMBUS:00/47505500";

/// A machine of two NUMA nodes with two healthy GPUs on node 1, to break in one place.
struct Machine {
    folder: tempfile::TempDir,
    nvml: NvmlAnswer,
}

impl Machine {
    fn new() -> Self {
        let machine = Machine { folder: tempfile::tempdir().unwrap(), nvml: Ok(NvmlDevices::default()) };
        machine.file("proc/sys/kernel/hostname", "m\n");
        machine.file("sys/devices/system/node/node0/cpulist", "0-3\n");
        machine.file("sys/devices/system/node/node1/cpulist", "4-7\n");
        machine.with_gpu("pci0000:10/0000:10:01.0").with_gpu("pci0000:20/0000:20:01.0")
    }

    fn file(&self, path: &str, text: &str) {
        let place = self.folder.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let place = self.folder.path().join(path);
        if place.is_dir() { fs::remove_dir_all(place).unwrap() } else { fs::remove_file(place).unwrap() }
    }

    fn with_gpu(mut self, bridges: &str) -> Self {
        let answers = self.nvml.as_mut().unwrap();
        let index = answers.devices.len();
        let device = format!("0000:4{index}:00.0");
        answers.devices.push(DeviceAnswers {
            uuid: Ok(format!("GPU-{index}")),
            name: Ok("a GPU".into()),
            pci: Ok(format!("0000{device}")),
            memory: Ok(DeviceMemory { total: 1000, used: 10 }),
            mig: Ok(node_facts::Mig::Off),
            uncorrected_errors: Ok(0),
            sensors: Sensors::failed(&Fault::from(Code::NotSupported)),
        });
        for a in 0..index {
            let unsupported = || Fault::from(Code::NotSupported);
            answers.pairs.push(PairAnswers {
                a,
                b: index,
                nvlink: Err(unsupported()),
                ancestor: Err(unsupported()),
            });
        }
        let place = format!("sys/devices/{bridges}/{device}");
        for (file, text) in
            [("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "1"), ("local_cpulist", "4-7")]
        {
            self.file(&format!("{place}/{file}"), &format!("{text}\n"));
        }
        let links = self.folder.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&links).unwrap();
        symlink(Path::new("../../../..").join(place), links.join(device)).unwrap();
        self
    }

    fn device(&mut self) -> &mut DeviceAnswers {
        &mut self.nvml.as_mut().unwrap().devices[0]
    }

    fn pair(&mut self) -> &mut PairAnswers {
        &mut self.nvml.as_mut().unwrap().pairs[0]
    }

    /// Overwrites a file of the first GPU's PCI device.
    fn pci_file(&self, name: &str, text: &str) {
        self.file(&format!("sys/devices/pci0000:10/0000:10:01.0/0000:40:00.0/{name}"), text);
    }

    fn facts(self) -> NodeFacts {
        facts(&collect::sample(&Trees::whole(Tree::disk(self.folder.path())), self.nvml))
    }

    fn gpu(self) -> node_facts::Gpu {
        self.facts().gpus.value().unwrap()[0].clone()
    }

    fn link(self) -> Option<LinkKind> {
        self.facts().links.first().map(|link| link.kind)
    }
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(reading: &Reading<T>, expect: &str) {
    match reading {
        Reading::Failed(reason) if reason.contains(expect) => {}
        other => panic!("expected a failure with {expect:?}, found {other:?}"),
    }
}

#[track_caller]
fn assert_absent<T: std::fmt::Debug>(reading: &Reading<T>, expect: &str) {
    match reading {
        Reading::Absent(reason) if reason.contains(expect) => {}
        other => panic!("expected an absence with {expect:?}, found {other:?}"),
    }
}

#[test]
fn a_host_name_that_is_none_is_unknown_with_a_note() {
    for name in ["\n".to_owned(), "a b\n".to_owned(), "\x1b[31mred\n".to_owned(), "a".repeat(254)] {
        let machine = Machine::new();
        machine.file("proc/sys/kernel/hostname", &name);
        let facts = machine.facts();
        assert_eq!(facts.node, "unnamed");
        assert!(
            facts.notes[0].contains("/proc/sys/kernel/hostname: expected a host name"),
            "{:?}",
            facts.notes
        );
    }
    assert_eq!(Machine::new().facts().node, "m");
}

#[test]
fn a_machine_without_any_cpu_is_not_believed() {
    let machine = Machine::new();
    machine.file("sys/devices/system/cpu/online", "\n");
    assert_failed(&machine.facts().cpus, "found none");
}

#[test]
fn distances_are_one_for_each_node_with_10_for_itself() {
    assert_eq!(distances("21 10\n", 3, &[1, 3]), Ok(vec![21, 10]));
    assert_eq!(distances("10", 0, &[0, 1]), Err(DistanceError::WrongCount { expected: 2, found: 1 }));
    assert_eq!(distances("21 21", 0, &[0, 1]), Err(DistanceError::NotItself { node: 0, found: 21 }));
    assert_eq!(distances("10 far", 0, &[0, 1]), Err(DistanceError::NotANumber { found: "far".into() }));
}

#[test]
fn a_gpu_is_on_the_node_that_the_kernel_names() {
    assert_eq!(Machine::new().gpu().numa_node, Reading::Value(1));
}

#[test]
fn minus_one_on_a_machine_of_one_node_is_that_node_with_a_note() {
    let machine = Machine::new();
    machine.remove("sys/devices/system/node/node0");
    machine.pci_file("numa_node", "-1\n");
    machine.pci_file("local_cpulist", "nonsense\n");
    let facts = machine.facts();
    assert_eq!(facts.gpus.value().unwrap()[0].numa_node, Reading::Value(1));
    assert_eq!(facts.notes, ["GPU 0: the kernel names no NUMA node (-1); the machine has only node 1"]);
}

#[test]
fn minus_one_with_local_cpus_of_one_node_is_that_node_with_a_note() {
    let machine = Machine::new();
    machine.pci_file("numa_node", "-1\n");
    machine.pci_file("local_cpulist", "5\n");
    let facts = machine.facts();
    assert_eq!(facts.gpus.value().unwrap()[0].numa_node, Reading::Value(1));
    assert_eq!(facts.notes.len(), 1);
}

#[test]
fn minus_one_without_an_answer_from_local_cpus_is_unknown() {
    for (cpus, reason) in [
        ("0-7\n", "its local CPUs are on 2 nodes"),
        ("\n", "its local CPUs are on no node"),
        ("64\n", "its local CPUs are on no node"),
        ("7-4\n", "expected ascending CPU numbers"),
    ] {
        let machine = Machine::new();
        machine.pci_file("numa_node", "-1\n");
        machine.pci_file("local_cpulist", cpus);
        assert_absent(&machine.gpu().numa_node, reason);
    }
}

#[test]
fn a_numa_node_that_makes_no_sense_is_a_failure() {
    for text in ["-2\n", "\n", "1x\n", "99999999999999999999\n", "2\n", "4294967296\n"] {
        let machine = Machine::new();
        machine.pci_file("numa_node", text);
        assert_failed(&machine.gpu().numa_node, "/sys/bus/pci/devices/0000:40:00.0/numa_node: ");
    }
}

#[test]
fn a_missing_numa_node_file_is_a_failure_and_not_node_0() {
    let machine = Machine::new();
    machine.remove("sys/devices/pci0000:10/0000:10:01.0/0000:40:00.0/numa_node");
    assert_failed(&machine.gpu().numa_node, "numa_node does not exist");
}

#[test]
fn a_gpu_on_a_virtual_bus_keeps_all_else() {
    let facts = Machine::new().with_gpu(VIRTUAL_BUS).facts();
    let gpu = &facts.gpus.value().unwrap()[2];
    assert_eq!((&gpu.numa_node, &gpu.health), (&Reading::Value(1), &Reading::Value(GpuHealth::Healthy)));
}

#[test]
fn the_pci_tree_counts_before_what_nvml_says_of_it() {
    let mut machine = Machine::new();
    machine.pair().ancestor = Ok(Ancestor::System);
    assert_eq!(machine.link(), Some(LinkKind::SameNuma));
}

#[test]
fn nvml_says_the_link_where_the_kernel_shows_no_tree() {
    let mut machine = Machine::new();
    machine.remove("sys/bus/pci/devices/0000:40:00.0");
    machine.pair().ancestor = Ok(Ancestor::HostBridge);
    assert_eq!(machine.link(), Some(LinkKind::SameHostBridge));
}

#[test]
fn nvlink_is_the_closest_link() {
    let mut machine = Machine::new();
    machine.pair().nvlink = Ok(true);
    assert_eq!(machine.link(), Some(LinkKind::NvLink));
}

#[test]
fn a_pair_with_an_unknown_nvlink_state_or_unknown_places_is_left_out() {
    let mut machine = Machine::new();
    machine.pair().nvlink = Err(Code::Unknown.into());
    assert_eq!(machine.link(), None);

    let machine = Machine::new();
    machine.remove("sys/bus/pci/devices/0000:40:00.0");
    assert_eq!(machine.link(), None);
}

#[test]
fn without_numa_the_whole_machine_is_one_node() {
    let machine = Machine::new();
    machine.remove("sys/devices/system/node");
    assert_eq!(machine.link(), Some(LinkKind::SameNuma));
}

#[test]
fn a_gpu_without_error_counters_is_healthy() {
    let mut machine = Machine::new();
    machine.device().uncorrected_errors = Err(Code::NotSupported.into());
    assert_eq!(machine.gpu().health, Reading::Value(GpuHealth::Healthy));
}

#[test]
fn a_gpu_that_any_call_reports_as_gone_is_lost() {
    let lost = |reason: &str| Reading::Value(GpuHealth::Lost { reason: reason.into() });
    let mut machine = Machine::new();
    machine.device().mig = Err(Code::GpuLost.into());
    assert_eq!(machine.gpu().health, lost("the GPU has fallen off the bus"));

    let mut machine = Machine::new();
    machine.device().memory = Err(Code::ResetRequired.into());
    assert_eq!(machine.gpu().health, lost("the GPU needs a reset"));
}

#[test]
fn unknown_health_is_neither_healthy_nor_lost() {
    let mut machine = Machine::new();
    machine.device().uncorrected_errors = Err(Code::NoPermission.into());
    assert_failed(&machine.gpu().health, "its error counters are unknown: NVML: no permission");

    let mut machine = Machine::new();
    machine.device().memory = Err(Code::Unknown.into());
    assert_failed(&machine.gpu().health, "an internal driver error");
}

#[test]
fn a_value_that_the_gpu_does_not_support_is_absent() {
    let mut machine = Machine::new();
    machine.device().memory = Err(Code::NotSupported.into());
    machine.device().mig = Err(Code::NotSupported.into());
    let gpu = machine.gpu();
    assert_absent(&gpu.memory_total, "not supported");
    assert_absent(&gpu.mig, "not supported");
}

#[test]
fn a_missing_library_means_no_gpus_and_a_note_if_the_bus_shows_some() {
    let mut machine = Machine::new();
    machine.nvml = Err(Code::LibraryNotFound.into());
    let facts = machine.facts();
    assert_absent(&facts.gpus, "no NVIDIA library");
    assert_eq!(facts.notes, ["the PCI bus shows 2 NVIDIA GPUs, NVML tells of 0"]);
}

#[test]
fn a_driver_that_is_not_loaded_is_a_failure_where_the_bus_shows_gpus() {
    let mut machine = Machine::new();
    machine.nvml = Err(Code::DriverNotLoaded.into());
    assert_failed(&machine.facts().gpus, "driver is not loaded");

    let mut machine = Machine::new();
    machine.nvml = Err(Code::DriverNotLoaded.into());
    machine.remove("sys/bus/pci/devices");
    fs::create_dir_all(machine.folder.path().join("sys/bus/pci/devices")).unwrap();
    assert_absent(&machine.facts().gpus, "the PCI bus shows no NVIDIA GPU");
}

#[test]
fn a_driver_that_answers_with_anything_else_is_a_failure() {
    for code in [Code::LibRmVersionMismatch, Code::NoPermission, Code::Timeout, Code::Unknown] {
        let mut machine = Machine::new();
        machine.nvml = Err(code.into());
        assert_failed(&machine.facts().gpus, "");
    }
}

#[test]
fn a_gpu_without_a_uuid_is_left_out_with_a_note_and_the_others_keep_their_index() {
    let mut machine = Machine::new();
    machine.device().uuid = Err(Code::GpuLost.into());
    let facts = machine.facts();
    assert_eq!(facts.gpus.value().unwrap()[0].index, 1);
    assert_eq!(
        facts.notes,
        [
            "GPU 0 is left out, its uuid is unknown: the GPU has fallen off the bus",
            "the PCI bus shows 2 NVIDIA GPUs, NVML tells of 1",
        ]
    );
}

#[test]
fn notes_end_at_their_bound_and_say_so() {
    let mut notes = Notes::default();
    (0..100).for_each(|number| notes.add(number.to_string()));
    assert_eq!(notes.0.len(), MAX_NOTES);
    assert_eq!(notes.0[MAX_NOTES - 1], "more remarks were left out");
}
