use proptest::prelude::*;

use super::*;

fn view(state: WorkerState, running: u32, backlog_tokens: u64) -> WorkerView<'static> {
    WorkerView { state, load: WorkerLoad { backlog_tokens, waiting: 0, running }, revision: Some("a") }
}

fn of(revision: Option<&str>, state: WorkerState) -> WorkerView<'_> {
    WorkerView { revision, ..view(state, 0, 0) }
}

fn idle(count: usize) -> Vec<WorkerView<'static>> {
    vec![view(WorkerState::Ready, 0, 0); count]
}

#[test]
fn equal_workers_take_turns() {
    let (mut policy, mut counts) = (LeastBacklog::default(), [0; 3]);
    for _ in 0..30 {
        counts[policy.choose(&idle(3), Some(&idle(2))).unwrap().decode] += 1;
    }
    assert_eq!(counts, [10, 10, 10]);
}

#[test]
fn the_least_loaded_pair_is_chosen_and_the_choice_says_so() {
    let decodes = [view(WorkerState::Ready, 3, 0), view(WorkerState::Ready, 1, 900)];
    let prefills = [view(WorkerState::Ready, 0, 500), view(WorkerState::Ready, 9, 100)];
    let choice = LeastBacklog::default().choose(&decodes, Some(&prefills)).unwrap();
    assert_eq!((choice.decode, choice.prefill), (1, Some(1)));
    assert_eq!(choice.reason.to_string(), "least load: 1 running, 100 tokens to prefill");
}

#[test]
fn a_suspect_serves_when_no_other_is_ready() {
    let mut policy = LeastBacklog::default();
    let suspect = view(WorkerState::Suspect, 0, 0);
    let busy = view(WorkerState::Ready, 90, 90_000);
    assert_eq!(policy.choose(&[suspect, busy], Some(&idle(1))).unwrap().decode, 1);
    let down = view(WorkerState::Down, 0, 0);
    assert_eq!(policy.choose(&[suspect, down], Some(&idle(1))).unwrap().decode, 0);
}

#[test]
fn decodes_that_compute_prompts_need_no_prefills_and_others_do() {
    let mut policy = LeastBacklog::default();
    assert_eq!(policy.choose(&idle(1), None).unwrap().prefill, None);
    assert_eq!(policy.choose(&[], None), Err(NoWorker::Decode));
    assert_eq!(policy.choose(&idle(1), Some(&[])), Err(NoWorker::Prefill));
}

#[test]
fn a_decode_without_a_prefill_of_its_revision_is_no_choice() {
    use WorkerState::{NotReady, Ready};
    let mut policy = LeastBacklog::default();
    let decodes = [of(Some("old"), Ready), of(Some("new"), Ready)];
    let prefills = [of(Some("old"), NotReady), of(Some("new"), Ready)];
    for _ in 0..4 {
        let choice = policy.choose(&decodes, Some(&prefills)).unwrap();
        assert_eq!((choice.decode, choice.prefill), (1, Some(1)));
    }
    assert_eq!(policy.choose(&decodes[..1], Some(&prefills)), Err(NoWorker::Pair));
    assert_eq!(check_usable(&decodes[..1], Some(&prefills)), Err(NoWorker::Pair));
    assert_eq!(check_usable(&decodes, Some(&prefills)), Ok(()));
}

#[test]
fn a_ready_pair_is_better_than_one_with_a_suspect() {
    use WorkerState::{Ready, Suspect};
    let decodes = [of(Some("old"), Ready), of(Some("new"), Ready)];
    let prefills = [of(Some("old"), Suspect), of(Some("new"), Ready)];
    let mut policy = LeastBacklog::default();
    for _ in 0..4 {
        assert_eq!(policy.choose(&decodes, Some(&prefills)).unwrap().decode, 1);
    }
    assert_eq!(policy.choose(&decodes[..1], Some(&prefills)).unwrap().prefill, Some(0));
}

fn views() -> impl Strategy<Value = Vec<WorkerView<'static>>> {
    let state = prop::sample::select(WorkerState::ALL.to_vec());
    let revision = prop::sample::select(vec![Some("old"), Some("new"), None]);
    prop::collection::vec((state, 0..5_u32, 0..1000_u64, revision), 0..6).prop_map(|rows| {
        rows.into_iter()
            .map(|(state, running, tokens, revision)| WorkerView { revision, ..view(state, running, tokens) })
            .collect()
    })
}

/// Whether some two that take requests are of one revision.
fn any_pair(decodes: &[WorkerView<'_>], prefills: &[WorkerView<'_>]) -> bool {
    let usable = |view: &&WorkerView<'_>| view.state.takes_requests();
    decodes.iter().filter(usable).any(|decode| {
        prefills.iter().filter(usable).any(|prefill| {
            decode.revision.is_none() || prefill.revision.is_none() || decode.revision == prefill.revision
        })
    })
}

proptest! {
    #[test]
    fn a_choice_is_a_pair_of_one_revision_and_is_missing_only_when_there_is_none(
        rounds in prop::collection::vec((views(), views()), 1..20)
    ) {
        let mut policy = LeastBacklog::default();
        for (decodes, prefills) in &rounds {
            let usable = |list: &[WorkerView<'_>]| list.iter().any(|view| view.state.takes_requests());
            match policy.choose(decodes, Some(prefills)) {
                Ok(choice) => {
                    let (decode, prefill) = (decodes[choice.decode], prefills[choice.prefill.unwrap()]);
                    prop_assert!(decode.state.takes_requests() && prefill.state.takes_requests());
                    prop_assert!(any_pair(&[decode], &[prefill]), "{decode:?} {prefill:?}");
                    let better = |view: &&WorkerView<'_>| view.state == WorkerState::Ready;
                    let ready: Vec<_> = decodes.iter().filter(better).copied().collect();
                    prop_assert!(decode.state == WorkerState::Ready || !any_pair(&ready, prefills));
                }
                Err(NoWorker::Decode) => prop_assert!(!usable(decodes)),
                Err(NoWorker::Prefill) => prop_assert!(!usable(prefills)),
                Err(NoWorker::Pair) => prop_assert!(
                    usable(decodes) && usable(prefills) && !any_pair(decodes, prefills)
                ),
            }
        }
    }

    #[test]
    fn burst_loads_stay_within_one_request_of_each_other(workers in 1..6_usize, requests in 1..60_usize) {
        let (mut policy, mut decodes) = (LeastBacklog::default(), idle(workers));
        for _ in 0..requests {
            let choice = policy.choose(&decodes, Some(&idle(1))).unwrap();
            decodes[choice.decode].load.running += 1;
        }
        let running = || decodes.iter().map(|view| view.load.running);
        prop_assert!(running().max().unwrap() - running().min().unwrap() <= 1);
    }
}
