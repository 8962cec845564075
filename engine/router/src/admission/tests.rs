use proptest::prelude::*;

use super::*;

const OPEN: Limits = Limits { tokens: None, requests: u32::MAX, tokens_per_second: None };

fn demand(body_bytes: u64) -> Demand {
    Demand { decode: 0, prefill: Some(0), body_bytes }
}

fn all(_: usize) -> bool {
    true
}

#[test]
fn a_dropped_permit_gives_everything_back() {
    let ledger = Ledger::new(1, 1);
    let permit = ledger.admit(demand(4000), &OPEN, all).unwrap();
    let carried = WorkerLoad { backlog_tokens: 1000, waiting: 1, running: 1 };
    assert_eq!(ledger.load(Worker::Decode(0)), carried);
    assert_eq!(ledger.load(Worker::Prefill(0)), carried);
    drop(permit);
    assert_eq!(ledger.load(Worker::Decode(0)), WorkerLoad::default());
    assert_eq!(ledger.load(Worker::Prefill(0)), WorkerLoad::default());
}

#[test]
fn a_seat_is_free_again_when_its_last_request_has_ended() {
    let ledger = Ledger::default();
    let (decode, prefill) = (Worker::Decode(1), Worker::Prefill(0));
    assert!(ledger.is_free(decode) && ledger.is_free(prefill));
    ledger.open(decode);
    ledger.open(prefill);
    let demand = Demand { decode: 1, prefill: Some(0), body_bytes: 4 };
    let mut permit = ledger.admit(demand, &OPEN, all).unwrap();
    permit.computed();
    assert!(!ledger.is_free(decode) && !ledger.is_free(prefill));
    drop(permit);
    assert!(ledger.is_free(decode) && ledger.is_free(prefill));
    assert!(ledger.is_free(Worker::Decode(0)), "a seat that was skipped is free");
}

#[test]
fn a_new_worker_on_a_seat_begins_without_the_reports_of_the_one_before() {
    let ledger = Ledger::new(1, 0);
    let poll = ledger.poll_begins(Worker::Decode(0));
    ledger.reported(Worker::Decode(0), poll, 0);
    ledger.open(Worker::Decode(0));
    let demand = Demand { decode: 0, prefill: None, body_bytes: 4000 };
    let _permit = ledger.admit(demand, &OPEN, all).unwrap();
    ledger.poll_begins(Worker::Decode(0));
    assert_eq!(ledger.load(Worker::Decode(0)).backlog_tokens, 1000);
}

#[test]
fn a_computed_prompt_leaves_the_backlog_and_its_request_runs_on() {
    let ledger = Ledger::new(1, 1);
    let mut permit = ledger.admit(demand(4000), &OPEN, all).unwrap();
    permit.computed();
    assert_eq!(ledger.load(Worker::Decode(0)), WorkerLoad { backlog_tokens: 0, waiting: 0, running: 1 });
}

#[test]
fn a_full_backlog_refuses_and_says_for_how_long() {
    let ledger = Ledger::new(1, 0);
    let limits = Limits { tokens: Some(1500), tokens_per_second: Some(100.0), ..OPEN };
    let demand = Demand { decode: 0, prefill: None, body_bytes: 4000 };
    let first = ledger.admit(demand, &limits, all).unwrap();
    let refusal = ledger.admit(demand, &limits, all).unwrap_err();
    assert_eq!(refusal, Refusal::Tokens { backlog: 1000, own: 1000, limit: 1500, retry_after_s: 5.0 });
    drop(first);
    ledger.admit(demand, &limits, all).unwrap();
}

#[test]
fn the_number_of_waiting_requests_is_a_second_guard() {
    let ledger = Ledger::new(1, 1);
    let limits = Limits { requests: 2, ..OPEN };
    let mut held: Vec<Permit> = (0..2).map(|_| ledger.admit(demand(4), &limits, all).unwrap()).collect();
    assert!(matches!(
        ledger.admit(demand(4), &limits, all),
        Err(Refusal::Requests { waiting: 2, limit: 2, .. })
    ));
    held[0].computed();
    ledger.admit(demand(4), &limits, all).unwrap();
}

#[test]
fn answers_teach_how_many_bytes_a_token_has() {
    let ledger = Ledger::new(1, 1);
    for _ in 0..200 {
        ledger.admit(demand(2000), &OPEN, all).unwrap().prompt_tokens(1000);
    }
    assert!((950..=1050).contains(&ledger.estimate_tokens(2000)));
}

#[test]
fn a_report_limits_what_older_permits_count_and_spares_newer_ones() {
    let ledger = Ledger::new(1, 1);
    let decode = Worker::Decode(0);
    let old = ledger.admit(demand(4000), &OPEN, all).unwrap();
    let poll = ledger.poll_begins(decode);
    let new = ledger.admit(demand(400), &OPEN, all).unwrap();
    ledger.reported(decode, poll, 0);
    assert_eq!(ledger.load(decode), WorkerLoad { backlog_tokens: 100, waiting: 1, running: 2 });
    ledger.forget_report(decode);
    assert_eq!(ledger.load(decode).backlog_tokens, 1100);
    drop((old, new));
    assert_eq!(ledger.load(decode), WorkerLoad::default());
}

#[derive(Debug, Clone)]
enum Event {
    Admit { decode: usize, body_bytes: u64 },
    Correct { which: usize, tokens: u64 },
    Computed { which: usize },
    End { which: usize },
    PollBegins { decode: usize },
    Reported { decode: usize, late: u64, tokens: u64 },
    Forget { decode: usize },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..3_usize, 0..100_000_u64).prop_map(|(decode, body_bytes)| Event::Admit { decode, body_bytes }),
        1 => (any::<usize>(), 0..50_000_u64).prop_map(|(which, tokens)| Event::Correct { which, tokens }),
        2 => any::<usize>().prop_map(|which| Event::Computed { which }),
        2 => any::<usize>().prop_map(|which| Event::End { which }),
        1 => (0..3_usize).prop_map(|decode| Event::PollBegins { decode }),
        1 => (0..3_usize, 0..2_u64, 0..50_000_u64)
            .prop_map(|(decode, late, tokens)| Event::Reported { decode, late, tokens }),
        1 => (0..3_usize).prop_map(|decode| Event::Forget { decode }),
    ];
    prop::collection::vec(event, 0..200)
}

fn pick(held: &mut [Permit], which: usize) -> Option<&mut Permit> {
    let index = which.checked_rem(held.len())?;
    held.get_mut(index)
}

proptest! {
    #[test]
    fn after_any_history_the_books_match_the_permits_and_end_at_zero(events in events()) {
        let ledger = Ledger::new(3, 2);
        let limits = Limits { tokens: Some(60_000), requests: 20, tokens_per_second: Some(1000.0) };
        let mut held: Vec<Permit> = Vec::new();
        let mut polls = [0_u64; 3];
        for event in events {
            match event {
                Event::Admit { decode, body_bytes } => {
                    let demand = Demand { decode, prefill: Some(decode % 2), body_bytes };
                    let (backlog, waiting) = ledger.totals(all);
                    let own = ledger.estimate_tokens(body_bytes);
                    match ledger.admit(demand, &limits, all) {
                        Ok(permit) => {
                            prop_assert!(backlog == 0 || backlog + own <= 60_000);
                            prop_assert!(waiting < 20);
                            held.push(permit);
                        }
                        Err(refusal) => prop_assert!(refusal.retry_after_s() >= 1.0),
                    }
                }
                Event::Correct { which, tokens } => {
                    if let Some(permit) = pick(&mut held, which) { permit.prompt_tokens(tokens); }
                }
                Event::Computed { which } => {
                    if let Some(permit) = pick(&mut held, which) { permit.computed(); }
                }
                Event::End { which } => {
                    if let Some(index) = which.checked_rem(held.len()) { held.swap_remove(index); }
                }
                Event::PollBegins { decode } => polls[decode] = ledger.poll_begins(Worker::Decode(decode)),
                Event::Reported { decode, late, tokens } => {
                    ledger.reported(Worker::Decode(decode), polls[decode].saturating_sub(late), tokens);
                }
                Event::Forget { decode } => ledger.forget_report(Worker::Decode(decode)),
            }
            for decode in 0..3 {
                let load = ledger.load(Worker::Decode(decode));
                let mine = || held.iter().filter(|permit| permit.demand.decode == decode);
                let waiting: Vec<&Permit> = mine().filter(|permit| permit.waits).collect();
                let tokens: u64 = waiting.iter().map(|permit| permit.decode_entry.tokens()).sum();
                prop_assert_eq!(load.running as usize, mine().count());
                prop_assert!(load.waiting as usize <= waiting.len());
                prop_assert!(load.backlog_tokens <= tokens);
            }
        }
        // Without reports the books are exact.
        for decode in 0..3 {
            ledger.forget_report(Worker::Decode(decode));
            let mine = held.iter().filter(|permit| permit.demand.decode == decode && permit.waits);
            let tokens: u64 = mine.map(|permit| permit.decode_entry.tokens()).sum();
            prop_assert_eq!(ledger.load(Worker::Decode(decode)).backlog_tokens, tokens);
        }
        held.clear();
        for worker in [0, 1, 2].map(Worker::Decode).into_iter().chain([0, 1].map(Worker::Prefill)) {
            prop_assert_eq!(ledger.load(worker), WorkerLoad::default());
        }
    }

    #[test]
    fn an_estimate_is_at_least_one_token_and_never_falls_with_size(
        learned in prop::collection::vec((0..u64::from(u32::MAX), 0..u64::from(u32::MAX)), 0..50),
        bytes in 0..u64::from(u32::MAX),
    ) {
        let ledger = Ledger::new(1, 1);
        for (bytes, tokens) in learned {
            ledger.admit(demand(bytes), &OPEN, all).unwrap().prompt_tokens(tokens);
        }
        prop_assert!(ledger.estimate_tokens(bytes) >= 1);
        prop_assert!(ledger.estimate_tokens(bytes + 1000) >= ledger.estimate_tokens(bytes));
    }
}
