use proptest::prelude::*;

use super::*;

const BUDGET: Budget = Budget { step_tokens: 1024, chunk_tokens: 512, max_running: 8 };

fn seated(id: u64, tokens: usize, computed: usize) -> View {
    let pages = Some(CacheFormat::pages_for(computed.max(1)));
    View { id: SequenceId(id), tokens, computed, pages, hold: Hold::No }
}

fn waiting(id: u64, tokens: usize) -> View {
    View { id: SequenceId(id), tokens, computed: 0, pages: None, hold: Hold::No }
}

fn shares(plan: &Plan) -> Vec<(u64, usize)> {
    plan.batch.iter().map(|share| (share.id.0, share.tokens)).collect()
}

#[test]
fn decoding_goes_on_while_prompts_are_computed_in_chunks() {
    let views = [seated(1, 101, 100), waiting(2, 2000), waiting(3, 700)];
    let plan = schedule(&views, 100, 10, &BUDGET);
    assert_eq!(plan.seat, [(SequenceId(2), 8), (SequenceId(3), 3)]);
    // 1,024 - 1 - 512 = 511 are left for the third: three whole steps of 128.
    assert_eq!(shares(&plan), [(1, 1), (2, 512), (3, 384)]);
}

#[test]
fn a_prompt_gets_128_tokens_where_decoding_fills_the_budget() {
    let budget = Budget { step_tokens: 128, chunk_tokens: 128, max_running: 200 };
    let mut views: Vec<View> = (0..128).map(|id| seated(id, 11, 10)).collect();
    views.push(waiting(500, 1000));
    let plan = schedule(&views, 1000, 1000, &budget);
    assert_eq!(plan.batch.len(), 129);
    assert_eq!(shares(&plan).last(), Some(&(500, 128)));
}

#[test]
fn who_needs_a_page_takes_the_seat_of_the_youngest() {
    let views = [seated(1, 257, 256), seated(2, 300, 299), seated(3, 101, 100), waiting(4, 10)];
    let plan = schedule(&views, 0, 0, &BUDGET);
    assert_eq!(plan.retract, [SequenceId(3)]);
    assert_eq!(plan.grow, [SequenceId(1)]);
    assert_eq!(shares(&plan), [(1, 1), (2, 1)]);
    assert_eq!(plan.waiting, [(SequenceId(3), Reason::Retracted), (SequenceId(4), Reason::Behind)]);
}

#[test]
fn the_youngest_waits_for_a_page_and_keeps_its_seat() {
    let views = [seated(1, 101, 100), seated(2, 257, 256)];
    let plan = schedule(&views, 0, 0, &BUDGET);
    assert_eq!(plan.retract, []);
    assert_eq!(plan.waiting, [(SequenceId(2), Reason::NoPages)]);
}

#[test]
fn pages_in_transfer_are_never_taken() {
    let transfer = View { hold: Hold::Transfer, ..seated(2, 100, 0) };
    let plan = schedule(&[seated(1, 257, 256), transfer], 0, 0, &BUDGET);
    assert_eq!(plan.retract, []);
    assert_eq!(plan.batch, []);
}

#[test]
fn seats_are_given_in_the_order_of_arrival() {
    let views = [waiting(1, 2000), waiting(2, 10)];
    let plan = schedule(&views, 4, 2, &BUDGET);
    assert_eq!(plan.seat, []);
    assert_eq!(plan.waiting, [(SequenceId(1), Reason::NoPages), (SequenceId(2), Reason::Behind)]);
}

#[test]
fn every_reason_is_told() {
    let limit = Budget { max_running: 1, ..BUDGET };
    let plan = schedule(&[seated(1, 11, 10), waiting(2, 10)], 9, 9, &limit);
    assert_eq!(plan.waiting, [(SequenceId(2), Reason::RunningLimit)]);
    let plan = schedule(&[waiting(2, 10)], 9, 0, &BUDGET);
    assert_eq!(plan.waiting, [(SequenceId(2), Reason::NoSlot)]);
    let slow = View { hold: Hold::Reader, ..seated(1, 11, 10) };
    let plan = schedule(&[slow], 9, 9, &BUDGET);
    assert_eq!(plan.waiting, [(SequenceId(1), Reason::SlowReader)]);
}

/// Carries plans out on numbers alone, until every sequence has its answer.
struct World {
    live: Vec<View>,
    goals: Vec<usize>,
    pages: usize,
    slots: usize,
    retractions: usize,
}

impl World {
    fn free(&self) -> (usize, usize) {
        let held: usize = self.live.iter().filter_map(|v| v.pages).sum();
        (self.pages - held, self.slots - self.live.iter().filter(|v| v.pages.is_some()).count())
    }

    fn at(&mut self, id: SequenceId) -> &mut View {
        self.live.iter_mut().find(|v| v.id == id).expect("the plan names only live sequences")
    }

    fn step(&mut self, budget: &Budget) -> Plan {
        let (free_pages, free_slots) = self.free();
        let plan = schedule(&self.live, free_pages, free_slots, budget);
        for id in &plan.retract {
            let view = self.at(*id);
            (view.pages, view.computed) = (None, 0);
            self.retractions += 1;
        }
        for (id, pages) in &plan.seat {
            self.at(*id).pages = Some(*pages);
        }
        for id in &plan.grow {
            let view = self.at(*id);
            view.pages = view.pages.map(|n| n + 1);
        }
        for share in &plan.batch {
            let view = self.at(share.id);
            view.computed += share.tokens;
            if view.computed == view.tokens {
                view.tokens += 1;
            }
        }
        let goals = self.goals.clone();
        self.live.retain(|v| v.tokens < goals[usize::try_from(v.id.0).unwrap()]);
        plan
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever comes: the budget and the pools hold, everybody who can decode does, and everybody ends.
    #[test]
    fn every_sequence_ends_and_no_limit_is_broken(
        sizes in prop::collection::vec((1_usize..2000, 1_usize..600), 1..12),
        pages in 11_usize..24,
        slots in 1_usize..6,
        chunks in 1_usize..5,
        extra in 0_usize..5,
    ) {
        let budget = Budget {
            chunk_tokens: chunks * 128, step_tokens: (chunks + extra) * 128, max_running: 5,
        };
        let live = sizes.iter().enumerate().map(|(id, (prompt, _))| waiting(id as u64, *prompt)).collect();
        let goals = sizes.iter().map(|(prompt, answer)| prompt + answer).collect();
        let mut world = World { live, goals, pages, slots, retractions: 0 };
        let mut steps = 0;
        while !world.live.is_empty() {
            let before = world.live.clone();
            let plan = world.step(&budget);
            prop_assert!(!plan.batch.is_empty(), "somebody always goes on: {:?}", before);
            let tokens: usize = plan.batch.iter().map(|share| share.tokens).sum();
            prop_assert!(tokens <= budget.step_tokens + 127);
            let (free_pages, free_slots) = world.free();
            prop_assert!(free_pages <= pages && free_slots <= slots);
            let named = plan.batch.len() + plan.waiting.len();
            prop_assert_eq!(named, before.len(), "each sequence computes or is told why not");
            for share in &plan.batch {
                let view = before.iter().find(|v| v.id == share.id).unwrap();
                let ends = view.computed + share.tokens == view.tokens;
                prop_assert!(ends || share.tokens.is_multiple_of(128));
                prop_assert!(share.tokens <= budget.chunk_tokens);
            }
            steps += 1;
            prop_assert!(steps < 100_000, "no end");
        }
    }
}
