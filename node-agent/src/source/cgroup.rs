//! Memory limit files of the control group that the reader lives in, v1 and v2.
//! A limit of any ancestor holds too, so all files up to the mount are read. A container may see a path from outside its
//! own mount (v1, or a host cgroup namespace): those files do not exist there, and the mount's own file is the right one.
//! Source: kernel documentation, admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.

use node_facts::Reading;

use super::{FileText, Tree, TreeError};

pub(super) const OWN_GROUPS: &str = "proc/self/cgroup";
const V1: (&str, &str) = ("sys/fs/cgroup/memory", "memory.limit_in_bytes");
const V2: (&str, &str) = ("sys/fs/cgroup", "memory.max");
/// Deeper trees exist only in tests of the kernel; kubelet makes four to six levels.
const MAX_DEPTH: usize = 32;

/// The limit files that exist, from the reader's own group to the mount. Absent: no control groups.
pub(crate) fn memory_limits(proc: &Tree, sys: &Tree) -> Reading<Vec<FileText>> {
    let groups = match proc.text(OWN_GROUPS) {
        Ok(groups) => groups,
        Err(error @ TreeError::NotFound { .. }) => {
            return Reading::Absent(format!("no limit: no control groups ({error})"));
        }
        Err(error) => return Reading::Failed(error.to_string()),
    };
    match limit_paths(&groups) {
        Ok(paths) => Reading::Value(paths.into_iter().map(|path| FileText::optional(sys, path)).collect()),
        Err(reason) => Reading::Failed(format!("/{OWN_GROUPS}: {reason}")),
    }
}

/// In: the text of /proc/self/cgroup, lines of `number:controllers:path`. A v1 memory controller comes before v2: a
/// hybrid machine has both, and then only v1 has memory files.
fn limit_paths(groups: &str) -> Result<Vec<String>, String> {
    let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let v1 = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let v2 = lines().find(|(controllers, _)| controllers.is_empty());
    let ((mount, file), path) = match (v1, v2) {
        (Some((_, path)), _) => (V1, path),
        (None, Some((_, path))) => (V2, path),
        (None, None) => return Err("names neither a memory controller nor a v2 group".into()),
    };
    // A path above the own namespace's root (`/../..`) means nothing below this mount.
    let steps: Vec<&str> = match path.split('/').any(|step| step == "..") {
        true => Vec::new(),
        false => path.split('/').filter(|step| !step.is_empty()).collect(),
    };
    if steps.len() > MAX_DEPTH {
        return Err(format!("a group {} levels deep, at most {MAX_DEPTH} are followed", steps.len()));
    }
    let depths = (0..=steps.len()).rev();
    Ok(depths.map(|depth| [&[mount], &steps[..depth], &[file]].concat().join("/")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(groups: &str, expect: &[&str]) {
        assert_eq!(limit_paths(groups).unwrap(), expect);
    }

    #[test]
    fn a_v2_group_is_followed_up_to_the_mount() {
        check(
            "0::/a.slice/b.scope\n",
            &[
                "sys/fs/cgroup/a.slice/b.scope/memory.max",
                "sys/fs/cgroup/a.slice/memory.max",
                "sys/fs/cgroup/memory.max",
            ],
        );
    }

    #[test]
    fn the_v1_memory_controller_wins_over_v2_on_a_hybrid_machine() {
        check(
            "9:cpuset:/x\n4:hugetlb,memory:/a\n0::/b\n",
            &["sys/fs/cgroup/memory/a/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.limit_in_bytes"],
        );
    }

    #[test]
    fn a_path_from_outside_the_namespace_means_the_mount_itself() {
        check("0::/../../other\n", &["sys/fs/cgroup/memory.max"]);
    }

    #[test]
    fn text_that_names_no_group_is_a_failure() {
        assert!(limit_paths("").is_err());
        assert!(limit_paths("nonsense\n4:memory\n").is_err());
    }

    #[test]
    fn a_group_deeper_than_the_bound_is_a_failure() {
        assert!(limit_paths(&format!("0::{}", "/a".repeat(MAX_DEPTH + 1))).is_err());
        assert_eq!(limit_paths(&format!("0::{}", "/a".repeat(MAX_DEPTH))).unwrap().len(), MAX_DEPTH + 1);
    }
}
