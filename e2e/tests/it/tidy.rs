//! Rules of the repository that no compiler checks: dependency edges, paths named in the documents, file sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::cluster::root;
use serde_json::Value;

/// `crate`, what it must never reach, and why. Reaching counts through other crates.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("operator-plan", &["kube", "kube-client", "tokio", "tonic", "rand", "reqwest"], "planning is pure"),
    ("engine-spec", &["kube-core", "tokio", "tonic", "rand"], "arithmetic is pure"),
    ("fathom-crds", &["kube", "kube-client", "tokio"], "the API types need no client"),
    ("operator-plan", &["fathom-kernels", "engine-model", "fathom-engine"], "planning knows no kernels"),
    (
        "fathom-operator",
        &["fathom-kernels", "engine-model", "fathom-engine"],
        "the operator computes no model",
    ),
    ("engine-router", &["fathom-kernels", "engine-model"], "routing knows no kernels"),
    ("node-facts", &["nvml-wrapper", "tokio"], "facts are data"),
];

#[test]
fn no_crate_reaches_what_it_must_not() {
    let edges = dependencies();
    for (from, targets, why) in FORBIDDEN {
        let reached = reachable(&edges, from);
        for target in *targets {
            assert!(!reached.contains(*target), "{from} reaches {target}, but {why}");
        }
    }
}

#[test]
fn kernels_depend_on_none_of_our_crates() {
    let ours =
        ["engine-spec", "engine-model", "fathom-engine", "engine-proto", "engine-router", "node-facts"];
    let reached = reachable(&dependencies(), "fathom-kernels");
    assert!(ours.iter().all(|name| !reached.contains(*name)), "{reached:?}");
}

#[test]
fn only_the_node_agent_asks_nvml_and_only_the_kernels_know_cuda() {
    for (name, direct) in dependencies() {
        assert!(
            !direct.contains("nvml-wrapper") || name == "fathom-node-agent",
            "{name} depends on nvml-wrapper"
        );
        assert!(!direct.contains("cudarc") || name == "fathom-kernels", "{name} depends on cudarc");
    }
}

#[test]
fn every_path_named_in_the_documents_exists() {
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for path in named_paths(&text) {
            assert!(root().join(&path).exists(), "{document} names {path}, which does not exist");
        }
    }
}

#[test]
fn source_files_stay_readable_and_have_telling_names() {
    for file in tracked_sources() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 600, "{} has {lines} lines; 600 is the limit", file.display());
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let vague = ["util", "utils", "common", "helper", "helpers", "misc", "manager"];
        assert!(!vague.contains(&stem.as_str()), "{} says nothing about what is in it", file.display());
    }
}

/// Direct normal dependencies of every package in the build, by name.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (p["id"].as_str().unwrap(), p["name"].as_str().unwrap()))
        .collect();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let direct = edges.entry(names[node["id"].as_str().unwrap()].to_owned()).or_default();
        for dependency in node["deps"].as_array().unwrap() {
            let kinds = dependency["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                direct.insert(names[dependency["pkg"].as_str().unwrap()].to_owned());
            }
        }
    }
    edges
}

fn reachable(edges: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    assert!(edges.contains_key(from), "no package {from}");
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        for next in &edges[&name] {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

/// Back-quoted words that look like paths of this repository: they contain a slash and start with a tracked folder.
fn named_paths(text: &str) -> BTreeSet<String> {
    let folders = ["crds/", "kernels/", "engine/", "node-agent/", "operator/", "e2e/", "charts/", ".ci/"];
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| folders.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| !word.contains([' ', '<', '{', '*']))
        .map(|word| word.trim_end_matches('/').to_owned())
        .collect()
}

fn tracked_sources() -> Vec<PathBuf> {
    let output =
        Command::new("git").args(["ls-files", "*.rs", "*.py", "*.sh"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter(|line| !Path::new(line).starts_with("engine/testdata"))
        .map(PathBuf::from)
        .collect()
}
