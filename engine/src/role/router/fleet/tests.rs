use engine_router::RequestResult;
use engine_spec::config::PeersConfig;
use proptest::prelude::*;

use super::seats::SEATS;
use super::*;

fn fleet() -> Fleet {
    let text = r#"{"name": "r", "role": "router", "model": {"name": "m", "contextTokens": 256}, "peers":
        {"discovery": {"namespace": "n", "prefillService": "x-prefill", "decodeService": "x-decode"}}}"#;
    Fleet::new(&EngineConfig::from_json(text).unwrap())
}

fn roster(decodes: &[&str], prefills: &[&str]) -> Roster {
    let prefill = prefills.iter().map(|grpc| serde_json::json!({"grpc": grpc, "http": grpc}));
    let peers = serde_json::json!({"decode": decodes, "prefill": prefill.collect::<Vec<_>>()});
    Roster::listed(&serde_json::from_value::<PeersConfig>(peers).unwrap()).unwrap()
}

fn ready(fleet: &Fleet, peers: &[Arc<Peer>], revision: &str) {
    for peer in peers {
        let poll = fleet.poll_begins(peer).unwrap();
        let said = SelfReport { revision: revision.to_owned(), ..SelfReport::default() };
        fleet.polled_ready(peer, poll, Some(said));
    }
}

#[test]
fn a_seat_is_given_again_when_the_requests_of_the_one_before_have_ended() {
    let fleet = fleet();
    ready(&fleet, &fleet.adopt(&roster(&["a:1"], &["p:1"])), "r");
    let placed = fleet.place(100).unwrap();
    assert_eq!((placed.decode.address(), placed.decode.worker()), ("a:1", Worker::Decode(0)));

    assert!(fleet.adopt(&roster(&[], &["p:1"])).is_empty());
    assert!(placed.decode.gone.is_cancelled());
    assert_eq!(fleet.place(100).unwrap_err(), NotPlaced::NoWorker(NoWorker::Decode));

    let second = fleet.adopt(&roster(&["b:1"], &["p:1"]));
    assert_eq!(second[0].worker(), Worker::Decode(1), "a request of `a` still runs on seat 0");
    drop(placed);
    let third = fleet.adopt(&roster(&["b:1", "c:1"], &["p:1"]));
    assert_eq!((third.len(), third[0].worker()), (1, Worker::Decode(0)));
    assert!(fleet.status().iter().all(|worker| worker.load == WorkerLoad::default()));
}

#[test]
fn what_is_learned_of_a_worker_that_left_does_not_touch_the_one_on_its_seat() {
    let fleet = fleet();
    let old = fleet.adopt(&roster(&["a:1"], &[]));
    fleet.adopt(&roster(&[], &[]));
    let new = fleet.adopt(&roster(&["b:1"], &[]));
    assert_eq!(old[0].worker(), new[0].worker());
    ready(&fleet, &new, "r");
    fleet.requested(&old[0], RequestResult::ConnectFailed);
    assert!(fleet.poll_begins(&old[0]).is_none());
    assert_eq!(fleet.status()[0].state, WorkerState::Ready);
}

#[test]
fn more_workers_than_seats_wait_until_one_is_free() {
    let fleet = fleet();
    let names: Vec<String> = (0..=SEATS).map(|n| format!("d{n}:1")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(fleet.adopt(&roster(&names, &[])).len(), SEATS);
    assert_eq!(fleet.unseated(), 1);
    names.remove(7);
    let seated = fleet.adopt(&roster(&names, &[]));
    assert_eq!((seated.len(), seated[0].worker(), fleet.unseated()), (1, Worker::Decode(7), 0));
}

#[test]
fn a_worker_is_used_when_it_has_said_which_revision_it_is() {
    let fleet = fleet();
    let peers = fleet.adopt(&roster(&["a:1"], &["p:1"]));
    ready(&fleet, &peers[1..], "r");
    let poll = fleet.poll_begins(&peers[0]).unwrap();
    fleet.polled_ready(&peers[0], poll, None);
    assert_eq!(fleet.ready(), Err(NoWorker::Decode));
    ready(&fleet, &peers[..1], "r");
    assert_eq!(fleet.ready(), Ok(()));
    // A report that is missed later changes nothing of that.
    let poll = fleet.poll_begins(&peers[0]).unwrap();
    fleet.polled_ready(&peers[0], poll, None);
    assert_eq!(fleet.ready(), Ok(()));
    ready(&fleet, &peers[..1], "other");
    assert_eq!(fleet.ready(), Err(NoWorker::Pair));
}

proptest! {
    /// Whoever comes and goes while requests run: no pair of two revisions, and nothing is left when they have ended.
    #[test]
    fn workers_that_come_and_go_leave_no_trace(rounds in prop::collection::vec((0..16_u8, 0..16_u8, 0..3_u8), 1..30)) {
        let fleet = fleet();
        let mut running = Vec::new();
        for (decodes, prefills, ended) in rounds {
            let names = |prefix: &str, bits: u8| -> Vec<String> {
                (0..4).filter(|n| bits & (1 << n) != 0).map(|n| format!("{prefix}{n}:1")).collect()
            };
            let (decodes, prefills) = (names("d", decodes), names("p", prefills));
            let strs = |names: &[String]| names.iter().map(|name| (*name).clone()).collect::<Vec<_>>();
            let (d, p) = (strs(&decodes), strs(&prefills));
            let (d, p): (Vec<&str>, Vec<&str>) =
                (d.iter().map(String::as_str).collect(), p.iter().map(String::as_str).collect());
            for peer in fleet.adopt(&roster(&d, &p)) {
                let odd = peer.address().as_bytes()[1] % 2 == 1;
                ready(&fleet, &[peer], if odd { "new" } else { "old" });
            }
            if let Ok(placed) = fleet.place(100) {
                let odd = |peer: &Peer| peer.address().as_bytes()[1] % 2;
                prop_assert_eq!(odd(&placed.decode), odd(placed.prefill.as_ref().unwrap()));
                running.push(placed);
            }
            for _ in 0..ended.min(u8::try_from(running.len()).unwrap()) {
                running.swap_remove(0);
            }
        }
        running.clear();
        prop_assert!(fleet.status().iter().all(|worker| worker.load == WorkerLoad::default()));
    }
}
