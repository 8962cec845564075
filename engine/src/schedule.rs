//! Which sequences compute how many tokens in the next step, and why the rest waits.
//! In: every live sequence by age, free pages and slots, the budget. Out: a [`Plan`], with a reason for each that waits.
//! Never: I/O, a clock, the pools themselves.
//! Rules, in this order: decoding sequences take one token each, so that a prompt never stops them; the oldest waiting
//! sequences are seated, strictly first come first served; prompts share the rest of the budget by age, in multiples of
//! 128 tokens, and get 128 even where decoding fills the budget, so that they never starve either. A sequence that needs
//! a page when none is free takes the seat of the youngest one; that one is computed again later and loses nothing.

use engine_spec::memory::CacheFormat;

/// Prompt chunks end at multiples of this, so that no compressed entry is cut between two steps.
const CHUNK_STEP: usize = 128;

/// A sequence, by age: a lower number came earlier. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// What a step may cost.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub step_tokens: usize,
    pub chunk_tokens: usize,
    /// Sequences seated together, at most.
    pub max_running: usize,
}

/// What the scheduler sees of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct View {
    pub id: SequenceId,
    /// Tokens known so far: prompt and answer.
    pub tokens: usize,
    /// Of these, already in the cache.
    pub computed: usize,
    /// Pages held; `None` = not seated.
    pub pages: Option<usize>,
    pub hold: Hold,
}

/// Why a sequence may not compute just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    No,
    /// Its reader has not taken what is there. It keeps its seat as long as nobody needs it.
    Reader,
    /// A peer fills or reads its pages: it keeps them.
    Transfer,
}

/// The next step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Lose their seats, first.
    pub retract: Vec<SequenceId>,
    /// Get a slot and so many pages.
    pub seat: Vec<(SequenceId, usize)>,
    /// Get one page more.
    pub grow: Vec<SequenceId>,
    pub batch: Vec<Share>,
    /// Everybody else.
    pub waiting: Vec<(SequenceId, Reason)>,
}

/// One sequence's tokens of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub id: SequenceId,
    pub tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No request slot is free.
    NoSlot,
    /// Too few pages are free.
    NoPages,
    /// `max_running` sequences are seated.
    RunningLimit,
    /// An older sequence waits for a seat.
    Behind,
    /// The step's tokens are spent.
    Budget,
    SlowReader,
    Transfer,
    /// Lost its seat in this step.
    Retracted,
}

/// Plans the next step. `views` are in the order of age.
pub fn schedule(views: &[View], free_pages: usize, free_slots: usize, budget: &Budget) -> Plan {
    let mut planner = Planner { views, free_pages, free_slots, budget, plan: Plan::default() };
    planner.decode();
    planner.seat();
    planner.prompts();
    planner.plan
}

struct Planner<'a> {
    views: &'a [View],
    free_pages: usize,
    free_slots: usize,
    budget: &'a Budget,
    plan: Plan,
}

impl View {
    fn left(&self) -> usize {
        self.tokens - self.computed
    }

    /// Needs one token: it decodes.
    fn decodes(&self) -> bool {
        self.left() == 1 && self.computed > 0
    }
}

impl Planner<'_> {
    /// One token for every seated sequence that decodes.
    fn decode(&mut self) {
        for view in self.views {
            let Some(pages) = view.pages else { continue };
            if self.plan.retract.contains(&view.id) {
                continue;
            }
            match view.hold {
                Hold::Reader => self.wait(view.id, Reason::SlowReader),
                Hold::Transfer => self.wait(view.id, Reason::Transfer),
                Hold::No if !view.decodes() => {}
                Hold::No if self.plan.batch.len() >= self.budget.step_tokens => {
                    self.wait(view.id, Reason::Budget);
                }
                Hold::No => {
                    if pages < CacheFormat::pages_for(view.tokens) {
                        if !self.find_page_for(view.id) {
                            self.wait(view.id, Reason::NoPages);
                            continue;
                        }
                        self.plan.grow.push(view.id);
                    }
                    self.plan.batch.push(Share { id: view.id, tokens: 1 });
                }
            }
        }
    }

    /// Takes a page for `id`, at the cost of the youngest sequence that is younger than it.
    fn find_page_for(&mut self, id: SequenceId) -> bool {
        while self.free_pages == 0 {
            let youngest = self.views.iter().rev().take_while(|v| v.id > id).find(|v| {
                v.pages.is_some() && v.hold != Hold::Transfer && !self.plan.retract.contains(&v.id)
            });
            let Some(victim) = youngest else { return false };
            self.free_pages += victim.pages.unwrap_or(0);
            self.free_slots += 1;
            self.plan.waiting.retain(|(id, _)| *id != victim.id);
            self.plan.retract.push(victim.id);
            self.wait(victim.id, Reason::Retracted);
        }
        self.free_pages -= 1;
        true
    }

    /// Seats for the oldest that wait.
    fn seat(&mut self) {
        let seated = self.views.iter().filter(|v| v.pages.is_some()).count() - self.plan.retract.len();
        let mut seated = seated;
        let mut blocked = false;
        for view in self.views.iter().filter(|v| v.pages.is_none()) {
            let need = CacheFormat::pages_for(view.tokens);
            // Each seated sequence may need a page soon: without this room the new one would lose its seat at once.
            let reason = if blocked || !self.plan.retract.is_empty() {
                Some(Reason::Behind)
            } else if seated >= self.budget.max_running {
                Some(Reason::RunningLimit)
            } else if self.free_slots == 0 {
                Some(Reason::NoSlot)
            } else if self.free_pages < need + seated {
                Some(Reason::NoPages)
            } else {
                None
            };
            if let Some(reason) = reason {
                blocked = true;
                self.wait(view.id, reason);
            } else {
                self.free_slots -= 1;
                self.free_pages -= need;
                seated += 1;
                self.plan.seat.push((view.id, need));
            }
        }
    }

    /// Chunks of prompts, the oldest first.
    fn prompts(&mut self) {
        let mut left = self.budget.step_tokens.saturating_sub(self.plan.batch.len()).max(CHUNK_STEP);
        for view in self.views {
            let newly_seated = self.plan.seat.iter().any(|(id, _)| *id == view.id);
            let seated = view.pages.is_some() && !self.plan.retract.contains(&view.id);
            if newly_seated && view.hold == Hold::Transfer {
                self.wait(view.id, Reason::Transfer);
                continue;
            }
            if view.hold != Hold::No || view.decodes() || !(seated || newly_seated) {
                continue;
            }
            let most = view.left().min(self.budget.chunk_tokens).min(left);
            let tokens = if most == view.left() { most } else { most - most % CHUNK_STEP };
            if tokens == 0 {
                self.wait(view.id, Reason::Budget);
                continue;
            }
            left -= tokens;
            self.plan.batch.push(Share { id: view.id, tokens });
        }
    }

    fn wait(&mut self, id: SequenceId, reason: Reason) {
        self.plan.waiting.push((id, reason));
    }
}

#[cfg(test)]
mod tests;
