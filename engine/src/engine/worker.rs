//! The engine thread: take commands, drop what is over, plan, compute, tell, hand over; again.
//! In: commands, the model. Out: events, gauges.
//! Never: async, waiting while there is work.
//! A step that fails ends the sequences of its batch and nobody else.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use engine_model::{Logits, Segment, Want};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::{Command, Pulse, Settings};
use crate::ApiError;
use crate::sample::{Sampled, sample};
use crate::schedule::{Plan, SequenceId, Share, View, schedule};
use crate::sequence::{Event, Kind, Part, Sequence, Stage};
use crate::step::{Step, StepError};

/// Longest rest of an idle thread: deadlines are seen at least this often.
const IDLE: Duration = Duration::from_millis(100);

/// Steps with fewer prompt tokens say more about overhead than about speed.
const MEASURED_TOKENS: usize = 128;

/// Every answer has one choice so far; the randomness of a token is f(seed, choice, position).
const CHOICE: u32 = 0;

pub(crate) struct Worker {
    step: Box<dyn Step>,
    settings: Settings,
    inbox: mpsc::Receiver<Command>,
    pulse: Pulse,
    /// By age.
    live: BTreeMap<SequenceId, Sequence>,
    /// Parts that are out, of sequences that hand over.
    sent: BTreeMap<SequenceId, usize>,
    stopping: bool,
}

impl Worker {
    pub(crate) fn new(
        step: Box<dyn Step>,
        settings: Settings,
        inbox: mpsc::Receiver<Command>,
        pulse: Pulse,
    ) -> Self {
        Self { step, settings, inbox, pulse, live: BTreeMap::new(), sent: BTreeMap::new(), stopping: false }
    }

    pub(crate) fn run(mut self) {
        loop {
            self.pulse.beat();
            self.receive();
            self.sweep();
            if self.stopping && self.live.is_empty() {
                break;
            }
            let plan = self.plan();
            self.seat(&plan);
            self.compute(&plan.batch);
            let handed_over = self.hand_over();
            self.publish();
            if plan.batch.is_empty() && !handed_over {
                std::thread::park_timeout(IDLE);
            }
        }
        self.publish();
    }

    fn receive(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    // Every handle is gone, so every listener is; the sweep drops the rest.
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(id, submission, events) => {
                self.live.insert(id, Sequence::new(id, *submission, events));
            }
            Command::Fill(id, part, bytes) => self.fill(id, part, &bytes),
            Command::Commit(id, first) => self.commit(id, first),
            Command::FailAll(verdict) => self.fail_all(&verdict),
            Command::Stop(verdict) => {
                self.fail_all(&verdict);
                self.stopping = true;
            }
        }
    }

    fn fail_all(&mut self, verdict: &ApiError) {
        for id in self.live.keys().copied().collect::<Vec<_>>() {
            self.fail(id, verdict.clone());
        }
    }

    /// The verdict of one sequence. It always fits: sequences leave room for it.
    fn fail(&mut self, id: SequenceId, verdict: ApiError) {
        if let Some(sequence) = self.remove(id) {
            sequence.tell(Event::Failed(verdict));
        }
    }

    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        self.sent.remove(&id);
        self.live.remove(&id)
    }

    fn fill(&mut self, id: SequenceId, part: Part, bytes: &[u8]) {
        let Some(sequence) = self.live.get(&id) else { return };
        let (Some(seat), Stage::Fill) = (&sequence.seat, &sequence.stage) else { return };
        match part {
            Part::Page(at) => match seat.pages().get(at) {
                Some(page) if bytes.len() == self.step.page_bytes() => self.step.import_page(*page, bytes),
                _ => self
                    .fail(id, ApiError::bad_gateway(format!("prefill sent a page {at} that does not fit"))),
            },
            Part::Slot if bytes.len() == self.step.slot_bytes() => self.step.import_slot(seat.slot(), bytes),
            Part::Slot => self.fail(id, ApiError::bad_gateway("prefill sent a slot that does not fit")),
        }
    }

    fn commit(&mut self, id: SequenceId, first: Sampled) {
        let Some(sequence) = self.live.get_mut(&id) else { return };
        if !matches!(sequence.stage, Stage::Fill) || sequence.seat.is_none() {
            return;
        }
        sequence.stage = Stage::Compute;
        sequence.advance(sequence.prompt_tokens);
        if sequence.push(first) {
            self.remove(id);
        }
    }

    /// Cancelled and late sequences leave before the next step, and those whose prompt cannot be computed in time.
    fn sweep(&mut self) {
        let now = Instant::now();
        let speed = self.settings.speed.as_ref().map_or(0.0, |s| s.state().prefill_tokens_per_second);
        let is_over = |s: &&Sequence| s.is_cancelled() || s.is_late(now) || s.is_hopeless(now, speed);
        let over: Vec<SequenceId> = self.live.values().filter(is_over).map(|s| s.id).collect();
        for id in over {
            self.fail(
                id,
                ApiError::timed_out("The answer cannot be complete before the request's deadline."),
            );
        }
    }

    fn plan(&self) -> Plan {
        let views: Vec<View> = self.live.values().map(Sequence::view).collect();
        let free = self.settings.pool.usage();
        schedule(&views, free.free_pages as usize, free.free_slots as usize, &self.settings.budget)
    }

    fn seat(&mut self, plan: &Plan) {
        for id in &plan.retract {
            if let Some(sequence) = self.live.get_mut(id) {
                sequence.retract();
                self.settings.metrics.retractions.inc();
            }
        }
        for (id, pages) in &plan.seat {
            let Some(sequence) = self.live.get_mut(id) else { continue };
            // The plan counted what is free; only this thread takes.
            sequence.seat = self.settings.pool.take(*pages);
            let Some(seat) = &sequence.seat else { continue };
            self.step.reset_slot(seat.slot());
            if matches!(sequence.stage, Stage::Fill) {
                sequence.tell(Event::Seated);
            }
        }
        for id in &plan.grow {
            if let Some(seat) = self.live.get_mut(id).and_then(|s| s.seat.as_mut()) {
                let grown = seat.grow();
                debug_assert!(grown, "the plan counted this page as free");
            }
        }
    }

    fn compute(&mut self, batch: &[Share]) {
        if batch.is_empty() {
            return;
        }
        let start = Instant::now();
        let result = self.forward(batch);
        match result {
            Ok(logits) => {
                self.measure(batch, start.elapsed());
                self.take(batch, &logits);
            }
            Err(error) => {
                tracing::error!(%error, "step failed");
                for share in batch {
                    self.fail(share.id, ApiError::internal("The model could not compute this request."));
                }
            }
        }
    }

    fn forward(&mut self, batch: &[Share]) -> Result<Logits, StepError> {
        let mut segments = Vec::with_capacity(batch.len());
        for share in batch {
            let sequence = self.live.get(&share.id).and_then(|s| Some((s, s.seat.as_ref()?)));
            let Some((sequence, seat)) = sequence else {
                let reason = format!("sequence {} is planned without a seat", share.id.0);
                return Err(StepError { segments: batch.len(), reason });
            };
            let end = sequence.computed + share.tokens;
            segments.push(Segment {
                slot: seat.slot(),
                pages: seat.pages(),
                start: sequence.computed,
                tokens: &sequence.tokens[sequence.computed..end],
                want: if end == sequence.tokens.len() { Want::Last } else { Want::Nothing },
            });
        }
        self.step.forward(&segments)
    }

    fn measure(&self, batch: &[Share], elapsed: Duration) {
        let prompt_tokens: usize = batch.iter().filter(|s| s.tokens > 1).map(|s| s.tokens).sum();
        self.settings.metrics.step_seconds.observe(elapsed.as_secs_f64());
        self.settings.metrics.prefill_tokens.inc_by(prompt_tokens as u64);
        if let Some(speed) = self.settings.speed.as_ref().filter(|_| prompt_tokens >= MEASURED_TOKENS) {
            speed.measured(prompt_tokens, elapsed.as_secs_f64());
        }
    }

    /// Advances the batch; samples where a row of logits was wanted.
    fn take(&mut self, batch: &[Share], logits: &Logits) {
        let mut rows = logits.rows();
        for share in batch {
            let Some(sequence) = self.live.get_mut(&share.id) else { continue };
            sequence.advance(share.tokens);
            if sequence.computed < sequence.tokens.len() {
                if sequence.submission.kind == Kind::HandedOver && sequence.has_room() {
                    sequence.tell(Event::Computed(sequence.computed));
                }
                continue;
            }
            let Some(row) = rows.next() else {
                self.fail(share.id, ApiError::internal("The model returned too few rows."));
                continue;
            };
            let settings = &sequence.submission;
            let token = sample(row, &settings.sampling, CHOICE, sequence.tokens.len() as u64, settings.top);
            self.settings.metrics.generated_tokens.inc();
            if settings.kind == Kind::HandedOver {
                sequence.stage = Stage::HandOver { first: Some(token) };
            } else if sequence.push(token) {
                self.remove(share.id);
            }
        }
    }

    /// Sends what is final and fits. True when something went out.
    fn hand_over(&mut self) -> bool {
        let mut any = false;
        let ids: Vec<SequenceId> = self
            .live
            .values()
            .filter(|s| s.submission.kind == Kind::HandedOver && s.seat.is_some())
            .map(|s| s.id)
            .collect();
        for id in ids {
            any |= self.hand_over_one(id);
        }
        any
    }

    fn hand_over_one(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.live.get_mut(&id) else { return false };
        let Some(seat) = &sequence.seat else { return false };
        let done = matches!(sequence.stage, Stage::HandOver { .. });
        let pages = seat.pages().len();
        // A page is final when all its tokens are computed: entries never look ahead of it.
        let ready = if done { pages + 1 } else { sequence.computed / engine_spec::PAGE_TOKENS };
        let sent = self.sent.entry(id).or_default();
        let before = *sent;
        while *sent < ready && sequence.has_room() {
            let (part, bytes) = if *sent < pages {
                let export = |bytes: &mut [u8]| self.step.export_page(seat.pages()[*sent], bytes);
                (Part::Page(*sent), exported(self.step.page_bytes(), export))
            } else {
                let export = |bytes: &mut [u8]| self.step.export_slot(seat.slot(), bytes);
                (Part::Slot, exported(self.step.slot_bytes(), export))
            };
            sequence.tell(Event::Data(part, bytes));
            *sent += 1;
        }
        let went_out = *sent > before;
        if *sent == pages + 1 && sequence.has_room() {
            if let Stage::HandOver { first } = &mut sequence.stage
                && let Some(token) = first.take()
            {
                sequence.tell(Event::Token(token));
                sequence.tell(Event::Finished);
            }
            self.remove(id);
        }
        went_out
    }

    fn publish(&self) {
        let seated = self.live.values().filter(|s| s.seat.is_some()).count();
        let metrics = &self.settings.metrics;
        metrics.running.set(i64::try_from(seated).unwrap_or(i64::MAX));
        metrics.waiting.set(i64::try_from(self.live.len() - seated).unwrap_or(i64::MAX));
    }
}

fn exported(len: usize, export: impl FnOnce(&mut [u8])) -> Bytes {
    let mut bytes = BytesMut::zeroed(len);
    export(&mut bytes);
    bytes.freeze()
}
