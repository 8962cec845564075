use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use expect_test::expect_file;
use node_facts::Reading;
use serde_json::Value;

use super::*;

/// The facts in a form whose changes are easy to read: a line for each thing, lists of CPUs as ranges, links by kind.
fn lines(facts: &NodeFacts) -> String {
    let links = links(facts);
    let mut facts = serde_json::to_value(facts).unwrap();
    ranges(&mut facts);
    facts["links"] = links;
    let mut out = String::new();
    for (key, value) in facts.as_object().unwrap() {
        match (value, value.get("value")) {
            (Value::Array(items), _) | (_, Some(Value::Array(items))) => {
                items.iter().for_each(|item| writeln!(out, "{key} {item}").unwrap());
            }
            (_, Some(Value::Object(items))) if key == "numa" => {
                items.iter().for_each(|(number, item)| writeln!(out, "{key} {number} {item}").unwrap());
            }
            _ => writeln!(out, "{key} {value}").unwrap(),
        }
    }
    out
}

/// One line for each kind, with its pairs of GPU indexes: `sameNuma 0-2 0-3`.
fn links(facts: &NodeFacts) -> Value {
    let index = |uuid: &str| facts.gpus.value().unwrap().iter().find(|gpu| gpu.uuid == uuid).unwrap().index;
    let mut kinds: BTreeMap<node_facts::LinkKind, Vec<(u32, u32)>> = BTreeMap::new();
    for link in &facts.links {
        assert!(link.a < link.b);
        let (a, b) = (index(&link.a), index(&link.b));
        kinds.entry(link.kind).or_default().push((a.min(b), a.max(b)));
    }
    let line = |(kind, mut pairs): (_, Vec<(u32, u32)>)| {
        pairs.sort_unstable();
        let pairs = pairs.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(" ");
        Value::from(format!("{kind:?} {pairs}"))
    };
    kinds.into_iter().map(line).collect()
}

fn ranges(value: &mut Value) {
    match value {
        Value::Object(items) => {
            for (key, item) in items.iter_mut() {
                match item.get_mut("value").filter(|_| key == "cpus") {
                    Some(cpus) => {
                        *cpus = range_text(&serde_json::from_value::<Vec<u32>>(cpus.take()).unwrap())
                    }
                    None => ranges(item),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(ranges),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn range_text(cpus: &[u32]) -> Value {
    let chunks = cpus.chunk_by(|a, b| a + 1 == *b);
    chunks.map(|run| format!("{}-{}", run[0], run[run.len() - 1])).collect::<Vec<_>>().join(",").into()
}

/// The scene as shipped, the scene's folder in the repository and the golden file agree.
#[track_caller]
fn check(name: &str) -> NodeFacts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let shipped = facts(name).unwrap();
    assert_eq!(shipped, Scene::open(&folder).unwrap().facts(), "packed and on disk");
    expect_file![folder.join("facts.golden")].assert_eq(&lines(&shipped));
    shipped
}

const GIB: u64 = 1 << 30;

#[test]
fn the_story_has_four_gpus_and_a_known_headroom_on_each_of_two_nodes() {
    let facts = check("story");
    let numa = facts.numa.value().unwrap();
    let available = |node| numa[&node].memory.value().unwrap().available;
    assert_eq!((available(0), available(1)), (176 * GIB, 214 * GIB));
    assert_eq!(numa[&0].memory.value().unwrap().total, 240_000_000_000);
    let gpus = facts.gpus.value().unwrap();
    let nodes: Vec<u32> = gpus.iter().map(|gpu| *gpu.numa_node.value().unwrap()).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1]);
    assert!(gpus.iter().all(|gpu| gpu.memory_total == Reading::Value(97_887 << 20)));
    assert!(facts.notes.is_empty());
}

#[test]
fn one_socket_has_one_node_and_the_smallest_limit_of_its_group() {
    let facts = check("one-socket");
    assert_eq!(facts.cgroup_memory_limit, Reading::Value(128 * GIB));
    assert_eq!(facts.numa.value().unwrap().len(), 1);
}

#[test]
fn minus_one_is_never_node_0_unless_the_local_cpus_say_so() {
    let facts = check("numa-minus-one");
    let gpus = facts.gpus.value().unwrap();
    assert_eq!(gpus[0].numa_node, Reading::Value(0));
    assert!(gpus[1..].iter().all(|gpu| matches!(gpu.numa_node, Reading::Absent(_))));
}

#[test]
fn a_gpu_in_mig_mode_is_told_from_the_others() {
    let facts = check("mig");
    let modes: Vec<_> = facts.gpus.value().unwrap().iter().map(|gpu| gpu.mig.value().copied()).collect();
    let off = Some(node_facts::Mig::Off);
    assert_eq!(modes, [off, off, off, Some(node_facts::Mig::On)]);
}

#[test]
fn a_lost_gpu_is_reported_as_lost_and_the_others_as_they_are() {
    let facts = check("lost-gpu");
    let gpus = facts.gpus.value().unwrap();
    assert_eq!(gpus.len(), 8);
    for gpu in gpus {
        let lost = matches!(gpu.health, Reading::Value(node_facts::GpuHealth::Lost { .. }));
        assert_eq!(lost, [5, 6].contains(&gpu.index), "GPU {}", gpu.index);
    }
    assert!(matches!(gpus[5].memory_total, Reading::Failed(_)));
    assert!(facts.links.iter().all(|link| link.a != gpus[5].uuid && link.b != gpus[5].uuid));
}

#[test]
fn a_machine_without_the_nvidia_library_has_no_gpus() {
    assert!(matches!(check("no-gpu").gpus, Reading::Absent(_)));
}

#[test]
fn a_kernel_without_numa_has_no_numa_facts() {
    let facts = check("no-numa");
    assert!(matches!(facts.numa, Reading::Absent(_)));
    assert!(facts.gpus.value().unwrap().iter().all(|gpu| matches!(gpu.numa_node, Reading::Absent(_))));
    assert!(facts.memory.value().is_some());
}

#[test]
fn four_nodes_of_one_socket_are_four_nodes() {
    let facts = check("four-numa");
    assert_eq!(facts.numa.value().unwrap()[&3].cpus, Reading::Value(vec![]));
    assert_eq!(facts.cgroup_memory_limit, Reading::Absent("no limit".into()));
}

#[test]
fn a_broken_machine_names_each_failure_and_still_tells_the_rest() {
    let facts = check("broken");
    let numa = facts.numa.value().unwrap();
    assert!(matches!(numa[&0].memory, Reading::Failed(_)));
    assert!(matches!(numa[&1].cpus, Reading::Failed(_)));
    assert!(matches!(numa[&1].distances, Reading::Failed(_)));
    assert!(numa[&0].cpus.value().is_some() && numa[&1].memory.value().is_some());
    assert!(matches!(facts.memory, Reading::Failed(_)));
    assert!(matches!(facts.cgroup_memory_limit, Reading::Failed(_)));
}

/// Values by their place in the facts; lists of numbers count as one value.
fn values(facts: &Value, place: &str, found: &mut BTreeMap<String, Value>) {
    match facts {
        Value::Object(items) => {
            let told = items.iter().filter(|(key, _)| !["absent", "failed"].contains(&key.as_str()));
            told.for_each(|(key, item)| values(item, &format!("{place}/{key}"), found));
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().enumerate().for_each(|(at, item)| values(item, &format!("{place}/{at}"), found));
        }
        leaf if place.contains("/value") => {
            found.insert(place.to_owned(), leaf.clone());
        }
        _ => {}
    }
}

fn copy(tree: &[(&str, Packed)], root: &Path) {
    for (path, packed) in tree {
        let place = root.join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        match packed {
            Packed::File(bytes) => fs::write(place, bytes).unwrap(),
            Packed::Link(target) => std::os::unix::fs::symlink(target, place).unwrap(),
        }
    }
}

#[test]
fn one_damaged_file_takes_facts_away_and_changes_none() {
    let story = SHIPPED.iter().find(|scene| scene.name == "story").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    copy(story.entries, &root);
    fs::write(folder.path().join("nvml.yaml"), story.nvml).unwrap();
    let read = || Scene::open(folder.path()).unwrap().facts();
    let known = |facts: &NodeFacts| {
        let mut found = BTreeMap::new();
        values(&serde_json::to_value(facts).unwrap(), "", &mut found);
        found
    };
    let whole = read();
    let whole_values = known(&whole);
    assert!(whole_values.len() > 60);

    let huge = "0\n".repeat(40_000);
    let damages =
        [None, Some("junk \u{1b}[31m"), Some("-9"), Some("18446744073709551616"), Some(huge.as_str())];
    for (path, packed) in story.entries {
        let Packed::File(bytes) = packed else { continue };
        let place = root.join(path);
        for damage in damages {
            match damage {
                None => fs::remove_file(&place).unwrap(),
                Some(text) => fs::write(&place, text).unwrap(),
            }
            let damaged = read();
            for (fact, value) in known(&damaged) {
                assert_eq!(Some(&value), whole_values.get(&fact), "{fact} after damage to {path}");
            }
            assert!(damaged.links.iter().all(|link| whole.links.contains(link)), "after damage to {path}");
        }
        fs::write(&place, bytes).unwrap();
    }
    assert_eq!(read(), whole);
}

#[test]
fn every_shipped_scene_has_a_golden_file_and_two_lines_of_readme() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    for name in names() {
        assert!(testdata.join(name).join("facts.golden").is_file(), "{name} is checked by no test");
        let readme = fs::read_to_string(testdata.join(name).join("README.md")).unwrap();
        assert_eq!(readme.lines().count(), 2, "{name}");
    }
    assert!(names().is_sorted());
}

#[track_caller]
fn check_error(name_or_path: &str, expect: &str) {
    let error = facts(name_or_path).unwrap_err().to_string();
    assert!(error.contains(expect), "expected {expect:?} in {error:?}");
}

#[test]
fn an_unknown_scene_is_refused_with_the_names_of_the_shipped_ones() {
    check_error("stroy", "one-socket, story");
    check_error("", "no scene \"\"");
}

#[test]
fn a_folder_that_is_no_scene_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    check_error(path, "expected a folder root/");
    fs::create_dir(folder.path().join("root")).unwrap();
    check_error(path, "/nvml.yaml does not exist; nvml.yaml says what NVML answers");
    let nvml = folder.path().join("nvml.yaml");
    fs::write(&nvml, "eror: GpuLost\n").unwrap();
    check_error(path, "eror");
    fs::File::create(&nvml).unwrap().set_len(1 << 40).unwrap();
    check_error(path, "/nvml.yaml: more than");
}

#[test]
fn an_empty_root_gives_facts_that_know_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("root")).unwrap();
    fs::write(folder.path().join("nvml.yaml"), "error: LibraryNotFound\n").unwrap();
    let facts = facts(folder.path().to_str().unwrap()).unwrap();
    assert!(matches!(facts.memory, Reading::Failed(_)));
    assert!(matches!(facts.cpus, Reading::Failed(_)));
    assert!(matches!(facts.numa, Reading::Absent(_)));
    assert_eq!(facts.node, "unnamed");
}
