use std::path::Path;

use expect_test::expect;
use fathom_crds::Quantity;
use fathom_operator::plan_service::Replaced;

use super::*;

fn story() -> fathom_crds::InferenceCluster {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/examples/story.yaml");
    planning::read(&path).unwrap()
}

fn diff(spec: Vec<Difference>, pods: Changes) -> Diff {
    Diff {
        name: "flash".to_owned(),
        namespace: "team-a".to_owned(),
        exists: true,
        spec,
        feasible: true,
        refusals: Vec::new(),
        pods,
    }
}

#[test]
fn fields_are_named_with_both_values() {
    let stored = story();
    let mut file = story();
    file.spec.decode.replicas = 2;
    file.spec.prefill = None;
    file.spec.runtime.image = Some("example.org/engine:2".to_owned());
    file.spec.host_cache.size = Some(Quantity::from_bytes(200 << 30));
    let found = differences(&stored.spec, &file.spec).unwrap();
    let text: String = found.iter().map(|difference| format!("{difference}\n")).collect();
    expect![[r#"
        ~ spec.decode.replicas: 1 -> 2
        ~ spec.hostCache.size: "300Gi" -> "200Gi"
        - spec.prefill: {"replicas":1,"gpus":4,"cpus":16}
        + spec.runtime.image: "example.org/engine:2"
    "#]]
    .assert_eq(&text);
    assert!(differences(&stored.spec, &stored.spec).unwrap().is_empty());
}

#[test]
fn pods_that_would_restart_are_named_with_the_reason() {
    let pods = Changes {
        kept: vec!["flash-prefill-0-aaaaa".to_owned()],
        created: vec!["flash-decode-1-ccccc".to_owned()],
        replaced: vec![Replaced {
            pod: "flash-decode-0-old00".to_owned(),
            by: "flash-decode-0-bbbbb".to_owned(),
            because: "the revision changes from r1 to r2".to_owned(),
        }],
        removed: vec!["flash-decode-2-ddddd".to_owned()],
    };
    let field =
        Difference { field: "spec.decode.replicas".to_owned(), from: Some(1.into()), to: Some(2.into()) };
    expect![[r#"
        flash in namespace team-a: the spec would change
          ~ spec.decode.replicas: 1 -> 2
        Engine pods
          - flash-decode-0-old00 is replaced by flash-decode-0-bbbbb: the revision changes from r1 to r2
          - flash-decode-2-ddddd is removed
          + flash-decode-1-ccccc is created
            flash-prefill-0-aaaaa stays
    "#]]
    .assert_eq(&text(&diff(vec![field], pods)));
}

#[test]
fn a_new_object_and_an_impossible_one_are_told_apart() {
    let new = Diff { exists: false, ..diff(Vec::new(), Changes::default()) };
    expect![[r#"
        flash is not in namespace team-a yet: it would be new
        No engine pod is there, and none would be
    "#]]
    .assert_eq(&text(&new));
    let refusals = vec!["decode needs 16 GPUs on one NUMA node".to_owned()];
    let impossible = Diff { feasible: false, refusals, ..diff(Vec::new(), Changes::default()) };
    expect![[r#"
        flash in namespace team-a: the spec stays as it is
        It would not run; what runs now stays:
          decode needs 16 GPUs on one NUMA node
    "#]]
    .assert_eq(&text(&impossible));
}
