use std::sync::Arc;

use engine_spec::config::AdmissionConfig;
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::*;
use crate::metrics::Metrics;
use crate::sample::Sampling;
use crate::step::script::{Script, ScriptStep, answer_to};

const EOS: u32 = 1;

struct Rig {
    engine: Engine,
    script: Arc<Script>,
    admission: Admission,
    metrics: Arc<Metrics>,
}

fn rig(pages: u32, slots: u32) -> Rig {
    let script = Arc::new(Script::default());
    let admission = Admission::new(AdmissionConfig {
        queue_limit_tokens: Some(1_000_000),
        max_queued_requests: 1000,
        ..AdmissionConfig::default()
    });
    let metrics = Metrics::new();
    let settings = Settings {
        budget: Budget { step_tokens: 512, chunk_tokens: 256, max_running: 16 },
        pool: Pool::new(pages, slots),
        speed: Some(admission.clone()),
        metrics: metrics.engine.clone(),
    };
    let step = Box::new(ScriptStep::new(Arc::clone(&script), 512, pages, slots));
    Rig { engine: Engine::start(step, settings).unwrap(), script, admission, metrics }
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0 }
}

fn prompt(seed: u32, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|n| (seed * 7 + u32::try_from(n).unwrap() * 13) % 300 + 2).collect()
}

impl Rig {
    fn submission(&self, prompt: Vec<u32>, max_tokens: u32, kind: Kind) -> Submission {
        let permit = Some(self.admission.admit(prompt.len() as u64).unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        Submission { prompt, max_tokens, sampling: greedy(), top: 0, eos: EOS, deadline, permit, kind }
    }

    async fn submit(&self, prompt: Vec<u32>, max_tokens: u32) -> EventStream {
        self.engine.submit(self.submission(prompt, max_tokens, Kind::Local)).await.unwrap()
    }

    async fn idle(&self) {
        crate::rig::until("all free", || {
            let (pool, state) = (self.engine.pool().usage(), self.admission.state());
            pool.pages == pool.free_pages
                && pool.slots == pool.free_slots
                && (state.backlog_tokens, state.queued) == (0, 0)
                && self.metrics.engine.running.get() == 0
                && self.metrics.engine.waiting.get() == 0
        })
        .await;
    }
}

/// The tokens of an answer, and its verdict.
async fn collect(events: &mut EventStream) -> (Vec<u32>, Result<(), ApiError>) {
    let mut tokens = Vec::new();
    loop {
        match events.next().await {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished => return (tokens, Ok(())),
            Event::Failed(error) => return (tokens, Err(error)),
            event => panic!("{event:?}"),
        }
    }
}

#[tokio::test]
async fn chunked_prompts_and_decoding_give_the_answer() {
    let rig = rig(16, 2);
    let asked = prompt(3, 1000);
    let mut events = rig.submit(asked.clone(), 20).await;
    assert_eq!(collect(&mut events).await, (answer_to(&asked, 20), Ok(())));
    rig.idle().await;
}

#[tokio::test]
async fn sequences_that_lost_their_pages_are_computed_again_and_lose_nothing() {
    // Two that start small and grow to six pages each, six that want three: there are 8.
    let rig = rig(8, 8);
    let mut tasks = JoinSet::new();
    for seed in 0..8 {
        let (tokens, answer) = if seed < 2 { (10, 1500) } else { (500, 200) };
        let asked = prompt(seed, tokens);
        let mut events = rig.submit(asked.clone(), answer).await;
        tasks.spawn(async move { (collect(&mut events).await, answer_to(&asked, answer as usize)) });
    }
    while let Some(done) = tasks.join_next().await {
        let (got, expected) = done.unwrap();
        assert_eq!(got, (expected, Ok(())));
    }
    assert!(rig.metrics.engine.retractions.get() > 0, "this test is about retraction");
    rig.idle().await;
}

#[tokio::test]
async fn a_step_that_fails_ends_its_batch_and_nobody_else() {
    let rig = rig(16, 4);
    rig.script.failures.store(1, Ordering::Relaxed);
    let mut first = rig.submit(prompt(1, 10), 5).await;
    let (_, verdict) = collect(&mut first).await;
    assert_eq!(verdict.unwrap_err().status, 500);
    let mut second = rig.submit(prompt(2, 10), 5).await;
    assert_eq!(collect(&mut second).await, (answer_to(&prompt(2, 10), 5), Ok(())));
    rig.idle().await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_stops_its_own_sequence_only() {
    let rig = rig(64, 4);
    let mut slow = rig.submit(prompt(1, 10), 5000).await;
    let mut other = rig.submit(prompt(2, 10), 400).await;
    assert!(collect(&mut other).await.1.is_ok());
    crate::rig::until("the slow one pauses", || slow.events.capacity() < 2).await;
    let steps = rig.script.steps.load(Ordering::Relaxed);
    let mut third = rig.submit(prompt(3, 10), 50).await;
    assert!(collect(&mut third).await.1.is_ok());
    let more = rig.script.steps.load(Ordering::Relaxed) - steps;
    assert!(more <= 51, "nothing was computed for the slow reader: {more} steps");
    for _ in 0..300 {
        assert!(matches!(slow.next().await, Event::Token(_)), "it goes on when it is read");
    }
    drop(slow);
    rig.idle().await;
}

#[tokio::test]
async fn a_deadline_ends_a_request_with_504() {
    let rig = rig(16, 1);
    let _holder = rig.submit(prompt(1, 10), 3000).await;
    let mut late = rig.submission(prompt(2, 10), 5, Kind::Local);
    late.deadline = Instant::now() + Duration::from_millis(30);
    let mut events = rig.engine.submit(late).await.unwrap();
    let (tokens, verdict) = collect(&mut events).await;
    assert_eq!((tokens.len(), verdict.unwrap_err().status), (0, 504));
}

#[tokio::test]
async fn a_prompt_that_cannot_be_in_time_is_dropped_before_it_is_computed() {
    let rig = rig(16, 2);
    rig.admission.measured(1000, 1.0);
    // 3,000 tokens take three seconds; there is one.
    let mut hopeless = rig.submission(prompt(1, 3000), 5, Kind::Local);
    hopeless.deadline = Instant::now() + Duration::from_secs(1);
    let mut events = rig.engine.submit(hopeless).await.unwrap();
    assert_eq!(collect(&mut events).await.1.unwrap_err().status, 504);
    assert_eq!(rig.script.steps.load(Ordering::Relaxed), 0);
    rig.idle().await;
}

#[tokio::test]
async fn the_answer_ends_with_eos() {
    let rig = rig(16, 1);
    let asked = prompt(5, 40);
    let answer = answer_to(&asked, 3);
    let mut submission = rig.submission(asked, 100, Kind::Local);
    submission.eos = answer[2];
    let mut events = rig.engine.submit(submission).await.unwrap();
    assert_eq!(collect(&mut events).await, (answer, Ok(())));
}

#[tokio::test]
async fn a_stopped_engine_gives_every_request_its_verdict() {
    let rig = rig(16, 1);
    rig.script.delay_us.store(1000, Ordering::Relaxed);
    let mut running = rig.submit(prompt(1, 10), 5000).await;
    let mut waiting = rig.submit(prompt(2, 10), 5).await;
    rig.engine.stop(ApiError::unavailable("bye")).await;
    assert_eq!(collect(&mut running).await.1.unwrap_err().status, 503);
    assert_eq!(collect(&mut waiting).await.1.unwrap_err().status, 503);
    let refused = rig.engine.submit(rig.submission(prompt(3, 10), 5, Kind::Local)).await;
    assert_eq!(refused.unwrap_err().status, 500);
}

/// Computes a prompt on one engine and continues on another.
async fn through(from: &Rig, to: &Rig, asked: Vec<u32>, max_tokens: u32) -> (Vec<u32>, Result<(), ApiError>) {
    let mut here = to.engine.submit(to.submission(asked.clone(), max_tokens, Kind::Filled)).await.unwrap();
    assert!(matches!(here.next().await, Event::Seated));
    let mut there = from.engine.submit(from.submission(asked, 1, Kind::HandedOver)).await.unwrap();
    loop {
        match there.next().await {
            Event::Data(part, bytes) => to.engine.fill(here.id(), part, bytes).await.unwrap(),
            Event::Token(first) => to.engine.commit(here.id(), first).await.unwrap(),
            Event::Computed(_) => {}
            Event::Finished => break,
            event => return (Vec::new(), Err(ApiError::internal(format!("{event:?}")))),
        }
    }
    collect(&mut here).await
}

#[tokio::test]
async fn a_prompt_computed_elsewhere_continues_as_if_computed_here() {
    let (from, to) = (rig(16, 2), rig(16, 2));
    for tokens in [1, 255, 256, 257, 1000] {
        let asked = prompt(9, tokens);
        assert_eq!(through(&from, &to, asked.clone(), 30).await, (answer_to(&asked, 30), Ok(())), "{tokens}");
    }
    assert_eq!(to.metrics.engine.prefill_tokens.get(), 0);
    from.idle().await;
    to.idle().await;
}

#[tokio::test]
async fn parts_for_a_cancelled_sequence_reach_nobody() {
    let rig = rig(1, 1);
    let cancelled = rig.engine.submit(rig.submission(prompt(1, 10), 5, Kind::Filled)).await.unwrap();
    let id = cancelled.id();
    drop(cancelled);
    // The next owner of the only page computes while the late parts come in.
    let asked = prompt(2, 100);
    let mut owner = rig.submit(asked.clone(), 100).await;
    for _ in 0..50 {
        rig.engine.fill(id, Part::Page(0), Bytes::from(vec![1; 1024])).await.unwrap();
        rig.engine.fill(id, Part::Slot, Bytes::from(vec![1; 16])).await.unwrap();
    }
    rig.engine.commit(id, crate::sample::Sampled { id: 7, logprob: 0.0, top: Vec::new() }).await.unwrap();
    assert_eq!(collect(&mut owner).await, (answer_to(&asked, 100), Ok(())));
    rig.idle().await;
}

#[derive(Debug, Clone)]
struct Arrival {
    prompt: usize,
    answer: u32,
    /// Leaves after so many tokens.
    leaves: Option<usize>,
    /// Through a second engine.
    remote: bool,
    /// Steps fail when it arrives.
    failures: u64,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let leaves = prop::option::weighted(0.5, 0_usize..40);
    let failures = prop::option::weighted(0.1, 1_u64..3).prop_map(Option::unwrap_or_default);
    (1_usize..900, 1_u32..120, leaves, any::<bool>(), failures).prop_map(
        |(prompt, answer, leaves, remote, failures)| Arrival { prompt, answer, leaves, remote, failures },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whoever comes, leaves or fails: pages, slots and permits are all free at the end, and whoever stayed has the
    /// answer that it gets alone.
    #[test]
    fn nothing_leaks_and_every_surviving_answer_is_right(arrivals in prop::collection::vec(arrival(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let (rig_here, rig_there) = (Arc::new(rig(6, 5)), Arc::new(rig(6, 3)));
            let mut tasks = JoinSet::new();
            for (n, arrival) in arrivals.into_iter().enumerate() {
                let (here, there) = (Arc::clone(&rig_here), Arc::clone(&rig_there));
                tasks.spawn(async move { run(&here, &there, n, &arrival).await });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            rig_here.idle().await;
            rig_there.idle().await;
        });
    }
}

async fn run(here: &Rig, there: &Rig, n: usize, arrival: &Arrival) {
    let asked = prompt(u32::try_from(n).unwrap(), arrival.prompt);
    let expected = answer_to(&asked, arrival.answer as usize);
    here.script.failures.fetch_add(arrival.failures, Ordering::Relaxed);
    if arrival.remote && arrival.leaves.is_none() {
        if let (tokens, Ok(())) = through(there, here, asked, arrival.answer).await {
            assert_eq!(tokens, expected);
        }
        return;
    }
    let kind = if arrival.remote { Kind::HandedOver } else { Kind::Local };
    let mut events = here.engine.submit(here.submission(asked, arrival.answer, kind)).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..arrival.leaves.unwrap_or(usize::MAX) {
        match events.next().await {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished => return assert_eq!(tokens, expected[..tokens.len()]),
            Event::Failed(error) => return assert_eq!(error.status, 500),
            Event::Seated | Event::Computed(_) | Event::Data(..) => {}
        }
    }
    assert_eq!(tokens, expected[..tokens.len()]);
}
