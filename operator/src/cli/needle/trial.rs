//! Runs the test: measures the server's scale, then asks every question at its length.
//! In: a [`Plan`], a client. Out: one [`Cell`] for each length and depth.
//! Never: a question counted whose prompt did not have the length that was asked for.

use std::time::Duration;

use super::client::{Answer, Client, Question};
use super::lengths::{Scale, is_met};
use super::text::{FEWEST_WORDS, Haystack, seed_of};
use super::{Depth, NeedleError, Thinking};

/// Words of the two texts that tell the scale. Both have the fewest distractors, so only the words differ.
const SCALE_WORDS: (usize, usize) = (100, 400);

/// Texts tried to meet one length.
const LENGTH_TRIES: usize = 5;

/// Enough for a sentence with the code.
const ANSWER_TOKENS: u32 = 64;
/// Enough for thoughts before it.
const THINKING_TOKENS: u32 = 4096;

/// What to ask.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) model: String,
    pub(super) lengths: Vec<u32>,
    pub(super) depths: Vec<Depth>,
    pub(super) trials: u32,
    pub(super) thinking: Thinking,
    pub(super) seed: u64,
}

/// The questions of one length and depth.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) length: u32,
    pub(super) depth: Depth,
    pub(super) asked: Vec<Asked>,
}

/// One question, answered.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) expected: String,
    pub(super) answer: String,
    pub(super) right: bool,
    pub(super) prompt_tokens: u64,
    pub(super) first_token: Duration,
}

impl Cell {
    pub(super) fn right(&self) -> usize {
        self.asked.iter().filter(|asked| asked.right).count()
    }
}

/// Asks everything; `done` sees each cell when it is complete.
pub(super) fn run(
    client: &Client,
    plan: &Plan,
    mut done: impl FnMut(&Cell),
) -> Result<Vec<Cell>, NeedleError> {
    let mut scale = measure_scale(client, plan)?;
    let mut cells = Vec::new();
    for &length in &plan.lengths {
        for &depth in &plan.depths {
            let trials = 0..plan.trials;
            let asked = trials.map(|trial| ask(client, plan, &mut scale, length, depth, trial));
            let cell = Cell { length, depth, asked: asked.collect::<Result<_, _>>()? };
            done(&cell);
            cells.push(cell);
        }
    }
    Ok(cells)
}

fn measure_scale(client: &Client, plan: &Plan) -> Result<Scale, NeedleError> {
    let count = |words| {
        let haystack = Haystack::build(seed_of(plan.seed, 0, Depth::Middle, 0, words), words, Depth::Middle);
        let question = Question { max_tokens: 1, ..question(plan, &haystack) };
        client.ask(&question).map(|answer| answer.prompt_tokens)
    };
    let (small_words, large_words) = SCALE_WORDS;
    let (small, large) = (count(small_words)?, count(large_words)?);
    Scale::from_two((small_words, small), (large_words, large)).ok_or(NeedleError::NoScale {
        small,
        small_words,
        large,
        large_words,
    })
}

fn ask(
    client: &Client,
    plan: &Plan,
    scale: &mut Scale,
    length: u32,
    depth: Depth,
    trial: u32,
) -> Result<Asked, NeedleError> {
    let mut counted = 0;
    for attempt in 0..LENGTH_TRIES {
        let words = scale.words_for(length).filter(|&words| words >= FEWEST_WORDS).ok_or_else(|| {
            NeedleError::TooShort { asked: length, shortest: scale.tokens_for(FEWEST_WORDS) }
        })?;
        let haystack = Haystack::build(seed_of(plan.seed, length, depth, trial, attempt), words, depth);
        let answer = client.ask(&question(plan, &haystack))?;
        if is_met(length, answer.prompt_tokens) {
            return Ok(judged(&haystack, answer));
        }
        counted = answer.prompt_tokens;
        scale.correct(words, counted);
    }
    Err(NeedleError::LengthNotMet { asked: length, counted, tries: LENGTH_TRIES })
}

fn question<'a>(plan: &'a Plan, haystack: &'a Haystack) -> Question<'a> {
    let max_tokens = match plan.thinking {
        Thinking::Off => ANSWER_TOKENS,
        Thinking::On | Thinking::Default => THINKING_TOKENS,
    };
    Question { model: &plan.model, prompt: &haystack.prompt, max_tokens, thinking: plan.thinking }
}

fn judged(haystack: &Haystack, answer: Answer) -> Asked {
    Asked {
        expected: haystack.expected.clone(),
        right: haystack.is_right(&answer.content),
        answer: answer.content,
        prompt_tokens: answer.prompt_tokens,
        first_token: answer.first_token,
    }
}
