//! A dialogue to the conversation that the prompt is made of.
//! In: [`Dialogue`], what the request says about thinking, the deployment's defaults. Out: [`Prepared`].
//! Never: a tool, a schema or a sampling parameter in the crate's `convert`; it gets messages and thinking only, and
//! the rest is set on its result.
//! The effort levels follow DeepSeek's crate, which knows the 0731 checkpoints; April's had only today's `high` text
//! and called it `max`.

use deepseek_recipe::openai::ChatCompletionRequest;
use deepseek_recipe::openai::chat_completion::request::ChatCompletionThinking;
use deepseek_recipe::request::{
    ConversionError, ConversionOptions, DEFAULT_MAX_EFFORT_MAX_TOKENS, DEFAULT_NON_THINKING_MAX_TOKENS,
    DEFAULT_THINKING_MAX_TOKENS, ModelVersion, ProtocolRequest, RequestReasoningEffort, ThinkingType,
};
use deepseek_recipe_core::conversation::{Conversation, ReasoningEffort};
use deepseek_recipe_core::messages::InputMessage;
use deepseek_recipe_core::tools::ToolChoice;
use engine_spec::config::{ChatConfig, EffortProfile, Thinking};

use super::fields::unsupported;
use super::normalise::{Choice, Dialogue};
use crate::ApiError;

/// Where in an answer the model begins to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Reasoning,
    Content,
    /// The prompt has opened the block of tool calls already.
    ToolBlock,
}

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) conversation: Conversation,
    pub(super) start: Start,
    /// The model may call tools.
    pub(super) tools: bool,
    /// One tool was chosen by name: its call is the answer, and ends with `stop`.
    pub(super) named: bool,
    /// Longest answer when the request does not say.
    pub(super) default_max_tokens: u32,
}

/// # Errors
/// 400 for a conversation that the template cannot write, or a tool choice that cannot be held.
pub(super) fn convert(
    dialogue: Dialogue,
    thinking: Option<ThinkingType>,
    effort: Option<RequestReasoningEffort>,
    defaults: &ChatConfig,
) -> Result<Prepared, ApiError> {
    let Dialogue { messages, continues, tools, tool_choice } = dialogue;
    let mut conversation = conversation(messages, thinking, effort, defaults.thinking)?;
    let default_max_tokens = default_max_tokens(&conversation);
    conversation.reasoning_effort = effort_of(defaults.effort_profile, conversation.reasoning_effort);
    conversation.tools = tools;
    let mut start = if conversation.thinking_mode { Start::Reasoning } else { Start::Content };
    if continues && continue_last(&mut conversation.messages) {
        start = Start::Content;
    }
    let named = matches!(tool_choice, Choice::Named(_));
    if choose_tools(&mut conversation, tool_choice, continues)? {
        start = Start::ToolBlock;
    }
    let tools = !conversation.tools.is_empty();
    Ok(Prepared { conversation, start, tools, named, default_max_tokens })
}

fn conversation(
    messages: Vec<deepseek_recipe::openai::chat_completion::request::ChatCompletionRequestMessage>,
    thinking: Option<ThinkingType>,
    effort: Option<RequestReasoningEffort>,
    default: Thinking,
) -> Result<Conversation, ApiError> {
    // The crate picks the template by this name; the served name was checked before.
    const MODEL: &str = "DeepSeek-V4-Pro";
    let options = ConversionOptions::new()
        .with_model_alias(MODEL, ModelVersion::DeepseekV4Pro)
        .with_default_thinking_mode(default == Thinking::On);
    let request = ChatCompletionRequest {
        messages,
        model: MODEL.to_owned(),
        frequency_penalty: None,
        logprobs: None,
        top_logprobs: None,
        max_tokens: None,
        n: None,
        presence_penalty: None,
        seed: None,
        stop: None,
        stream: None,
        stream_options: None,
        temperature: None,
        top_p: None,
        response_format: None,
        tools: None,
        tool_choice: None,
        reasoning_effort: effort,
        thinking: thinking.map(|r#type| ChatCompletionThinking { r#type, budget_tokens: None }),
        parallel_tool_calls: None,
    };
    match request.convert(options) {
        Ok(converted) => Ok(converted.conversation),
        Err(ConversionError::BadRequest { detail }) => Err(ApiError::invalid("messages", detail)),
        Err(ConversionError::Internal { detail }) => Err(ApiError::internal(detail)),
    }
}

/// DeepSeek's own output budgets.
fn default_max_tokens(conversation: &Conversation) -> u32 {
    match (conversation.thinking_mode, conversation.reasoning_effort) {
        (false, _) => DEFAULT_NON_THINKING_MAX_TOKENS,
        (true, Some(ReasoningEffort::Max)) => DEFAULT_MAX_EFFORT_MAX_TOKENS,
        (true, _) => DEFAULT_THINKING_MAX_TOKENS,
    }
}

/// The level whose text the checkpoint was trained with.
fn effort_of(profile: EffortProfile, asked: Option<ReasoningEffort>) -> Option<ReasoningEffort> {
    match (profile, asked) {
        (EffortProfile::V0731, asked) => asked,
        (EffortProfile::Preview, Some(ReasoningEffort::Max)) => Some(ReasoningEffort::High),
        (EffortProfile::Preview, Some(_)) => Some(ReasoningEffort::Low),
        (EffortProfile::Preview, None) => None,
    }
}

/// Leaves the last message open. True when its content has begun, so that its reasoning is over.
fn continue_last(messages: &mut [InputMessage]) -> bool {
    let Some(InputMessage::Assistant { content, prefix, .. }) = messages.last_mut() else { return false };
    *prefix = true;
    !content.is_empty()
}

/// Sets tools and choice. True when the prompt opens the block of calls.
fn choose_tools(conversation: &mut Conversation, choice: Choice, continues: bool) -> Result<bool, ApiError> {
    conversation.tool_choice = match choice {
        Choice::Auto => ToolChoice::Auto,
        Choice::None => {
            conversation.tools.clear();
            ToolChoice::None
        }
        Choice::Required => ToolChoice::Required,
        Choice::Named(name) => {
            conversation.tools.retain(|tool| tool.name == name);
            ToolChoice::Required
        }
    };
    if conversation.tool_choice != ToolChoice::Required {
        return Ok(false);
    }
    // Without a grammar, only opening the block in the prompt can force a call, and that skips the thinking.
    if conversation.thinking_mode {
        return Err(unsupported(
            "tool_choice",
            "A required or named `tool_choice` is not supported in thinking mode yet; send \
             `\"thinking\": {\"type\": \"disabled\"}` with it.",
        ));
    }
    if continues {
        return Err(unsupported(
            "tool_choice",
            "A required or named `tool_choice` cannot be joined with an assistant message to continue.",
        ));
    }
    Ok(true)
}
