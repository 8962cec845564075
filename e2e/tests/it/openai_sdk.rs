//! The openai Python SDK, unchanged, against a local cluster.

use std::process::Command;

use e2e::cluster::{Cluster, root};

#[test]
fn the_openai_sdk_chats_streams_and_stops() {
    // A missing SDK fails the test: it never passes in silence.
    let python = std::env::var("FATHOM_PYTHON").expect("FATHOM_PYTHON: `./dev e2e` sets it");
    let cluster = Cluster::start(|_| {}).unwrap();
    let output = Command::new(python)
        .arg(root().join("e2e/openai_sdk.py"))
        .arg(format!("{}/v1", cluster.endpoint))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
