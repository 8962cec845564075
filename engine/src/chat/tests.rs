//! Tests of the chat module on the needle checkpoint's tokenizer. What a scheduler would do is done by hand here.

use std::path::Path;
use std::sync::OnceLock;

use bytes::Bytes;
use deepseek_recipe_encoding::TokenizerEncoder;
use engine_spec::config::{EffortProfile, Thinking};
use proptest::prelude::ProptestConfig;
use serde_json::{Value, json};

use super::*;
use crate::sample::Sampled;

mod bodies;
mod prompts;
mod properties;
mod streams;
mod text;
mod tools;

const MODEL: &str = "needle";
const EOS: &str = "<｜end▁of▁sentence｜>";
const THINK_END: &str = "</think>";
const DSML: &str = "｜DSML｜";

/// `PROPTEST_CASES=100000` searches longer.
fn at_least(cases: u32) -> ProptestConfig {
    let wanted = ProptestConfig::default();
    ProptestConfig { cases: wanted.cases.max(cases), ..wanted }
}

fn needle() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/needle"))
}

fn open(context_tokens: u32, thinking: Thinking, effort_profile: EffortProfile) -> Chat {
    let defaults = ChatConfig { thinking, effort_profile };
    Chat::open(needle(), ChatOptions { model_name: MODEL.to_owned(), context_tokens, defaults }).unwrap()
}

/// The needle model as it is served: thinking off unless asked for.
fn chat() -> &'static Chat {
    static CHAT: OnceLock<Chat> = OnceLock::new();
    CHAT.get_or_init(|| open(32_768, Thinking::Off, EffortProfile::Preview))
}

fn prepare(body: Value) -> ChatRequest {
    chat().prepare(body.to_string().as_bytes()).unwrap()
}

/// A request for `Hi`, with `more` fields.
fn request(more: Value) -> ChatRequest {
    prepare(body(more))
}

fn body(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// What a model writes: the spellings of the three special tokens that matter become their ids.
fn output(text: &str) -> Vec<u32> {
    let mut ranges: Vec<_> = [EOS, THINK_END, DSML]
        .iter()
        .flat_map(|special| text.match_indices(special).map(|(start, found)| start..start + found.len()))
        .collect();
    ranges.sort_by_key(|range| range.start);
    chat().encoder.encode_ids(text, &ranges).unwrap()
}

/// The same, with every byte of text as a token of its own.
fn output_by_bytes(text: &str) -> Vec<u32> {
    output(text)
        .into_iter()
        .flat_map(|id| match chat().vocabulary.meaning(id) {
            vocabulary::Meaning::Text => byte_ids(chat().vocabulary.spelling(id)),
            _ => vec![id],
        })
        .collect()
}

fn byte_ids(bytes: &[u8]) -> Vec<u32> {
    static IDS: OnceLock<Vec<u32>> = OnceLock::new();
    let ids = IDS.get_or_init(|| {
        let vocabulary = &chat().vocabulary;
        let id = |byte: u8| (0..815).find(|&id| vocabulary.spelling(id) == [byte]).unwrap();
        (0..=u8::MAX).map(id).collect()
    });
    bytes.iter().map(|&byte| ids[usize::from(byte)]).collect()
}

fn token(id: u32) -> Sampled {
    Sampled { id, logprob: -0.5, top: vec![(id, -0.5), (id ^ 1, -1.5), (id ^ 2, -2.5)] }
}

/// All events of an answer, as a scheduler would get them.
fn events(request: &ChatRequest, ids: &[u32], end: End) -> Vec<Bytes> {
    let mut answer = request.answer("chatcmpl-1".to_owned());
    let mut events = Vec::new();
    for &id in ids {
        let pushed = answer.push(&token(id));
        events.extend(pushed.events);
        if pushed.stopped {
            break;
        }
    }
    events.extend(answer.finish(end));
    events
}

/// The JSON of each event; the terminator is checked and left out.
fn chunks(request: &ChatRequest, ids: &[u32], end: End) -> Vec<Value> {
    let mut chunks: Vec<Value> = Vec::new();
    let events = events(request, ids, end);
    assert_eq!(events.last().map(|last| &last[..]), Some(&b"data: [DONE]\n\n"[..]));
    for event in &events[..events.len() - 1] {
        let event = std::str::from_utf8(event).unwrap();
        let json = event.strip_prefix("data: ").and_then(|event| event.strip_suffix("\n\n")).unwrap();
        assert!(!json.contains('\n'), "one line per event");
        chunks.push(serde_json::from_str(json).unwrap());
    }
    chunks
}

fn whole(request: &ChatRequest, ids: &[u32], end: End) -> Value {
    let mut answer = request.answer("chatcmpl-1".to_owned());
    for &id in ids {
        let pushed = answer.push(&token(id));
        assert!(pushed.events.is_empty());
        if pushed.stopped {
            break;
        }
    }
    assert!(answer.finish(end).is_empty());
    serde_json::from_slice(&answer.body()).unwrap()
}

/// What a client has understood in the end.
#[derive(Debug, Clone, Default, PartialEq)]
struct Told {
    content: String,
    reasoning: String,
    /// Name and arguments.
    calls: Vec<(String, String)>,
    finish: String,
    /// Entries of log probabilities, of both kinds.
    logprobs: usize,
    completion_tokens: Option<u64>,
}

impl Told {
    fn count_logprobs(&mut self, choice: &Value) {
        for kind in ["content", "reasoning_content"] {
            self.logprobs += choice["logprobs"][kind].as_array().map_or(0, Vec::len);
        }
    }

    /// Reads a stream as a client does, and complains of what would confuse one.
    fn by_chunks(chunks: &[Value]) -> Self {
        let mut told = Self::default();
        for chunk in chunks {
            assert_eq!(
                (&chunk["id"], &chunk["object"]),
                (&json!("chatcmpl-1"), &json!("chat.completion.chunk"))
            );
            if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
                told.completion_tokens = Some(tokens);
            }
            let Some(choice) = chunk["choices"].get(0) else { continue };
            assert_eq!(told.finish, "", "a choice after the finish reason");
            told.count_logprobs(choice);
            let delta = &choice["delta"];
            told.content += delta["content"].as_str().unwrap_or_default();
            told.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
                if let Some(name) = call["function"]["name"].as_str() {
                    assert_eq!(index, told.calls.len());
                    assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()));
                    assert_eq!(call["type"], "function");
                    told.calls.push((name.to_owned(), String::new()));
                } else {
                    assert!(call.get("id").is_none() && call.get("type").is_none());
                }
                told.calls[index].1 += call["function"]["arguments"].as_str().unwrap();
            }
            told.finish += choice["finish_reason"].as_str().unwrap_or_default();
        }
        told
    }

    fn by_body(body: &Value) -> Self {
        let choice = &body["choices"][0];
        let message = &choice["message"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let mut told = Self {
            content: text(&message["content"]),
            reasoning: text(&message["reasoning_content"]),
            calls: calls
                .map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"])))
                .collect(),
            finish: text(&choice["finish_reason"]),
            logprobs: 0,
            completion_tokens: body["usage"]["completion_tokens"].as_u64(),
        };
        told.count_logprobs(choice);
        told
    }
}

/// The answer to `body` when the model writes `ids`: streamed and whole, which must say the same.
#[track_caller]
fn told(body: &Value, ids: &[u32], end: End) -> Told {
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let by_chunks = Told::by_chunks(&chunks(&prepare(streamed), ids, end));
    let by_body = Told::by_body(&whole(&prepare(body.clone()), ids, end));
    assert_eq!(by_chunks, by_body, "streamed and whole answers differ");
    by_body
}
