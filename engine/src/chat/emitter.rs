//! Parts of an answer to the chunks of a Chat Completions response: streamed as events, or added up to one body.
//! In: DeepSeek's `OutputChunk`s and log probabilities. Out: whole server-sent events, or the response's JSON.
//! Never: a chunk before there is something to show; usage that nobody asked for; a choice after the finish reason.
//! Both forms are made of the same chunks. Log probabilities wait for the next chunk after their token, so that
//! there is one entry for every token in the end, also for those that show nothing.
//! Source: OpenAI's Chat Completions streaming reference; DeepSeek's names for reasoning.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use deepseek_recipe::openai::ChatCompletionRequest;
use deepseek_recipe::openai::chat_completion::response::{
    ChatCompletionChunk, ChatCompletionChunkGenerator, ChatCompletionLogprobs, ChatCompletionMessageDelta,
    ChatCompletionResponse, ChatCompletionTokenLogprob, ChatCompletionTopLogprob, ChatCompletionUsage,
};
use deepseek_recipe::request::{ConversationRequest, ModelVersion, ProtocolRequest};
use deepseek_recipe::response::{Accumulate, ProtocolResponse};
use deepseek_recipe::stream::{
    ChunkGenerator, CompletionUsage, OutputChunk, PromptUsage, ThinkingInitialStage,
};
use deepseek_recipe_core::conversation::Conversation;
use futures_util::FutureExt;

use super::parameters::UsageReport;
use super::vocabulary::Vocabulary;
use crate::sample::{LEAST_LOGPROB, Sampled};

/// What the response of one request looks like.
#[derive(Debug, Clone)]
pub(super) struct EmitterOptions {
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    pub(super) thinking: bool,
    pub(super) starts_in_reasoning: bool,
    pub(super) stream: bool,
    pub(super) usage: UsageReport,
    /// Number of alternatives; none = no log probabilities.
    pub(super) logprobs: Option<u32>,
}

/// The writer of one response.
#[derive(Debug)]
pub(super) struct Emitter {
    generator: ChatCompletionChunkGenerator,
    response: ChatCompletionResponse,
    started: bool,
    prompt: PromptUsage,
    thinking: bool,
    stream: bool,
    usage: UsageReport,
    logprobs: Option<u32>,
    waiting: Option<ChatCompletionLogprobs>,
}

impl Emitter {
    pub(super) fn new(id: String, options: EmitterOptions) -> Self {
        let EmitterOptions { model, prompt_tokens, thinking, starts_in_reasoning, stream, usage, logprobs } =
            options;
        let generator = generator(id.clone(), model.clone(), thinking, starts_in_reasoning, usage);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            generator,
            response: ChatCompletionResponse::new(id, model, created, 0, 0),
            started: false,
            prompt: PromptUsage { prompt_tokens, prompt_cache_hit_tokens: 0 },
            thinking,
            stream,
            usage,
            logprobs,
            waiting: None,
        }
    }

    /// Keeps a token's log probability for the next chunk.
    pub(super) fn note(&mut self, token: &Sampled, in_reasoning: bool, vocabulary: &Vocabulary) {
        let Some(top) = self.logprobs else { return };
        let waiting =
            self.waiting.get_or_insert(ChatCompletionLogprobs { content: None, reasoning_content: None });
        let channel = if in_reasoning { &mut waiting.reasoning_content } else { &mut waiting.content };
        channel.get_or_insert_default().push(entry(token, top as usize, vocabulary));
    }

    /// Writes one part. `so_far`: the tokens read up to now.
    pub(super) fn write(&mut self, part: OutputChunk, so_far: CompletionUsage, events: &mut Vec<Bytes>) {
        if !self.started {
            self.started = true;
            let start = OutputChunk::Start { system_fingerprint: None, prompt_usage: self.prompt };
            for chunk in self.generate(start) {
                self.give(chunk, so_far, events);
            }
        }
        let finishes = matches!(part, OutputChunk::Finish { .. });
        for mut chunk in self.generate(part) {
            if let Some(choice) = chunk.choices.first_mut() {
                choice.logprobs = self.waiting.take();
            }
            if finishes && self.stream {
                self.end_stream(chunk, so_far, events);
            } else {
                self.give(chunk, so_far, events);
            }
        }
    }

    /// The response as one body.
    pub(super) fn body(mut self) -> Bytes {
        for choice in &mut self.response.choices {
            choice.message.content.get_or_insert_default();
        }
        Bytes::from(json(&self.response))
    }

    fn generate(&mut self, part: OutputChunk) -> Vec<ChatCompletionChunk> {
        self.generator.generate(part).now_or_never().expect("the chunk generator waits for nothing")
    }

    fn give(&mut self, mut chunk: ChatCompletionChunk, so_far: CompletionUsage, events: &mut Vec<Bytes>) {
        if !self.stream {
            self.response.accumulate(chunk);
            return;
        }
        if self.usage == UsageReport::Always {
            chunk.usage = Some(Some(self.usage_of(so_far)));
        }
        events.push(event(&chunk));
    }

    /// The chunk with the finish reason, the chunk with the usage if it was asked for, the terminator.
    fn end_stream(
        &mut self,
        mut chunk: ChatCompletionChunk,
        so_far: CompletionUsage,
        events: &mut Vec<Bytes>,
    ) {
        let report = self.usage != UsageReport::Never;
        let last = report.then(|| ChatCompletionChunk {
            id: chunk.id.clone(),
            object: chunk.object,
            created: chunk.created,
            model: chunk.model.clone(),
            system_fingerprint: chunk.system_fingerprint.clone(),
            choices: Vec::new(),
            usage: Some(Some(self.usage_of(so_far))),
        });
        chunk.usage = report.then_some(None);
        for choice in &mut chunk.choices {
            choice.delta = ChatCompletionMessageDelta::default();
        }
        self.give(chunk, so_far, events);
        events.extend(last.map(|last| event(&last)));
        events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    }

    fn usage_of(&self, completion: CompletionUsage) -> ChatCompletionUsage {
        let mut usage = ChatCompletionUsage::from((self.prompt, completion));
        if !self.thinking {
            usage.completion_tokens_details = None;
        }
        usage
    }
}

/// The crate makes its generator from a request; only these fields of it are read.
fn generator(
    id: String,
    model: String,
    thinking: bool,
    starts_in_reasoning: bool,
    usage: UsageReport,
) -> ChatCompletionChunkGenerator {
    let conversation = Conversation { thinking_mode: thinking, ..Conversation::default() };
    let mut request = ConversationRequest::new(conversation, ModelVersion::DeepseekV4Pro);
    request.stream = true;
    request.response_options.include_usage = usage != UsageReport::Never;
    request.parsing_options.thinking_initial_stage = thinking.then_some(if starts_in_reasoning {
        ThinkingInitialStage::ReasoningStart
    } else {
        ThinkingInitialStage::ContentContinuation
    });
    ChatCompletionRequest::chunk_generator(&request, id, model)
}

fn entry(token: &Sampled, top: usize, vocabulary: &Vocabulary) -> ChatCompletionTokenLogprob {
    let (text, bytes) = spelled(vocabulary.spelling(token.id));
    let top_logprobs = token.top.iter().take(top).map(|&(id, logprob)| {
        let (token, bytes) = spelled(vocabulary.spelling(id));
        ChatCompletionTopLogprob { token, logprob: finite(logprob), bytes: Some(bytes) }
    });
    ChatCompletionTokenLogprob {
        token: text,
        logprob: finite(token.logprob),
        bytes: Some(bytes),
        top_logprobs: top_logprobs.collect(),
    }
}

/// A token as text; bytes that are no text are written as `\xNN`.
fn spelled(bytes: &[u8]) -> (String, Vec<u8>) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect(),
    };
    (text, bytes.to_owned())
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LEAST_LOGPROB }
}

fn event(chunk: &ChatCompletionChunk) -> Bytes {
    let mut event = Vec::with_capacity(256);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(&json(chunk));
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("responses are maps with text keys and finite numbers")
}
