//! What the chart's files say; what becomes of them is asked on a cluster.

use e2e::cluster::root;

fn templates() -> Vec<(String, String)> {
    let mut folders = vec![root().join("charts/fathom/templates")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

fn template(path: &str) -> String {
    std::fs::read_to_string(root().join("charts/fathom/templates").join(path)).unwrap()
}

/// A26: where OwnerReferencesPermissionEnforcement is on, no child can be made without this right.
#[test]
fn the_operator_may_name_an_owner_that_must_not_go_before_its_children() {
    let rules = template("operator/_rules.tpl");
    let rule = "- apiGroups: [fathom.dev]\n  resources: [inferenceclusters/finalizers]\n  verbs: [update]\n";
    assert!(rules.contains(rule), "{rules}");
}

/// A13: two writers of one status cannot erase each other's words where there is one.
#[test]
fn a_node_agent_has_no_right_to_any_object_of_ours() {
    let rights = template("node-agent/rights.yaml");
    assert!(rights.contains("tokenreviews") && !rights.contains("fathom.dev"), "{rights}");
}

/// A73: what an uninstalled operator would have to answer for, nobody waits for.
#[test]
fn the_chart_leaves_no_webhook_and_no_finalizer_behind() {
    let all = templates();
    assert!(all.len() > 10, "{} templates", all.len());
    for (path, text) in all {
        assert!(!text.contains("WebhookConfiguration") && !text.contains("finalizers:"), "{path}");
    }
}
