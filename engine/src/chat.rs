//! Requests in, prompt tokens out; output tokens in, OpenAI events out.
//! In: bodies of Chat Completions, tokens of the model. Out: [`ChatRequest`]s, [`Answer`]s.
//! Never: I/O after [`Chat::open`], a panic or unbounded work for anything a client sends, a special token that a
//! client or the model spelled in text.
//! DeepSeek's own crates define requests, prompt and responses; the layers around them, in the order of a request's
//! way: `fields`, `parameters`, `normalise`, `convert`, `encode`; then `splitter` and `emitter`, which `answer` joins.
//! CPU-bound: a prompt of 20,000 tokens takes 30 ms, so call [`Chat::prepare`] off async threads.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use deepseek_recipe_core::conversation::Conversation;
use deepseek_recipe_encoding::PromptEncoding;
use deepseek_recipe_encoding::dsv4::DeepseekV4Encoding;
use engine_spec::config::ChatConfig;
use serde_json::{Value, json};

use crate::ApiError;
use crate::sample::Sampling;
use answer::AnswerOptions;
use convert::{Prepared, Start};
use emitter::EmitterOptions;
use encode::PromptEncoder;
use fields::Fields;
use normalise::Dialogue;
use parameters::{Parameters, SamplingDefaults};
use splitter::SplitterOptions;
use vocabulary::Vocabulary;

mod answer;
mod checkpoint;
mod convert;
mod emitter;
mod encode;
mod fields;
mod normalise;
mod parameters;
mod splitter;
mod vocabulary;

pub use answer::{Answer, End, Pushed};
pub use checkpoint::ChatOpenError;

/// What a deployment decides.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// The only model that is served.
    pub model_name: String,
    /// Longest prompt plus answer.
    pub context_tokens: u32,
    /// For requests that say nothing.
    pub defaults: ChatConfig,
}

/// The chat API of one checkpoint; share it in an `Arc`.
pub struct Chat {
    options: ChatOptions,
    sampling: SamplingDefaults,
    vocabulary: Arc<Vocabulary>,
    encoder: Arc<PromptEncoder>,
    encoding: DeepseekV4Encoding,
    tokenizer_hash: String,
    models: Bytes,
}

/// A request that can be computed.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    pub prompt: Vec<u32>,
    /// At least 1; prompt and answer fit the context.
    pub max_tokens: u32,
    pub sampling: Sampling,
    pub stream: bool,
    /// Number of alternatives to tell beside each token; none = no log probabilities.
    pub logprobs: Option<u32>,
    answer: AnswerOptions,
}

impl Chat {
    /// Loads `tokenizer.json` and, if there is one, `generation_config.json` of a checkpoint folder.
    ///
    /// # Errors
    /// [`ChatOpenError`], naming the file.
    pub fn open(checkpoint: &Path, options: ChatOptions) -> Result<Self, ChatOpenError> {
        let opened = checkpoint::open(checkpoint)?;
        let encoder = Arc::new(opened.encoder);
        Ok(Self {
            sampling: opened.sampling,
            vocabulary: Arc::new(opened.vocabulary),
            encoding: DeepseekV4Encoding::new().with_tokenizer(Arc::clone(&encoder)),
            encoder,
            tokenizer_hash: opened.tokenizer_hash,
            models: models(&options),
            options,
        })
    }

    /// Reads the body of a chat completion: checks it, renders and tokenises the prompt.
    ///
    /// A request that leaves less room for its answer than it asks for gets what there is.
    ///
    /// # Errors
    /// 4xx with the field that is wrong; a prompt that leaves no room in the context is `context_length_exceeded`.
    pub fn prepare(&self, body: &[u8]) -> Result<ChatRequest, ApiError> {
        let mut fields = Fields::parse(body)?;
        self.check_model(&mut fields)?;
        let parameters = Parameters::take(&mut fields, &self.sampling)?;
        let prepared = self.conversation(&mut fields, &parameters)?;
        let prompt = self.encode(&prepared.conversation)?;
        let room =
            u32::try_from(prompt.len()).ok().and_then(|used| self.options.context_tokens.checked_sub(used));
        let Some(room @ 1..) = room else {
            return Err(ApiError::context_length_exceeded(prompt.len(), self.options.context_tokens));
        };
        Ok(ChatRequest {
            max_tokens: parameters.max_tokens.unwrap_or(prepared.default_max_tokens).min(room),
            sampling: parameters.sampling,
            stream: parameters.stream,
            logprobs: parameters.logprobs,
            answer: self.answer_options(&prepared, parameters, prompt.len()),
            prompt,
        })
    }

    /// The list of models: the one.
    pub fn models(&self) -> Bytes {
        self.models.clone()
    }

    /// `{"prompt": text}` or `{"messages": [...]}` to ids, as vLLM's `/tokenize`. Text is plain: what spells a special
    /// token is no special token. Messages become the prompt that [`prepare`](Self::prepare) makes of them.
    ///
    /// # Errors
    /// 4xx with the field that is wrong.
    pub fn tokenize(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let mut fields = Fields::parse(body)?;
        self.check_model(&mut fields)?;
        let ids = match fields.string("prompt")? {
            Some(text) => {
                self.encoder.plain_ids(&text).map_err(|reason| ApiError::invalid("prompt", reason))?
            }
            None => {
                let parameters = Parameters::take(&mut fields, &self.sampling)?;
                self.encode(&self.conversation(&mut fields, &parameters)?.conversation)?
            }
        };
        let context = self.options.context_tokens;
        Ok(Bytes::from(json!({"count": ids.len(), "max_model_len": context, "tokens": ids}).to_string()))
    }

    /// `{"tokens": [ids]}` to `{"prompt": text}`; special tokens are spelled.
    ///
    /// # Errors
    /// 4xx with the field that is wrong.
    pub fn detokenize(&self, body: &[u8]) -> Result<Bytes, ApiError> {
        let mut fields = Fields::parse(body)?;
        self.check_model(&mut fields)?;
        let Some(tokens) = fields.array("tokens")? else {
            return Err(ApiError::invalid("tokens", "`tokens` is missing."));
        };
        let mut text = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
            let Some(id) = id.filter(|&id| (id as usize) < self.vocabulary.len()) else {
                let param = format!("tokens[{index}]");
                let message =
                    format!("`{param}` must be an id below {}, but is {token}.", self.vocabulary.len());
                return Err(ApiError::invalid(param, message));
            };
            text.extend_from_slice(self.vocabulary.spelling(id));
        }
        Ok(Bytes::from(json!({"prompt": String::from_utf8_lossy(&text)}).to_string()))
    }

    /// SHA-256 of `tokenizer.json`: prefill and decode must agree on it.
    pub fn tokenizer_hash(&self) -> &str {
        &self.tokenizer_hash
    }

    /// The id that ends an answer.
    pub fn eos(&self) -> u32 {
        self.vocabulary.eos()
    }

    /// A request that names no model means the one.
    fn check_model(&self, fields: &mut Fields) -> Result<(), ApiError> {
        match fields.string("model")? {
            Some(asked) if asked != self.options.model_name => {
                let asked: String = asked.chars().take(256).collect();
                Err(ApiError::model_not_found(&asked, &self.options.model_name))
            }
            _ => Ok(()),
        }
    }

    fn conversation(&self, fields: &mut Fields, parameters: &Parameters) -> Result<Prepared, ApiError> {
        let dialogue = Dialogue::take(fields)?;
        convert::convert(dialogue, parameters.thinking, parameters.effort, &self.options.defaults)
    }

    fn encode(&self, conversation: &Conversation) -> Result<Vec<u32>, ApiError> {
        self.encoding.encode(conversation).map_err(|error| ApiError::invalid("messages", error.to_string()))
    }

    fn answer_options(
        &self,
        prepared: &Prepared,
        parameters: Parameters,
        prompt_tokens: usize,
    ) -> AnswerOptions {
        AnswerOptions {
            vocabulary: Arc::clone(&self.vocabulary),
            splitter: SplitterOptions {
                start: prepared.start,
                tools: prepared.tools,
                single_call: parameters.single_call,
                named: prepared.named,
                ignore_eos: parameters.ignore_eos,
                stops: parameters.stops,
            },
            emitter: EmitterOptions {
                model: self.options.model_name.clone(),
                prompt_tokens,
                thinking: prepared.conversation.thinking_mode,
                starts_in_reasoning: prepared.start == Start::Reasoning,
                stream: parameters.stream,
                usage: parameters.usage,
                logprobs: parameters.logprobs,
            },
        }
    }
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chat")
            .field("options", &self.options)
            .field("sampling", &self.sampling)
            .field("vocabulary", &self.vocabulary)
            .field("encoder", &self.encoder)
            .field("tokenizer_hash", &self.tokenizer_hash)
            .finish_non_exhaustive()
    }
}

impl ChatRequest {
    /// The output machine of this request; `id` is what the client will know the answer by.
    pub fn answer(&self, id: String) -> Answer {
        Answer::new(id, self.answer.clone())
    }
}

fn models(options: &ChatOptions) -> Bytes {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let model: Value = json!({
        "id": options.model_name, "object": "model", "created": created, "owned_by": "fathom",
        "max_model_len": options.context_tokens,
    });
    Bytes::from(json!({"object": "list", "data": [model]}).to_string())
}

#[cfg(test)]
mod tests;
