//! What a chat request says about its answer, apart from messages and tools: sampling, length, stops, stream, thinking.
//! In: the body's fields and the checkpoint's defaults. Out: [`Parameters`], checked.
//! Never: a value that is accepted and then ignored, when ignoring it would change the answer.
//! DeepSeek's crate forces temperature and top_p in thinking mode and drops `max_completion_tokens`; that is why
//! they are read here and not there.
//! Source: OpenAI's Chat Completions reference; `top_k`, `min_p`, `ignore_eos` are vLLM's and SGLang's names.

use std::hash::{BuildHasher, RandomState};

use deepseek_recipe::request::{RequestReasoningEffort, ThinkingType};
use serde_json::Value;

use super::fields::{Fields, unsupported, within, wrong_type};
use crate::ApiError;
use crate::sample::Sampling;

const MAX_STOPS: usize = 16;
const MAX_TOP_LOGPROBS: u32 = 20;

/// Sampling of requests that say nothing: the checkpoint's `generation_config.json`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SamplingDefaults {
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) top_k: u32,
    pub(super) min_p: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0 }
    }
}

/// Which chunks of a stream tell token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageReport {
    Never,
    /// One chunk without choices before the end.
    AtTheEnd,
    /// The same, and the counts so far on every chunk.
    Always,
}

#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) sampling: Sampling,
    pub(super) max_tokens: Option<u32>,
    pub(super) stops: Vec<String>,
    pub(super) ignore_eos: bool,
    pub(super) stream: bool,
    pub(super) usage: UsageReport,
    /// Number of alternatives; none = no log probabilities.
    pub(super) logprobs: Option<u32>,
    pub(super) thinking: Option<ThinkingType>,
    pub(super) effort: Option<RequestReasoningEffort>,
    /// `parallel_tool_calls: false`: the answer ends with its first call.
    pub(super) single_call: bool,
}

impl Parameters {
    /// Takes the parameters out of a body.
    ///
    /// # Errors
    /// 400 with the field's name: wrong type, out of range, or not supported here.
    pub(super) fn take(fields: &mut Fields, defaults: &SamplingDefaults) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        Ok(Self {
            sampling: sampling(fields, defaults)?,
            max_tokens: max_tokens(fields)?,
            stops: stops(fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            stream,
            usage: usage(fields)?,
            logprobs: logprobs(fields)?,
            thinking: thinking(fields)?,
            effort: choice_of(fields.take("reasoning_effort"), "reasoning_effort", EFFORTS)?,
            single_call: fields.boolean("parallel_tool_calls")? == Some(false),
        })
    }
}

fn sampling(fields: &mut Fields, defaults: &SamplingDefaults) -> Result<Sampling, ApiError> {
    let temperature = in_range(fields, "temperature", "from 0 to 2", |value| (0.0..=2.0).contains(&value))?;
    let top_p = in_range(fields, "top_p", "above 0 and at most 1", |value| 0.0 < value && value <= 1.0)?;
    let min_p = in_range(fields, "min_p", "from 0 to 1", |value| (0.0..=1.0).contains(&value))?;
    let top_k = match fields.integer("top_k")? {
        None => defaults.top_k,
        // vLLM and SGLang write "off" as -1.
        Some(-1) => 0,
        Some(value) => u32::try_from(value).map_err(|_| {
            ApiError::invalid("top_k", format!("`top_k` must be -1 or from 0, but is {value}."))
        })?,
    };
    Ok(Sampling {
        temperature: temperature.unwrap_or(defaults.temperature),
        top_p: top_p.unwrap_or(defaults.top_p),
        top_k,
        min_p: min_p.unwrap_or(defaults.min_p),
        seed: seed(fields)?,
    })
}

/// The request's seed, or one that nobody can foresee.
fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    let Some(seed) = fields.integer("seed")? else { return Ok(RandomState::new().hash_one("seed")) };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "any 64-bit pattern seeds; a negative seed is its two's complement"
    )]
    Ok(seed as u64)
}

fn in_range(
    fields: &mut Fields,
    name: &str,
    range: &str,
    holds: impl FnOnce(f32) -> bool,
) -> Result<Option<f32>, ApiError> {
    let Some(value) = fields.number(name)? else { return Ok(None) };
    #[expect(clippy::cast_possible_truncation, reason = "sampling is f32; the range is checked afterwards")]
    let narrow = value as f32;
    if holds(narrow) {
        Ok(Some(narrow))
    } else {
        Err(ApiError::invalid(name, format!("`{name}` must be {range}, but is {value}.")))
    }
}

/// `max_completion_tokens` is OpenAI's newer name and wins. Larger than any context is no error: it is cut later.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let mut asked = None;
    for name in ["max_completion_tokens", "max_tokens"] {
        let Some(value) = fields.integer(name)? else { continue };
        if value < 1 {
            return Err(ApiError::invalid(name, format!("`{name}` must be at least 1, but is {value}.")));
        }
        asked = asked.or(Some(u32::try_from(value).unwrap_or(u32::MAX)));
    }
    Ok(asked)
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(one) => vec![one],
    };
    if items.len() > MAX_STOPS {
        let message = format!("`stop` may hold {MAX_STOPS} strings, but holds {}.", items.len());
        return Err(ApiError::invalid("stop", message));
    }
    items
        .into_iter()
        .map(|item| match item {
            Value::String(text) if text.is_empty() => {
                Err(ApiError::invalid("stop", "A stop string must not be empty."))
            }
            Value::String(text) => Ok(text),
            other => Err(wrong_type("stop", "a string or an array of strings", &other)),
        })
        .collect()
}

/// Options without `stream` are accepted and mean nothing.
fn usage(fields: &mut Fields) -> Result<UsageReport, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(UsageReport::Never) };
    let mut option = |name| options.boolean(name).map_err(|error| within("stream_options", error));
    let at_the_end = option("include_usage")?.unwrap_or(false);
    let always = option("continuous_usage_stats")?.unwrap_or(false);
    Ok(match (at_the_end, always) {
        (false, _) => UsageReport::Never,
        (true, false) => UsageReport::AtTheEnd,
        (true, true) => UsageReport::Always,
    })
}

fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs")?.unwrap_or(0);
    let top = u32::try_from(top).ok().filter(|&top| top <= MAX_TOP_LOGPROBS).ok_or_else(|| {
        let message = format!("`top_logprobs` must be from 0 to {MAX_TOP_LOGPROBS}, but is {top}.");
        ApiError::invalid("top_logprobs", message)
    })?;
    if top > 0 && !wanted {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`."));
    }
    Ok(wanted.then_some(top))
}

const EFFORTS: &str = "one of none, minimal, low, medium, high, xhigh, ultra, max";

fn thinking(fields: &mut Fields) -> Result<Option<ThinkingType>, ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(None) };
    choice_of(thinking.take("type"), "thinking.type", "one of enabled, disabled, adaptive")
}

fn choice_of<T: serde::de::DeserializeOwned>(
    value: Option<Value>,
    param: &str,
    choices: &str,
) -> Result<Option<T>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let shown = value.to_string();
    serde_json::from_value(value).map(Some).map_err(|_| {
        let shown: String = shown.chars().take(64).collect();
        ApiError::invalid(param, format!("`{param}` must be {choices}, but is {shown}."))
    })
}

/// Fields that clients send at their neutral value; any other value would need work that is not done here.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, neutral) in [
        ("n", 1.0),
        ("best_of", 1.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("min_tokens", 0.0),
    ] {
        if let Some(value) = fields.number(name)?
            && value != neutral
        {
            let message = format!("`{name}` other than {neutral} is not supported yet, but is {value}.");
            return Err(unsupported(name, message));
        }
    }
    if let Some(bias) = fields.take("logit_bias")
        && !is_neutral_bias(&bias)
    {
        return Err(unsupported("logit_bias", "`logit_bias` is not supported yet."));
    }
    for (name, instead) in [
        ("functions", "send `tools` instead"),
        ("function_call", "send `tool_choice` instead"),
        ("stop_token_ids", "send `stop` instead"),
    ] {
        if fields.take(name).is_some_and(|value| value != Value::Array(Vec::new())) {
            return Err(unsupported(name, format!("`{name}` is not supported; {instead}.")));
        }
    }
    refuse_structured_output(fields)
}

fn is_neutral_bias(bias: &Value) -> bool {
    bias.as_object().is_some_and(|bias| bias.values().all(|value| value.as_f64() == Some(0.0)))
}

/// The prompt could ask for JSON, but nothing would hold the model to it.
fn refuse_structured_output(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(()) };
    match format.string("type").map_err(|error| within("response_format", error))?.as_deref() {
        None | Some("text") => Ok(()),
        Some("json_object" | "json_schema" | "regex") => Err(unsupported(
            "response_format",
            "`response_format` other than `text` is not supported yet; ask for JSON in the prompt.",
        )),
        Some(_) => Err(ApiError::invalid("response_format.type", "`response_format.type` must be `text`.")),
    }
}
