//! `fathom plan`: what it prints, and its exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/examples").join(name)
}

fn fathom_plan(file: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fathom"));
    command.arg("plan").arg("-f").arg(file).args(arguments).output().unwrap()
}

/// Standard output, or standard error when the exit code is 2.
#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    if code == 2 { err.into_owned() } else { out.into_owned() }
}

#[track_caller]
fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn the_story_is_planned_with_its_limits_and_where_they_come_from() {
    let text = said(&fathom_plan(&example("story.yaml"), &["--facts", "story"]), 0);
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
    expect(&row("flash-prefill-0"), &["story NUMA 0", " 0-3 ", "112.6 GiB"]);
    expect(&row("flash-decode-0"), &["story NUMA 1", " 4-7 ", "143.0 GiB"]);
    expect(
        &text,
        &[
            "78,144 tokens, 32 requests",
            "0.8 x 3,300 tokens/s",
            "asked 300.0 GiB in total, granted 255.7 GiB",
            "asked 150.0 GiB, granted 112.6 GiB: NUMA node 0 headroom",
            "= ratio 2.56",
            "asked 150.0 GiB, granted 143.0 GiB: NUMA node 1 headroom",
            "= ratio 3.25",
        ],
    );
}

#[test]
fn json_holds_the_plan_and_its_report() {
    let output = fathom_plan(&example("story.yaml"), &["--facts", "story", "--facts", "story", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&said(&output, 0)).unwrap();
    assert_eq!(json["plan"]["replicas"][1]["numaNode"], 1);
    assert_eq!(json["plan"]["queueLimit"]["tokens"], 78_144);
    assert_eq!(json["report"]["rejectedTotal"], 0);
}

#[test]
fn what_does_not_fit_says_what_is_missing_where_and_exits_1() {
    let output = fathom_plan(&example("story.yaml"), &["--facts", "one-socket", "--facts", "one-socket"]);
    expect(
        &said(&output, 1),
        &["this cannot run here", "one-socket/numa0", "one-socket-2/numa0", "2 of 4 GPUs free"],
    );
}

#[test]
fn a_wrong_input_is_one_line_and_exits_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yaml");
    let good = std::fs::read_to_string(example("story.yaml")).unwrap();
    std::fs::write(&file, good.replace("decode: {replicas", "decode: {replica")).unwrap();
    let typo = said(&fathom_plan(&file, &["--facts", "story"]), 2);
    expect(&typo, &["cluster.yaml: line ", "column ", "`replica`"]);
    let missing = said(&fathom_plan(&folder.path().join("none.yaml"), &[]), 2);
    expect(&missing, &["cannot read", "none.yaml"]);
    let scene = said(&fathom_plan(&example("story.yaml"), &["--facts", "nowhere"]), 2);
    expect(&scene, &["nowhere", "story"]);
    for text in [typo, missing, scene] {
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn the_quickstart_is_planned_on_a_machine_without_gpus() {
    let text = said(&fathom_plan(&example("needle-local.yaml"), &["--facts", "no-gpu"]), 0);
    expect(&text, &["needle-prefill-0", "needle-decode-0", "1 x router", "measured at start"]);
}
