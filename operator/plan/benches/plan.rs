//! Plans on 1,000 nodes of two NUMA nodes and eight GPUs, and prints milliseconds (best and median of 20).
//! `cargo bench -p operator-plan`

#![expect(clippy::print_stdout, reason = "this is what it is for")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../tests/it/machines.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod machines;

use std::hint::black_box;
use std::time::Instant;

use engine_spec::NamedShape;
use node_facts::NodeFacts;
use operator_plan::{NO_SURROUNDINGS, PlanInput, plan};

use machines::{large, machine, object};

const ROUNDS: usize = 20;

fn main() {
    let nodes: Vec<NodeFacts> =
        (0..1000).map(|n| machine(&format!("n{n:04}"), &[large(4), large(4)])).collect();
    time("1 prefill, 1 decode", &nodes, "prefill: {gpus: 4}\n  decode: {gpus: 4}", true);
    time("512 prefill, 512 decode", &nodes, &many(512, 4), true);
    time("512 prefill, 512 decode of 2 GPUs", &nodes, &many(512, 2), true);
    time("a decode that fits nowhere", &nodes, "prefill: {gpus: 4}\n  decode: {gpus: 8}", false);
    let mixed: Vec<NodeFacts> =
        (0..1000).map(|n| machine(&format!("n{n:04}"), &[large(n % 5), large((n / 5) % 5)])).collect();
    time("512 prefill, 512 decode on mixed nodes", &mixed, &many(512, 4), false);
}

fn many(replicas: u32, gpus: u32) -> String {
    let role = format!("{{replicas: {replicas}, gpus: {gpus}}}");
    format!("prefill: {role}\n  decode: {role}\n  hostCache: {{mode: Size, size: 100Ti}}")
}

fn time(what: &str, nodes: &[NodeFacts], spec: &str, feasible: bool) {
    let cluster = object("deepseek-v4-flash", spec);
    let shape = NamedShape::V4Flash.shape();
    let input = PlanInput {
        name: "bench",
        spec: &cluster.spec,
        shape: &shape,
        nodes,
        weight_bytes: None,
        image: None,
        surroundings: &NO_SURROUNDINGS,
    };
    assert_eq!(plan(&input).is_feasible(), feasible, "{what}");
    let mut milliseconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            black_box(plan(black_box(&input)));
            start.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    milliseconds.sort_by(f64::total_cmp);
    let (best, median) = (milliseconds[0], milliseconds[ROUNDS / 2]);
    println!("{what:45} best {best:8.2} ms, median {median:8.2} ms");
}
