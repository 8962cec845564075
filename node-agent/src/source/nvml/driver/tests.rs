use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// A library built from `tests/nvml/library.rs`, by the compiler beside the cargo that built this test.
fn library(folder: &tempfile::TempDir, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/library.rs");
    let library = folder.path().join("libnvidia-ml.so.1");
    let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=nvml", "-Cpanic=abort", "-o"]);
    let built = rustc.arg(&library).args(options).arg(source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

fn code<T>(answer: &Result<T, Fault>) -> Option<Code> {
    answer.as_ref().err().map(|fault| fault.code)
}

#[test]
fn every_call_of_a_library_is_answered_or_keeps_its_fault() {
    let folder = tempfile::tempdir().unwrap();
    let NvmlDevices { devices, pairs } = ask(Some(&library(&folder, &[]))).unwrap();
    let [whole, mig, lost, strange] = &devices[..] else { panic!("{devices:?}") };

    assert_eq!(whole.uuid.as_deref(), Ok("GPU-0"));
    assert_eq!(whole.pci.as_deref(), Ok("00000000:B0:00.0"));
    assert_eq!(whole.memory.as_ref().map(|memory| (memory.total, memory.used)), Ok((1000, 40)));
    assert_eq!(whole.mig, Ok(node_facts::Mig::Off));
    assert_eq!(whole.uncorrected_errors, Ok(6));
    assert_eq!(code(&whole.name), Some(Code::FunctionNotFound));

    assert_eq!(mig.mig, Ok(node_facts::Mig::On));
    assert_eq!(code(&mig.uncorrected_errors), Some(Code::NotSupported));

    assert_eq!(code(&lost.uuid), Some(Code::GpuLost));
    assert_eq!(code(&lost.memory), Some(Code::GpuLost));

    let memory = strange.memory.as_ref().unwrap_err().to_string();
    assert_eq!(memory, "NVML: unexpected enum variant value: 77");

    let answers: Vec<_> = pairs.iter().map(|pair| (pair.a, pair.b, pair.nvlink.clone())).collect();
    assert_eq!(answers, [(0, 1, Ok(true)), (0, 3, Ok(false)), (1, 3, Ok(false))]);
    assert!(pairs.iter().all(|pair| pair.ancestor == Ok(Ancestor::HostBridge)));
}

#[test]
fn a_session_asks_again_what_moves_and_only_that() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(&folder, &[]);
    let mut loaded = None;
    let mut read = || {
        let answer = ask_loaded(&mut loaded, Some(&library)).unwrap();
        assert_eq!(answer.pairs.len(), 3);
        answer.devices[0].sensors.clone()
    };
    let (first, second) = (read(), read());
    assert_eq!((first.temperature, second.temperature), (Ok(31), Ok(32)), "loaded once");
    // The first reading asks about pairs after it asked the devices.
    assert_eq!((second.power_milliwatts, read().power_milliwatts), (Ok(3), Ok(3)), "pairs asked once");
    assert_eq!((second.busy_percent, second.memory_busy_percent), (Ok(70), Ok(20)));
}

#[test]
fn a_session_whose_driver_fails_as_a_whole_loads_it_anew() {
    let (good, bad) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (good, bad) = (library(&good, &[]), library(&bad, &["--cfg=no_driver"]));
    let mut loaded = None;
    assert_eq!(code(&ask_loaded(&mut loaded, Some(&bad))), Some(Code::DriverNotLoaded));
    assert!(loaded.is_none());
    assert!(ask_loaded(&mut loaded, Some(&good)).is_ok());
    assert!(loaded.is_some());
}

#[test]
fn a_library_without_its_driver_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let answer = ask(Some(&library(&folder, &["--cfg=no_driver"])));
    assert_eq!(code(&answer), Some(Code::DriverNotLoaded));
}

#[test]
fn a_file_that_is_no_library_is_told_from_a_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnvidia-ml.so.1");
    fs::write(&file, "junk").unwrap();
    let fault = ask(Some(&file)).unwrap_err();
    assert_eq!(fault.code, Code::Unknown);
    assert!(fault.to_string().contains("file too short"), "{fault}");
    assert_eq!(code(&ask(Some(Path::new("libnvidia-ml.so.0")))), Some(Code::LibraryNotFound));
}

#[test]
fn a_library_that_nvml_itself_lacks_does_not_make_nvml_missing() {
    let own = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory";
    let other = "libfoo.so: cannot open shared object file: No such file or directory";
    assert!(library_is_missing(own));
    assert!(!library_is_missing(other));
}
