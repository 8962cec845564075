//! `fathom needle`: does an endpoint find facts in long texts?
//! In: the address of any OpenAI chat endpoint, lengths, depths. Out: right answers of questions asked, per length and
//! depth, and the time to the first token.
//! Never: an assumption about the tokenizer: a length is what the server itself counts in `usage.prompt_tokens`.
//! A loss of recall is silent (answers stay fluent), so the only way to know is to ask.

mod client;
mod lengths;
mod report;
mod text;
mod trial;

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;

use super::Output;
use client::Client;
use trial::Plan;

/// Asks an OpenAI endpoint for facts hidden in long texts, and reports how many it finds.
///
/// Each question is a text of plain sentences with one fact to find, such as "The code for harbor is 4821.", and others
/// that distract. Lengths are counted by the server itself (usage.prompt_tokens), within 5 %.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom needle --url http://127.0.0.1:8000
  fathom needle --url http://127.0.0.1:8000 --lengths 4000,16000 --depths start,end --trials 5
  fathom needle --url https://api.example.com --model some-model --api-key-env API_KEY -o json

Exit codes: 0 enough found; 1 fewer found than --min; 2 bad input, or the endpoint cannot be asked.")]
pub(crate) struct Args {
    /// Address of the endpoint; `/v1` is added where it is missing.
    #[arg(long)]
    url: String,
    /// Model to ask [default: the first that the endpoint lists].
    #[arg(long)]
    model: Option<String>,
    /// Environment variable that holds the API key.
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Prompt lengths to test, in the server's own tokens.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,2000,4000,8000",
        value_parser = clap::value_parser!(u32).range(1..=4_000_000)
    )]
    lengths: Vec<u32>,
    /// Where in the text the fact stands.
    #[arg(long, value_delimiter = ',', default_value = "start,middle,end")]
    depths: Vec<Depth>,
    /// Questions for each length and depth.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: u32,
    /// Share of right answers that is enough.
    #[arg(long, default_value_t = 0.9, value_parser = share)]
    min: f64,
    /// Whether the model may think: `default` leaves it to the server.
    #[arg(long, default_value = "off")]
    thinking: Thinking,
    /// Makes the texts: the same seed, the same questions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest time for one question, refusals and waiting included, in seconds.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
    #[arg(short, long, default_value = "table")]
    output: Output,
}

/// Where in the text the fact stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Depth {
    Start,
    Middle,
    End,
}

impl Depth {
    fn name(self) -> &'static str {
        match self {
            Depth::Start => "start",
            Depth::Middle => "middle",
            Depth::End => "end",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Thinking {
    On,
    Off,
    Default,
}

/// Why the test could not be made. A test that was made and found too little is not an error.
#[derive(Debug, thiserror::Error)]
enum NeedleError {
    #[error("--api-key-env: the environment variable {0} is not set to a text")]
    NoKey(String),
    #[error(transparent)]
    Client(#[from] client::ClientError),
    #[error(
        "--lengths: {asked} tokens are fewer than the shortest question has here ({shortest}); ask for at least that"
    )]
    TooShort { asked: u32, shortest: u64 },
    #[error(
        "the server counted {small} prompt tokens for {small_words} words and {large} for {large_words}: lengths cannot be \
         measured by its usage.prompt_tokens"
    )]
    NoScale { small: u64, small_words: usize, large: u64, large_words: usize },
    #[error(
        "{tries} texts meant to have {asked} tokens had other lengths, the last one {counted}: lengths cannot be met within \
         5 % by the server's usage.prompt_tokens"
    )]
    LengthNotMet { asked: u32, counted: u64, tries: usize },
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let key = args.api_key_env.as_deref().map(api_key).transpose()?;
    let client = Client::new(&args.url, key.as_deref(), Duration::from_secs(args.timeout.into()))?;
    let model = match args.model {
        Some(model) => model,
        None => client.first_model()?,
    };
    let plan = Plan {
        model,
        lengths: sorted(args.lengths),
        depths: sorted(args.depths),
        trials: args.trials,
        thinking: args.thinking,
        seed: args.seed,
    };
    let cells = trial::run(&client, &plan, |cell| eprintln!("{}", report::progress(cell)))?;
    let report = report::Report::new(client.base(), &plan, args.min, cells);
    report.print(args.output)?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn api_key(variable: &str) -> Result<String, NeedleError> {
    std::env::var(variable)
        .ok()
        .filter(|key| !key.is_empty())
        .ok_or_else(|| NeedleError::NoKey(variable.to_owned()))
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{value} is not between 0 and 1")) }
}

#[cfg(test)]
mod tests;
