use proptest::prelude::*;

use super::*;

fn view(state: WorkerState, running: u32, backlog_tokens: u64) -> WorkerView {
    WorkerView { state, load: WorkerLoad { backlog_tokens, waiting: 0, running } }
}

fn idle(count: usize) -> Vec<WorkerView> {
    vec![view(WorkerState::Ready, 0, 0); count]
}

#[test]
fn equal_workers_take_turns() {
    let (mut policy, mut counts) = (LeastBacklog::default(), [0; 3]);
    for _ in 0..30 {
        counts[policy.choose(&idle(3), &idle(2)).unwrap().decode] += 1;
    }
    assert_eq!(counts, [10, 10, 10]);
}

#[test]
fn the_least_loaded_pair_is_chosen_and_the_choice_says_so() {
    let decodes = [view(WorkerState::Ready, 3, 0), view(WorkerState::Ready, 1, 900)];
    let prefills = [view(WorkerState::Ready, 0, 500), view(WorkerState::Ready, 9, 100)];
    let choice = LeastBacklog::default().choose(&decodes, &prefills).unwrap();
    assert_eq!((choice.decode, choice.prefill), (1, Some(1)));
    assert_eq!(choice.reason.to_string(), "least load: 1 running, 100 tokens to prefill");
}

#[test]
fn a_suspect_serves_when_no_other_is_ready() {
    let mut policy = LeastBacklog::default();
    let suspect = view(WorkerState::Suspect, 0, 0);
    let busy = view(WorkerState::Ready, 90, 90_000);
    assert_eq!(policy.choose(&[suspect, busy], &idle(1)).unwrap().decode, 1);
    let down = view(WorkerState::Down, 0, 0);
    assert_eq!(policy.choose(&[suspect, down], &idle(1)).unwrap().decode, 0);
}

#[test]
fn a_fleet_without_prefills_needs_none() {
    let mut policy = LeastBacklog::default();
    assert_eq!(policy.choose(&idle(1), &[]).unwrap().prefill, None);
    assert_eq!(policy.choose(&[], &idle(1)), Err(NoWorker::Decode));
}

fn views() -> impl Strategy<Value = Vec<WorkerView>> {
    let state = prop::sample::select(WorkerState::ALL.to_vec());
    prop::collection::vec((state, 0..5_u32, 0..1000_u64), 0..6).prop_map(|rows| {
        rows.into_iter().map(|(state, running, tokens)| view(state, running, tokens)).collect()
    })
}

proptest! {
    #[test]
    fn a_choice_takes_requests_and_is_missing_only_when_none_does(
        rounds in prop::collection::vec((views(), views()), 1..20)
    ) {
        let mut policy = LeastBacklog::default();
            for (decodes, prefills) in &rounds {
                let any = |list: &[WorkerView], state| list.iter().any(|view| view.state == state);
                let usable = |list: &[WorkerView]| list.iter().any(|view| view.state.takes_requests());
                match policy.choose(decodes, prefills) {
                    Ok(choice) => {
                        let decode = decodes[choice.decode].state;
                        prop_assert!(decode.takes_requests());
                        prop_assert!(decode == WorkerState::Ready || !any(decodes, WorkerState::Ready));
                        match choice.prefill {
                            Some(index) => prop_assert!(prefills[index].state.takes_requests()),
                            None => prop_assert!(prefills.is_empty()),
                        }
                    }
                    Err(NoWorker::Decode) => prop_assert!(!usable(decodes)),
                    Err(NoWorker::Prefill) => prop_assert!(!prefills.is_empty() && !usable(prefills)),
                }
            }
    }

    #[test]
    fn burst_loads_stay_within_one_request_of_each_other(workers in 1..6_usize, requests in 1..60_usize) {
        let (mut policy, mut decodes) = (LeastBacklog::default(), idle(workers));
        for _ in 0..requests {
            let choice = policy.choose(&decodes, &idle(1)).unwrap();
            decodes[choice.decode].load.running += 1;
        }
        let running = || decodes.iter().map(|view| view.load.running);
        prop_assert!(running().max().unwrap() - running().min().unwrap() <= 1);
    }
}
