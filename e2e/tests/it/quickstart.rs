//! The quickstart's own question, asked by its own script.

use std::process::Command;

use e2e::cluster::{Cluster, root};

#[test]
fn the_quickstart_question_is_answered() {
    let cluster = Cluster::start(|_| {}).unwrap();
    let output = Command::new("python3")
        .arg(root().join("e2e/quickstart.py"))
        .arg(&cluster.endpoint)
        .arg(root().join("engine/testdata/needle/eval.jsonl"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("time to first token"), "{text}");
}
