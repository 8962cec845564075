use proptest::prelude::*;

use super::*;

const PREFILL: usize = 0;
const DECODE: usize = 1;
const ROUTER: usize = 2;
const GRACE: Duration = Duration::from_secs(35);

/// A machine with a clock of its own, which tests move.
struct World {
    machine: Machine,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self { machine: Machine::new(Limits::default(), [(0, GRACE), (1, GRACE), (2, GRACE)], now), now }
    }

    fn ready() -> Self {
        let mut world = Self::new();
        world.machine.begin(world.now);
        for process in [PREFILL, DECODE, ROUTER] {
            world.on(Event::Listening(process));
        }
        for process in [PREFILL, DECODE, ROUTER] {
            world.on(Event::Ready(process));
        }
        assert_eq!(world.machine.phase(), Phase::Ready);
        world
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(event, self.now)
    }

    fn after(&mut self, seconds: f64) -> Vec<Action> {
        self.now += Duration::from_secs_f64(seconds);
        self.on(Event::Tick)
    }

    /// What is done, without what is told.
    fn deeds(actions: Vec<Action>) -> Vec<Action> {
        actions.into_iter().filter(|action| !matches!(action, Action::Tell(_))).collect()
    }
}

#[test]
fn each_stage_starts_when_the_one_below_listens_and_readiness_needs_all() {
    let mut world = World::new();
    assert_eq!(world.machine.begin(world.now), [Action::Start(PREFILL)]);
    assert_eq!(world.on(Event::Listening(PREFILL)), [Action::Start(DECODE)]);
    assert_eq!(world.on(Event::Listening(DECODE)), [Action::Start(ROUTER)]);
    world.on(Event::Ready(DECODE));
    world.on(Event::Listening(ROUTER));
    world.on(Event::Ready(ROUTER));
    assert_eq!(world.machine.phase(), Phase::Starting);
    world.on(Event::Ready(PREFILL));
    assert_eq!(world.machine.phase(), Phase::Ready);
    assert_eq!(world.machine.next_deadline(), None, "nothing to wait for");
}

#[test]
fn decode_waits_for_every_prefill_to_listen() {
    let now = Instant::now();
    let mut machine = Machine::new(Limits::default(), [(0, GRACE), (0, GRACE), (1, GRACE)], now);
    assert_eq!(machine.begin(now), [Action::Start(0), Action::Start(1)]);
    assert_eq!(machine.handle(Event::Listening(1), now), []);
    assert_eq!(machine.handle(Event::Listening(0), now), [Action::Start(2)]);
}

#[test]
fn the_end_goes_router_decode_prefill_each_after_the_other() {
    let mut world = World::ready();
    assert_eq!(World::deeds(world.on(Event::Stop)), [Action::Terminate(ROUTER)]);
    assert_eq!(World::deeds(world.on(Event::Exited(ROUTER))), [Action::Terminate(DECODE)]);
    assert_eq!(World::deeds(world.on(Event::Exited(DECODE))), [Action::Terminate(PREFILL)]);
    assert_eq!(world.machine.ended(), None);
    world.on(Event::Exited(PREFILL));
    assert_eq!(world.machine.ended(), Some(&Ending::Asked));
}

#[test]
fn a_process_that_overstays_its_drain_is_killed_and_a_second_stop_kills_all() {
    let mut world = World::ready();
    world.on(Event::Stop);
    assert_eq!(world.after(34.9), []);
    assert_eq!(world.after(0.2), [Action::Kill(ROUTER, KillReason::OverstayedDrain)]);
    let killed: Vec<Action> =
        [PREFILL, DECODE, ROUTER].map(|p| Action::Kill(p, KillReason::AskedTwice)).into();
    assert_eq!(world.on(Event::Stop), killed);
    for process in [DECODE, PREFILL, ROUTER] {
        assert_eq!(World::deeds(world.on(Event::Exited(process))), []);
    }
    assert_eq!(world.machine.phase(), Phase::Stopped);
}

#[test]
fn a_death_during_the_start_ends_the_start() {
    let mut world = World::new();
    world.machine.begin(world.now);
    world.on(Event::Listening(PREFILL));
    assert_eq!(World::deeds(world.on(Event::Exited(DECODE))), [Action::Terminate(PREFILL)]);
    assert_eq!(world.after(5.0), [Action::Kill(PREFILL, KillReason::OverstayedDrain)], "nothing to drain");
    world.on(Event::Exited(PREFILL));
    assert_eq!(world.machine.ended(), Some(&Ending::StartFailed { process: DECODE }));
    assert_eq!(world.machine.state(ROUTER), ProcessState::Stopped, "it never started");
}

#[test]
fn a_stop_during_the_start_is_an_interruption() {
    let mut world = World::new();
    world.machine.begin(world.now);
    assert_eq!(World::deeds(world.on(Event::Stop)), [Action::Terminate(PREFILL)]);
    world.on(Event::Exited(PREFILL));
    assert_eq!(world.machine.ended(), Some(&Ending::Interrupted));
}

#[test]
fn a_death_after_readiness_restarts_that_process_alone() {
    let mut world = World::ready();
    assert_eq!(World::deeds(world.on(Event::Exited(PREFILL))), []);
    assert_eq!(world.machine.phase(), Phase::Degraded);
    assert_eq!(world.after(0.49), []);
    assert_eq!(world.after(0.02), [Action::Start(PREFILL)]);
    assert_eq!(world.on(Event::Listening(PREFILL)), []);
    assert_eq!(world.on(Event::Ready(PREFILL)), [Action::Tell(Notice::BackAgain { process: PREFILL })]);
    assert_eq!((world.machine.phase(), world.machine.restarts(PREFILL)), (Phase::Ready, 1));
}

#[test]
fn the_sixth_death_in_ten_minutes_is_final_and_the_others_stay() {
    let mut world = World::ready();
    for _ in 0..5 {
        world.on(Event::Exited(DECODE));
        assert_eq!(world.after(30.0), [Action::Start(DECODE)]);
    }
    assert_eq!(world.on(Event::Exited(DECODE)), [Action::Tell(Notice::GivenUp { process: DECODE })]);
    assert_eq!(world.machine.phase(), Phase::Failed);
    assert_eq!(world.after(3600.0), []);
    assert_eq!(world.machine.state(PREFILL), ProcessState::Ready);
    assert_eq!(World::deeds(world.on(Event::Stop)), [Action::Terminate(ROUTER)]);
    assert_eq!(World::deeds(world.on(Event::Exited(ROUTER))), [Action::Terminate(PREFILL)]);
}

#[test]
fn a_stop_cancels_a_restart_that_waits() {
    let mut world = World::ready();
    world.on(Event::Exited(ROUTER));
    assert_eq!(World::deeds(world.on(Event::Stop)), [Action::Terminate(DECODE)]);
    assert_eq!(world.machine.state(ROUTER), ProcessState::Stopped);
    assert_eq!(world.after(10.0), []);
}

#[test]
fn a_process_that_never_listens_or_falls_silent_while_loading_is_killed() {
    let mut world = World::new();
    world.machine.begin(world.now);
    assert_eq!(world.after(60.0), [Action::Kill(PREFILL, KillReason::NeverListened)]);

    let mut world = World::new();
    world.machine.begin(world.now);
    world.on(Event::Listening(PREFILL));
    world.on(Event::Listening(DECODE));
    world.on(Event::Listening(ROUTER));
    world.on(Event::Ready(DECODE));
    world.on(Event::Ready(ROUTER));
    assert_eq!(world.after(599.0), []);
    world.on(Event::Alive(PREFILL));
    assert_eq!(world.after(599.0), []);
    assert_eq!(world.after(1.0), [Action::Kill(PREFILL, KillReason::SilentWhileLoading)]);
    world.on(Event::Alive(PREFILL));
    assert_eq!(world.machine.next_deadline(), None, "killed once is killed");
}

#[test]
fn a_router_may_be_silent_as_long_as_an_engine_loads() {
    let mut world = World::new();
    world.machine.begin(world.now);
    for process in [PREFILL, DECODE, ROUTER] {
        world.on(Event::Listening(process));
    }
    for _ in 0..10 {
        assert_eq!(world.after(300.0), []);
        world.on(Event::Alive(PREFILL));
    }
    world.on(Event::Ready(PREFILL));
    world.on(Event::Ready(DECODE));
    assert_eq!(world.after(600.0), [Action::Kill(ROUTER, KillReason::SilentWhileLoading)]);
}

proptest! {
    /// Whatever happens in whatever order: a stop is always followed by an end, however the processes behave.
    #[test]
    fn a_stop_always_leads_to_the_end(events in prop::collection::vec((0..6u8, 0..3usize, 0..700u64), 0..80)) {
        let mut world = World::new();
        let mut running = std::collections::BTreeSet::new();
        let carry_out = |actions: Vec<Action>, running: &mut std::collections::BTreeSet<usize>| {
            for action in actions {
                if let Action::Start(process) = action {
                    assert!(running.insert(process), "started twice");
                }
            }
        };
        carry_out(world.machine.begin(world.now), &mut running);
        for (kind, process, seconds) in events {
            let event = match kind {
                0 if running.contains(&process) => Event::Listening(process),
                1 if running.contains(&process) => Event::Ready(process),
                2 if running.contains(&process) => Event::Alive(process),
                3 if running.remove(&process) => Event::Exited(process),
                4 => Event::Stop,
                _ => { world.now += Duration::from_secs(seconds); Event::Tick }
            };
            carry_out(world.on(event), &mut running);
        }
        world.on(Event::Stop);
        // Processes that ignore SIGTERM: only a kill ends them.
        for _ in 0..4 {
            world.now += GRACE;
            for action in world.on(Event::Tick) {
                if let Action::Kill(process, _) = action {
                    running.remove(&process);
                    world.on(Event::Exited(process));
                }
            }
            for process in running.clone() {
                if world.machine.state(process) == ProcessState::Stopping && world.machine.processes[process].deadline.is_none() {
                    running.remove(&process);
                    world.on(Event::Exited(process));
                }
            }
        }
        prop_assert!(world.machine.ended().is_some(), "{:?}", world.machine);
        prop_assert!(running.is_empty());
    }
}
