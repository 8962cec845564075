//! Control groups of pods, v1 and v2, made by the kubelet with either of its drivers (cgroupfs, systemd).
//! In: the host's sysfs. Out: the memory limit of all pods; CPUs and memory nodes of the containers of Guaranteed pods,
//! which lie directly below the pods' group.
//! Never: a walk without bounds. Where the pods' group lies is not fixed (`--cgroup-root`), so the top levels are searched.

use std::collections::BTreeSet;

use node_facts::Reading;

use super::cgroup::OWN_GROUPS;
use super::{FileText, Tree, TreeError};

/// The pods' group under each of the kubelet's drivers; under systemd a parent's name comes before (`kubelet-`).
const CGROUPFS_NAME: &str = "kubepods";
const SYSTEMD_NAME: &str = "kubepods.slice";
/// A cgroup root is one or two levels deep.
const SEARCH_DEPTH: usize = 3;
/// Groups looked at; a busy machine has hundreds at the top levels.
const MAX_GROUPS: usize = 2_048;
/// A node runs 110 pods, at most some hundred.
const MAX_PODS: usize = 1_024;
const MAX_CONTAINERS: usize = 64;

/// One hierarchy of control groups.
#[derive(Debug, Clone, Copy)]
struct Hierarchy {
    mount: &'static str,
    cpus: &'static str,
    mems: &'static str,
}

const V1: Hierarchy = Hierarchy { mount: "sys/fs/cgroup/cpuset", cpus: "cpuset.cpus", mems: "cpuset.mems" };
const V2: Hierarchy =
    Hierarchy { mount: "sys/fs/cgroup", cpus: "cpuset.cpus.effective", mems: "cpuset.mems.effective" };
const V1_MEMORY: (&str, &str) = ("sys/fs/cgroup/memory", "memory.limit_in_bytes");
const V2_MEMORY: (&str, &str) = ("sys/fs/cgroup", "memory.max");

/// The group of one container of a Guaranteed pod.
#[derive(Debug)]
pub(crate) struct ContainerGroup {
    pub(crate) pod_uid: String,
    pub(crate) container_id: String,
    pub(crate) cpus: FileText,
    pub(crate) mems: FileText,
}

/// Limit files of the group that all pods share, or why there is none to name.
pub(crate) fn memory_limit(proc: &Tree, sys: &Tree) -> Reading<Vec<FileText>> {
    let (mount, file) = if exists(sys, V1_MEMORY.0) { V1_MEMORY } else { V2_MEMORY };
    let groups = match pods_groups(sys, mount) {
        Ok(groups) => groups,
        Err(error @ TreeError::NotFound { .. }) => {
            return Reading::Absent(format!("no limit: no control groups ({error})"));
        }
        Err(error) => return Reading::Failed(error.to_string()),
    };
    // More than one: kubelets of several nodes share a machine; the reader's own group tells which is its node's.
    let own = proc.text(OWN_GROUPS).unwrap_or_default();
    let is_own = |group: &&String| {
        let below = group.strip_prefix(mount).unwrap_or(group);
        own.lines().any(|line| line.contains(below))
    };
    match &groups[..] {
        [] => Reading::Absent("no limit: no control group of pods".to_owned()),
        [only] => Reading::Value(vec![FileText::optional(sys, format!("{only}/{file}"))]),
        several => match several.iter().find(is_own) {
            Some(own) => Reading::Value(vec![FileText::optional(sys, format!("{own}/{file}"))]),
            None => Reading::Absent(format!("no limit: {} groups of pods, none of this node", several.len())),
        },
    }
}

/// Where the groups of pods are, of every kubelet on the machine: uids are unique.
#[derive(Debug, Clone)]
pub(crate) struct PodGroups {
    hierarchy: Hierarchy,
    groups: Vec<String>,
}

impl PodGroups {
    /// Searches; this looks at some hundred folders.
    pub(crate) fn find(sys: &Tree) -> Reading<Self> {
        let hierarchy = if exists(sys, V1.mount) { V1 } else { V2 };
        match pods_groups(sys, hierarchy.mount) {
            Ok(groups) if groups.is_empty() => {
                Reading::Absent(format!("no control group of pods below /{}", hierarchy.mount))
            }
            Ok(groups) => Reading::Value(PodGroups { hierarchy, groups }),
            Err(error @ TreeError::NotFound { .. }) => Reading::Absent(error.to_string()),
            Err(error) => Reading::Failed(error.to_string()),
        }
    }

    /// The groups of containers of Guaranteed pods.
    pub(crate) fn containers(&self, sys: &Tree) -> Vec<ContainerGroup> {
        let mut found = Vec::new();
        let pods = self.groups.iter().flat_map(|group| {
            let names = sys.names(group).unwrap_or_default();
            names.into_iter().filter_map(move |name| Some((pod_uid(&name)?, format!("{group}/{name}"))))
        });
        for (uid, pod) in pods.take(MAX_PODS) {
            containers_of(sys, self.hierarchy, &pod, &uid, &mut found);
        }
        found
    }
}

fn containers_of(sys: &Tree, hierarchy: Hierarchy, pod: &str, uid: &str, found: &mut Vec<ContainerGroup>) {
    // A pod that ends meanwhile has no folder any more.
    let names = sys.names(pod).unwrap_or_default();
    let containers = names.iter().filter_map(|name| Some((name, container_id(name)?)));
    found.extend(containers.take(MAX_CONTAINERS).map(|(name, id)| ContainerGroup {
        pod_uid: uid.to_owned(),
        container_id: id.to_owned(),
        cpus: FileText::optional(sys, format!("{pod}/{name}/{}", hierarchy.cpus)),
        mems: FileText::optional(sys, format!("{pod}/{name}/{}", hierarchy.mems)),
    }));
}

/// `pod<uid>`, or `kubepods-pod<uid with _ for ->.slice`.
fn pod_uid(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("kubepods-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain && (8..=64).contains(&uid.len())).then_some(uid)
}

/// `<id>`, or `<runtime>-<id>.scope`.
fn container_id(name: &str) -> Option<&str> {
    let id = match name.strip_suffix(".scope") {
        Some(scope) => scope.rsplit_once('-').filter(not_monitor)?.1,
        None => name,
    };
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// CRI-O gives its monitor process a group beside the container's.
fn not_monitor((runtime, _): &(&str, &str)) -> bool {
    !runtime.ends_with("conmon")
}

/// The pods' groups, level by level.
fn pods_groups(sys: &Tree, mount: &str) -> Result<Vec<String>, TreeError> {
    let mut level = vec![mount.to_owned()];
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for depth in 0..SEARCH_DEPTH {
        let mut below = Vec::new();
        for group in level {
            looked_at += 1;
            let names = match sys.folders(&group) {
                Ok(names) => names,
                Err(error) if depth == 0 => return Err(error),
                // It ended meanwhile.
                Err(_) => BTreeSet::new(),
            };
            for name in names {
                let place = format!("{group}/{name}");
                if name == CGROUPFS_NAME || name.ends_with(SYSTEMD_NAME) {
                    found.push(place);
                } else if looked_at + below.len() < MAX_GROUPS {
                    below.push(place);
                }
            }
        }
        level = below;
    }
    Ok(found)
}

fn exists(sys: &Tree, path: &str) -> bool {
    sys.names(path).is_ok()
}

#[cfg(test)]
mod tests;
