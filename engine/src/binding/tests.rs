use super::*;

/// In a thread of its own: a binding must not reach other tests.
fn bind_in_a_thread(config: BindingConfig) -> Report {
    std::thread::spawn(move || bind(&config)).join().unwrap()
}

#[test]
fn cpu_lists_are_read_as_the_kernel_writes_them() {
    assert_eq!(parse_cpu_list("0-2,7\n").unwrap(), BTreeSet::from([0, 1, 2, 7]));
    for bad in ["", "a", "1-", "3-1", "0-99999999999", "1,,2", "4294967296"] {
        assert!(parse_cpu_list(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_cannot_be_bound_is_said_and_nothing_breaks() {
    let asked = BindingConfig {
        cpus: Some("1000".to_owned()),
        memory_node: Some(777),
        threads: Some(3),
        ..BindingConfig::default()
    };
    let report = bind_in_a_thread(asked.clone());
    assert_eq!((report.cpus.state, report.memory.state), (State::Refused, State::Refused));
    assert!(report.cpus.error.as_ref().unwrap().starts_with("EINVAL"), "{report:?}");
    assert_eq!(report.memory.asked.as_deref(), Some("node 777"));
    assert_eq!((report.threads, report.unmet()), (3, None));

    let required = BindingConfig { cpus_required: true, ..asked.clone() };
    let why = bind_in_a_thread(required).unmet().unwrap();
    assert!(why.contains("cpus to 1000 is required and refused: EINVAL"), "{why}");
    let required = BindingConfig { memory_required: true, ..asked };
    let why = bind_in_a_thread(required).unmet().unwrap();
    assert!(why.contains("memory to node 777 is required and refused") && !why.contains("cpus to"), "{why}");
}

#[test]
fn a_process_finds_itself_on_the_cpus_asked_for() {
    let handle = std::thread::spawn(|| {
        let report = bind(&BindingConfig { cpus: Some("0".to_owned()), ..BindingConfig::default() });
        (report, sched_getaffinity(None).unwrap().count())
    });
    let (report, count) = handle.join().unwrap();
    assert_eq!((report.cpus.state, report.cpus.error, count), (State::Achieved, None, 1));
    assert_eq!(report.memory.state, State::NotAsked);
}

/// The kernel would be content with CPU 0.
#[test]
fn a_part_of_the_cpus_is_not_what_was_asked_for() {
    let asked = BindingConfig { cpus: Some("0,1000".to_owned()), ..BindingConfig::default() };
    let report = bind_in_a_thread(asked);
    assert_eq!(report.cpus.state, State::Refused);
    assert!(report.cpus.error.unwrap().contains("only 1 of these 2"), "");
}

#[test]
fn a_report_is_spelled_as_the_operator_reads_it() {
    let refused = Bound::of("0-3".to_owned(), true, Err((State::Refused, "EINVAL: x".to_owned())));
    let report = Report { cpus: refused, ..Report::unbound(4) };
    let json = serde_json::to_value(&report).unwrap();
    let cpus =
        serde_json::json!({"asked": "0-3", "state": "refused", "error": "EINVAL: x", "required": true});
    let memory = serde_json::json!({"asked": null, "state": "notAsked", "error": null, "required": false});
    assert_eq!(json, serde_json::json!({"cpus": cpus, "memory": memory, "threads": 4}));
    assert_eq!(report.cpus.line(), "0-3: refused: EINVAL: x");
    assert_eq!(report.memory.line(), "notAsked");
}
