use std::fs;
use std::path::Path;

use super::*;

const ID: &str = "aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11";
const UID: &str = "0b1e7a9c-1111-4222-8333-444455556666";

fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let place = folder.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }
    let tree = Tree::disk(folder.path());
    (folder, tree)
}

fn cpus(text: &FileText) -> String {
    match text.parse(|text| Ok::<_, String>(text.trim().to_owned())) {
        Reading::Value(text) => text,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check(group: &str, cpus_file: &str, mems_file: &str) {
    let (cpu, mem) = (format!("{group}/{cpus_file}"), format!("{group}/{mems_file}"));
    let (_folder, tree) = machine(&[(&cpu, "2-3\n"), (&mem, "1\n")]);
    let found = PodGroups::find(&tree).value().expect("groups of pods").containers(&tree);
    let [container] = &found[..] else { panic!("{found:?}") };
    assert_eq!((container.pod_uid.as_str(), container.container_id.as_str()), (UID, ID));
    assert_eq!((cpus(&container.cpus), cpus(&container.mems)), ("2-3".into(), "1".into()));
}

#[test]
fn the_groups_of_both_drivers_and_both_versions_are_found() {
    let slice =
        format!("kubepods.slice/kubepods-pod{}.slice/cri-containerd-{ID}.scope", UID.replace('-', "_"));
    let plain = format!("kubepods/pod{UID}/{ID}");
    check(&format!("sys/fs/cgroup/{slice}"), "cpuset.cpus.effective", "cpuset.mems.effective");
    check(&format!("sys/fs/cgroup/{plain}"), "cpuset.cpus.effective", "cpuset.mems.effective");
    check(&format!("sys/fs/cgroup/cpuset/{slice}"), "cpuset.cpus", "cpuset.mems");
    check(&format!("sys/fs/cgroup/cpuset/{plain}"), "cpuset.cpus", "cpuset.mems");
    let kubelet =
        format!("kubelet.slice/kubelet-{}", slice.replace("/kubepods-pod", "/kubelet-kubepods-pod"));
    check(&format!("sys/fs/cgroup/{kubelet}"), "cpuset.cpus.effective", "cpuset.mems.effective");
    check(&format!("sys/fs/cgroup/cpuset/kubelet/{plain}"), "cpuset.cpus", "cpuset.mems");
    check(&format!("sys/fs/cgroup/a/b/{plain}"), "cpuset.cpus.effective", "cpuset.mems.effective");
}

#[test]
fn pods_of_other_classes_and_what_is_no_container_are_left_out() {
    let pod = format!("sys/fs/cgroup/kubepods/pod{UID}");
    let (_folder, tree) = machine(&[
        (&format!("{pod}/crio-conmon-{ID}.scope/cpuset.cpus.effective"), "0"),
        (&format!("{pod}/init/cpuset.cpus.effective"), "0"),
        (&format!("sys/fs/cgroup/kubepods/burstable/pod{UID}/{ID}/cpuset.cpus.effective"), "0"),
        (&format!("sys/fs/cgroup/a/b/c/kubepods/pod{UID}/{ID}/cpuset.cpus.effective"), "0"),
    ]);
    assert!(PodGroups::find(&tree).value().unwrap().containers(&tree).is_empty());
}

#[test]
fn a_machine_without_pods_says_so() {
    let (_folder, tree) = machine(&[("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "0")]);
    let none = PodGroups::find(&tree);
    assert!(none.reason().unwrap().contains("no control group of pods"), "{none:?}");
    let (_folder, tree) = machine(&[]);
    assert!(matches!(PodGroups::find(&tree), Reading::Absent(_)));
}

fn limit(files: &[(&str, &str)]) -> Reading<Vec<String>> {
    let (_folder, tree) = machine(files);
    memory_limit(&tree, &tree).map(|files| files.iter().map(cpus).collect())
}

#[test]
fn the_limit_is_that_of_all_pods() {
    let v2 = ("sys/fs/cgroup/kubepods.slice/memory.max", "7000");
    assert_eq!(limit(&[v2]), Reading::Value(vec!["7000".into()]));
    let v1 = ("sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes", "5000");
    assert_eq!(limit(&[v1]), Reading::Value(vec!["5000".into()]));
    assert!(matches!(limit(&[("sys/fs/cgroup/memory.max", "9")]), Reading::Absent(_)));
}

#[test]
fn of_two_kubelets_on_a_machine_the_readers_own_counts() {
    let one = ("sys/fs/cgroup/memory/one/kubepods/memory.limit_in_bytes", "1");
    let two = ("sys/fs/cgroup/memory/two/kubepods/memory.limit_in_bytes", "2");
    let own = ("proc/self/cgroup", "4:memory:/two/kubepods/besteffort/podx/y\n");
    assert_eq!(limit(&[one, two, own]), Reading::Value(vec!["2".into()]));
    assert!(matches!(limit(&[one, two]), Reading::Absent(reason) if reason.contains("2 groups")));
}

#[test]
fn the_search_ends_on_a_machine_with_too_many_groups() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("sys/fs/cgroup");
    for number in 0..MAX_GROUPS + 10 {
        fs::create_dir_all(mount.join(format!("g{number:05}"))).unwrap();
    }
    fs::create_dir_all(mount.join("z/kubepods")).unwrap();
    let tree = Tree::disk(Path::new(folder.path()));
    assert_eq!(pods_groups(&tree, "sys/fs/cgroup"), Ok(vec![]));
}
