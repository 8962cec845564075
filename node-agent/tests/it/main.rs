//! The library as its users call it.

use std::path::Path;
use std::process::Command;

use fathom_node_agent::{read_machine, scene};
use node_facts::{NodeFacts, Reading};

#[test]
fn the_machine_of_this_test_is_read() {
    let facts = read_machine(Path::new("/"));
    let memory = facts.memory.value().expect("a Linux machine has /proc/meminfo");
    assert!(memory.total > 0 && memory.free <= memory.available && memory.available <= memory.total);
    let cpus = facts.cpus.value().expect("a Linux machine has /sys/devices/system/cpu/online");
    assert!(!cpus.is_empty());
}

#[test]
fn the_machine_of_this_test_has_gpus_only_where_the_driver_answers() {
    // The loader's own list of libraries tells whether NVML can be there at all.
    let loader = Command::new("/sbin/ldconfig").arg("-p").output();
    let installed =
        loader.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).contains("libnvidia-ml.so.1"));
    match read_machine(Path::new("/")).gpus {
        Reading::Value(gpus) => assert!(gpus.iter().all(|gpu| !gpu.uuid.is_empty())),
        Reading::Absent(reason) if !installed => {
            assert_eq!(reason, "no NVIDIA library (libnvidia-ml.so.1)");
        }
        Reading::Absent(reason) | Reading::Failed(reason) => assert!(installed, "{reason}"),
    }
}

#[test]
fn readers_at_the_same_time_see_the_same_gpus() {
    let alone = read_machine(Path::new("/")).gpus;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| read_machine(Path::new("/")).gpus)).collect();
        for reader in readers {
            let together = reader.join().unwrap();
            assert_eq!(
                together.map(|gpus| gpus.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>()),
                alone.clone().map(|gpus| gpus.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>()),
            );
        }
    });
}

#[test]
fn a_root_without_files_gives_facts_without_values() {
    let root = tempfile::tempdir().unwrap();
    for root in [root.path(), &root.path().join("missing")] {
        let facts = read_machine(root);
        assert!(matches!(facts.memory, Reading::Failed(_)));
        assert!(matches!(facts.numa, Reading::Absent(_)));
        assert!(matches!(facts.cgroup_memory_limit, Reading::Absent(_)));
    }
}

#[test]
fn facts_of_every_scene_survive_json() {
    for name in scene::names() {
        let facts = scene::facts(name).unwrap();
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<NodeFacts>(&json).unwrap(), facts, "{name}");
    }
}

#[test]
fn a_scene_is_read_from_its_folder_too() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/story");
    assert_eq!(scene::facts(folder.to_str().unwrap()).unwrap(), scene::facts("story").unwrap());
}
