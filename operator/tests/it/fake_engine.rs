//! A stand-in for `fathom-engine` that keeps to its contract (`--config`, the `listening` line, `/readyz`, SIGTERM)
//! and misbehaves on demand.
//!
//! It is this very test program, started again by a script that lies beside `fathom` (see [`crate::bench`]): so no
//! program that is only for tests is ever built into the release folder. What it shall do wrong is said by files in
//! the folder `FAKE_ENGINE_RULES`, named ROLE.RULE; what it did is appended to `events` there.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use engine_spec::config::EngineConfig;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

#[test]
#[ignore = "no test: the engine of the tests, started by the script beside `fathom`"]
fn process() {
    let config = std::env::var("FAKE_ENGINE_CONFIG").expect("only the script starts this");
    let rules = PathBuf::from(std::env::var("FAKE_ENGINE_RULES").unwrap());
    run(&EngineConfig::from_json(&std::fs::read_to_string(config).unwrap()).unwrap(), &rules);
}

fn run(config: &EngineConfig, rules: &Path) {
    let role = config.role.to_string();
    let told = |rule: &str| rules.join(format!("{role}.{rule}")).exists();
    let note = |what: &str| {
        let mut events = OpenOptions::new().create(true).append(true).open(rules.join("events")).unwrap();
        // One write: lines of several processes do not mix.
        events.write_all(format!("{what} {role}\n").as_bytes()).unwrap();
    };
    note("start");
    let mut signals = Signals::new([SIGTERM]).unwrap();
    if told("die") {
        eprintln!("fake: this {role} was told to die");
        exit(2);
    }
    if told("flood") {
        for line in 0..20_000 {
            eprintln!("fake: flood of {role}, line {line}");
        }
    }
    let http = TcpListener::bind(config.listen.http).unwrap();
    let grpc = config.listen.grpc.map(|address| TcpListener::bind(address).unwrap());
    let grpc = grpc.as_ref().map(|listener| listener.local_addr().unwrap());
    let line = serde_json::json!({
        "event": "listening", "role": config.role, "http": http.local_addr().unwrap(), "grpc": grpc,
    });
    // The test harness has begun a line of its own.
    println!("\n{line}");
    eprintln!(r#"{{"level":"INFO","fields":{{"message":"loading","percent":50}}}}"#);

    let hold = rules.join(format!("{role}.hold"));
    std::thread::spawn(move || http.incoming().flatten().for_each(|stream| answer(stream, !hold.exists())));
    signals.forever().next();
    note("term");
    exit(0);
}

fn answer(mut stream: TcpStream, ready: bool) {
    let mut request = BufReader::new(&stream).lines();
    while request.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let status = if ready { "200 OK" } else { "503 Service Unavailable" };
    let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
}

#[expect(clippy::exit, reason = "it plays a program")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}
