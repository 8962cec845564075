//! `fathom local`: start, restart, end, and everything that gets in the way.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bench::{Bench, Said, is_dead, kill, wait_for};

const STARTS: [&str; 3] = ["start prefill", "start decode", "start router"];
const ENDS: [&str; 3] = ["term router", "term decode", "term prefill"];

#[test]
fn up_status_logs_and_down_are_a_round_trip() {
    let bench = Bench::new();
    let up =
        bench.up(&["--detach"]).expect(0, &["needle is ready: http://127.0.0.1:", "curl http://127.0.0.1:"]);
    let status = bench.status();
    let endpoint = status["endpoint"].as_str().unwrap();
    assert!(up.stdout.contains(endpoint), "{up:?}");
    assert_eq!(
        (&status["phase"], &status["running"], &status["ready"]),
        (&json!("Ready"), &json!(true), &json!(true))
    );
    assert_eq!(bench.events(), STARTS);
    assert!(bench.state("plan.json").exists());
    assert_eq!(ureq::get(format!("{endpoint}/readyz")).call().unwrap().status(), 200);

    // Without a name: it is the only one.
    bench
        .fathom(&["local", "status"])
        .expect(0, &["needle: ready at http://", "prefill-0", "decode-0", "router-0"]);
    bench.fathom(&["local", "logs", "needle", "prefill"]).expect(0, &["\"percent\":50"]);
    bench.fathom(&["local", "logs", "needle", "supervisor"]).expect(0, &["needle is ready"]);
    bench
        .fathom(&["local", "logs", "needle", "wizard"])
        .expect(2, &["prefill-0, decode-0, router-0, supervisor"]);
    bench.fathom(&["local", "status", "flash"]).expect(2, &["no cluster `flash`", "needle"]);

    bench.fathom(&["local", "down"]).expect(0, &["needle has ended"]);
    assert_eq!(bench.events()[3..], ENDS);
    for process in status["processes"].as_array().unwrap() {
        assert!(is_dead(&process["pid"]), "{process}");
    }
    assert_eq!(bench.status()["phase"], "Stopped");
    bench.fathom(&["local", "status", "needle"]).expect(1, &["needle: stopped"]);
    bench.fathom(&["local", "down", "needle"]).expect(0, &["was not running"]);
}

#[test]
fn every_process_is_told_its_peers_and_only_listens_where_clients_or_peers_are() {
    let bench = Bench::new();
    bench.up(&["--detach"]).expect(0, &[]);
    let config = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(bench.state(&format!("config/{name}.json"))).unwrap())
            .unwrap()
    };
    let (prefill, decode) = (bench.process("prefill"), bench.process("decode"));
    let peer = json!([{"grpc": prefill["grpc"], "http": prefill["http"]}]);
    assert_eq!(config("decode-0")["peers"]["prefill"], peer);
    assert_eq!(config("router-0")["peers"], json!({"prefill": peer, "decode": [decode["http"]]}));
    assert_eq!(config("prefill-0")["listen"]["grpc"], prefill["grpc"], "its ports are kept for a restart");
}

#[test]
fn a_killed_process_comes_back_on_the_same_ports_and_the_others_stay() {
    let bench = Bench::new();
    bench.up(&["--detach"]).expect(0, &[]);
    let before: Vec<Value> = ["prefill", "decode", "router"].map(|role| bench.process(role)).into();
    for role in ["prefill", "decode", "router"] {
        kill(&bench.process(role)["pid"], Signal::KILL);
        wait_for("the restart", || {
            let now = bench.process(role);
            (now["restarts"] == 1 && now["state"] == "Ready").then_some(())
        });
    }
    for was in before {
        let now = bench.process(was["role"].as_str().unwrap());
        assert_ne!(now["pid"], was["pid"]);
        assert_eq!((&now["http"], &now["grpc"], &now["restarts"]), (&was["http"], &was["grpc"], &json!(1)));
        assert_eq!(now["lastExit"], "signal 9");
    }
    assert_eq!(bench.status()["phase"], "Ready");
    let log = bench.fathom(&["local", "logs", "needle", "supervisor"]).stdout;
    assert!(log.contains("prefill-0 ended (signal 9); starting it again in 0.5 s"), "{log}");
    assert!(log.contains("prefill-0 is ready again"), "{log}");
}

#[test]
fn a_process_that_dies_too_often_stays_down_and_the_rest_goes_on() {
    let bench = Bench::new();
    bench.up(&["--detach"]).expect(0, &[]);
    bench.rule("prefill.die");
    kill(&bench.process("prefill")["pid"], Signal::KILL);
    wait_for("giving up", || (bench.process("prefill")["state"] == "Failed").then_some(()));
    let prefill = bench.process("prefill");
    assert_eq!((&prefill["restarts"], &prefill["lastExit"]), (&json!(5), &json!("exit code 2")));
    assert_eq!(bench.status()["phase"], "Failed");
    assert_eq!(bench.process("decode")["state"], "Ready");
    let status = bench.fathom(&["local", "status"]);
    status.expect(0, &["needle: failed", "stays down", "fake: this prefill was told to die"]);
    bench.fathom(&["local", "down"]).expect(0, &[]);
    assert_eq!(bench.events().iter().filter(|event| *event == "start prefill").count(), 6);
}

#[test]
fn a_second_up_is_refused_with_the_process_that_has_the_name() {
    let bench = Bench::new();
    bench.up(&["--detach"]).expect(0, &[]);
    let supervisor = bench.status()["supervisor"]["pid"].to_string();
    let said = bench.up(&["--detach"]).expect(2, &["`needle` is already running", &supervisor]);
    assert_eq!(said.stderr.trim_end().lines().count(), 1, "{said:?}");
    assert_eq!(bench.status()["phase"], "Ready");
    assert_eq!(bench.events(), STARTS);
}

#[test]
fn a_port_in_use_is_one_line_and_starts_nothing() {
    let bench = Bench::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut args = Bench::up_args();
    args[5] = &address;
    let said = bench.fathom(&args).expect(2, &[&address, "in use"]);
    assert_eq!((said.stdout.as_str(), said.stderr.trim_end().lines().count()), ("", 1), "{said:?}");
    assert_eq!(bench.events().len(), 0);
    bench.fathom(&["local", "status"]).expect(2, &["no cluster has run here yet"]);
}

#[test]
fn a_missing_engine_is_named_with_its_path() {
    let bench = Bench::new();
    std::fs::remove_file(bench.engine()).unwrap();
    bench.up(&[]).expect(2, &[&bench.engine().display().to_string()]);
}

#[test]
fn a_process_that_dies_during_the_start_ends_it_with_its_last_words() {
    for detach in [true, false] {
        let bench = Bench::new();
        bench.rule("decode.die");
        let said = bench.up(if detach { &["--detach"] } else { &[] });
        let said = said.expect(1, &["decode-0 ended (exit code 2)", "fake: this decode was told to die"]);
        assert!(said.stderr.contains("told to die"), "errors go to stderr: {said:?}");
        assert_eq!(bench.events(), ["start prefill", "start decode", "term prefill"]);
        let status = bench.fathom(&["local", "status", "needle"]);
        status
            .expect(1, &["needle: stopped", "decode-0 ended (exit code 2) during the start", "told to die"]);

        // What went wrong is put right: the same command works.
        bench.end_rule("decode.die");
        bench.up(&["--detach"]).expect(0, &["is ready"]);
    }
}

#[test]
fn the_children_of_a_killed_supervisor_die_with_it_and_the_next_up_takes_over() {
    let bench = Bench::new();
    bench.up(&["--detach"]).expect(0, &[]);
    let status = bench.status();
    kill(&status["supervisor"]["pid"], Signal::KILL);
    for process in status["processes"].as_array().unwrap() {
        wait_for("the death of a child", || is_dead(&process["pid"]).then_some(()));
    }
    bench.fathom(&["local", "status"]).expect(1, &["needle: stopped", "gone without having cleaned up"]);
    bench.up(&["--detach"]).expect(0, &["taking over", "is ready"]);
    assert_eq!(bench.status()["phase"], "Ready");
    kill(&bench.status()["supervisor"]["pid"], Signal::KILL);
    wait_for("the supervisor's death", || (bench.status()["running"] == false).then_some(()));
    bench.fathom(&["local", "down"]).expect(0, &["was not running"]);
    assert_eq!(bench.status()["phase"], "Stopped");
}

#[test]
fn a_process_id_that_was_used_again_is_not_mistaken_for_the_supervisor() {
    let bench = Bench::new();
    bench.up(&["--detach"]).expect(0, &[]);
    bench.fathom(&["local", "down"]).expect(0, &[]);
    // As if the supervisor had been killed, and its id had gone to this test.
    let mut state: Value =
        serde_json::from_str(&std::fs::read_to_string(bench.state("state.json")).unwrap()).unwrap();
    state["phase"] = json!("Ready");
    state["supervisor"]["pid"] = json!(std::process::id());
    std::fs::write(bench.state("state.json"), state.to_string()).unwrap();
    std::fs::write(bench.state("lock"), state["supervisor"].to_string()).unwrap();
    assert_eq!(bench.status()["running"], false);
    // It must not signal us.
    bench.fathom(&["local", "down"]).expect(0, &["was not running"]);
    bench.up(&["--detach"]).expect(0, &["is ready"]);
}

#[test]
fn a_full_disk_for_logs_loses_lines_and_nothing_else() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.state("logs")).unwrap();
    for process in ["prefill-0", "supervisor"] {
        symlink("/dev/full", bench.state(&format!("logs/{process}.log"))).unwrap();
    }
    bench.rule("prefill.flood");
    bench.up(&["--detach"]).expect(0, &["is ready"]);
    wait_for("the count of lost lines", || {
        (bench.process("prefill")["droppedLogLines"].as_u64().unwrap() > 20_000).then_some(())
    });
    assert_eq!(bench.process("decode")["droppedLogLines"], 0);
    bench.fathom(&["local", "status"]).expect(0, &["is the disk full?"]);
}

/// `fathom local up` in the foreground, and its output up to the line with `until`.
fn foreground(bench: &Bench, until: &str) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut command = bench.command(&Bench::up_args());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(until) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "ended before {until:?}");
    }
    (child, output)
}

fn end(child: std::process::Child, mut output: BufReader<std::process::ChildStdout>) -> Said {
    let mut stdout = String::new();
    output.read_to_string(&mut stdout).unwrap();
    let rest = Said::of(child.wait_with_output().unwrap());
    Said { stdout, ..rest }
}

#[test]
fn ctrl_c_ends_router_decode_prefill_in_this_order() {
    let bench = Bench::new();
    let (child, output) = foreground(&bench, "Ctrl-C");
    kill(&json!(child.id()), Signal::INT);
    end(child, output).expect(0, &["ending router-0\nending decode-0\nending prefill-0\nneedle has ended"]);
    assert_eq!(bench.events(), [STARTS, ENDS].concat());
}

#[test]
fn ctrl_c_during_the_start_ends_what_was_started() {
    let bench = Bench::new();
    bench.rule("decode.hold");
    let (child, output) = foreground(&bench, "decode-0 loads 50 % · router-0 ready");
    assert_eq!(bench.status()["phase"], "Starting");
    bench.fathom(&["local", "status"]).expect(0, &["needle: starting"]);
    kill(&json!(child.id()), Signal::INT);
    end(child, output).expect(1, &["needle was ended before it was ready"]);
    assert_eq!(bench.events(), [STARTS, ENDS].concat());
}

#[test]
fn completions_exist_for_the_common_shells_and_hide_what_is_internal() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = bench.fathom(&["completions", shell]).expect(0, &["local", "status"]);
        assert!(said.stdout.len() > 1000);
    }
    let help = bench.fathom(&["local", "--help"]).expect(0, &["up", "status", "logs", "down", "Examples:"]);
    assert!(!help.stdout.contains("supervise"), "{}", help.stdout);
}
