use std::sync::Mutex;

use super::*;

const DURATION: Duration = Duration::from_secs(15);

/// An API server's Lease, and whether it can be reached.
#[derive(Default)]
struct Server {
    lease: Option<(String, u64)>,
    down: bool,
    writes: Vec<(String, Duration)>,
}

/// Operators against one server, in steps of a tenth of a second of made-up time.
struct Play {
    start: Instant,
    now: Duration,
    server: Mutex<Server>,
}

struct Operator {
    name: &'static str,
    machine: Machine,
}

impl Play {
    fn new() -> Self {
        Self { start: Instant::now(), now: Duration::ZERO, server: Mutex::default() }
    }

    fn operator(&self, name: &'static str) -> Operator {
        Operator { name, machine: Machine::new(DURATION) }
    }

    fn at(&self) -> Instant {
        self.start + self.now + Duration::from_secs(1)
    }

    fn seen(&self, name: &str) -> Option<Seen> {
        let server = self.server.lock().unwrap();
        let (holder, version) = server.lease.clone()?;
        let metadata = ObjectMeta { resource_version: Some(version.to_string()), ..ObjectMeta::default() };
        let lease = Arc::new(Lease { metadata, spec: None });
        Some(Seen { ours: holder == name, free: holder.is_empty(), duration: DURATION, lease })
    }

    fn step(&self, operator: &mut Operator) {
        let now = self.at();
        for _ in 0..4 {
            match operator.machine.next(now) {
                Step::Wait(_) => return,
                Step::Look | Step::Write(_) if self.server.lock().unwrap().down => {
                    operator.machine.failed(now)
                }
                Step::Look => operator.machine.looked(now, self.seen(operator.name)),
                Step::Write(seen) => {
                    let version = |seen: &Option<Seen>| {
                        seen.as_ref().map(|seen| seen.lease.metadata.resource_version.clone().unwrap())
                    };
                    if version(&seen) != version(&self.seen(operator.name)) {
                        operator.machine.outrun(now);
                        continue;
                    }
                    let mut server = self.server.lock().unwrap();
                    let next = server.lease.as_ref().map_or(1, |(_, version)| version + 1);
                    server.lease = Some((operator.name.to_owned(), next));
                    server.writes.push((operator.name.to_owned(), self.now));
                    drop(server);
                    operator.machine.written(now, self.seen(operator.name));
                }
            }
        }
        panic!("{} never waits", operator.name);
    }

    /// Plays on for so long; never may two lead at once.
    fn run(&mut self, seconds: u64, operators: &mut [Operator]) {
        for _ in 0..seconds * 10 {
            self.now += Duration::from_millis(100);
            for operator in operators.iter_mut() {
                self.step(operator);
            }
            let leaders = self.leaders(operators);
            assert!(leaders.len() <= 1, "at {:?} all of {leaders:?} write", self.now);
        }
    }

    fn leaders(&self, operators: &[Operator]) -> Vec<&'static str> {
        operators.iter().filter(|o| o.machine.leads(self.at())).map(|o| o.name).collect()
    }

    fn down(&self, down: bool) {
        self.server.lock().unwrap().down = down;
    }
}

#[test]
fn one_leads_and_writes_at_most_every_five_seconds() {
    let mut play = Play::new();
    let mut operators = [play.operator("a"), play.operator("b")];
    play.run(120, &mut operators);
    assert_eq!(play.leaders(&operators), ["a"]);
    let server = play.server.lock().unwrap();
    assert!(server.writes.len() >= 20, "it renews: {:?}", server.writes);
    for pair in server.writes.windows(2) {
        assert!(pair[1].1 - pair[0].1 >= Duration::from_secs(5), "{pair:?}");
    }
}

#[test]
fn a67_outages_of_the_api_server_end_writing_in_time_and_the_holder_goes_on_after_them() {
    for outage in [3, 12, 30, 90] {
        let mut play = Play::new();
        let mut operators = [play.operator("a"), play.operator("b")];
        play.run(32, &mut operators);
        assert_eq!(play.leaders(&operators), ["a"]);
        play.down(true);
        play.run(outage, &mut operators);
        let expected: &[&str] = if outage < 8 { &["a"] } else { &[] };
        if outage != 12 {
            assert_eq!(play.leaders(&operators), expected, "after {outage} s");
        }
        play.down(false);
        // A short outage changes no holder; after a long one whoever is first goes on, and it is soon.
        play.run(DURATION.as_secs() + 4, &mut operators);
        assert_eq!(play.leaders(&operators).len(), 1, "after an outage of {outage} s");
    }
}

#[test]
fn a_dead_holder_is_followed_after_the_duration_that_the_candidate_itself_observed() {
    let mut play = Play::new();
    let mut both = [play.operator("a"), play.operator("b")];
    play.run(20, &mut both);
    let [_, b] = both;
    let died = play.now;
    let mut left = [b];
    play.run(9, &mut left);
    assert!(play.leaders(&left).is_empty(), "too early");
    play.run(12, &mut left);
    assert_eq!(play.leaders(&left), ["b"]);
    let taken = play.server.lock().unwrap().writes.iter().find(|(who, _)| who == "b").unwrap().1;
    assert!(taken - died <= Duration::from_secs(18), "{:?}", taken - died);
}

#[test]
fn a_lease_given_back_is_taken_at_the_next_look() {
    let mut play = Play::new();
    let mut both = [play.operator("a"), play.operator("b")];
    play.run(20, &mut both);
    let [_, b] = both;
    play.server.lock().unwrap().lease = Some((String::new(), 99));
    let mut left = [b];
    play.run(3, &mut left);
    assert_eq!(play.leaders(&left), ["b"]);
}

#[test]
fn one_that_restarts_under_its_name_goes_on_at_once() {
    let mut play = Play::new();
    let mut first = [play.operator("a")];
    play.run(20, &mut first);
    let mut again = [play.operator("a")];
    play.run(1, &mut again);
    assert_eq!(play.leaders(&again), ["a"]);
}
