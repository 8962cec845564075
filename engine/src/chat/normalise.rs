//! Messages and tools of a request, brought into the one form that DeepSeek's crate takes.
//! In: the body's fields. Out: a [`Dialogue`].
//! Never: a client's JSON Schema in the hands of the crate (it would compile it: 54 s of CPU for a body of 127 kB);
//! schemas stay with the tools, as data for the prompt.
//! Call ids are renumbered by position, because the template sorts calls by the text of their ids.

use std::collections::{BTreeMap, BTreeSet};

use deepseek_recipe::openai::chat_completion::request::ChatCompletionRequestMessage;
use deepseek_recipe_core::tools::ToolDefinition;
use serde_json::{Map, Value, json};

use super::fields::{Fields, within, wrong_type};
use crate::ApiError;

const MAX_TOOL_NAME_BYTES: usize = 128;

/// What is said, and with which tools.
#[derive(Debug)]
pub(super) struct Dialogue {
    pub(super) messages: Vec<ChatCompletionRequestMessage>,
    /// The last message is the beginning of the answer.
    pub(super) continues: bool,
    pub(super) tools: Vec<ToolDefinition>,
    pub(super) tool_choice: Choice,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

impl Dialogue {
    /// Takes messages, tools and tool choice out of a body.
    ///
    /// # Errors
    /// 400 with the place of the mistake, such as `messages[2].content`.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let Some(messages) = fields.array("messages")? else {
            return Err(ApiError::invalid("messages", "`messages` is missing."));
        };
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "`messages` must hold at least one message."));
        }
        let continues = continues(messages.last());
        let messages = normalise_messages(messages)?;
        let tools = tools(fields)?;
        let tool_choice = tool_choice(fields, &tools)?;
        Ok(Self { messages, continues, tools, tool_choice })
    }
}

/// An assistant message at the end is continued, unless it says `"prefix": false`; with calls it cannot be.
fn continues(last: Option<&Value>) -> bool {
    last.is_some_and(|last| last["role"] == "assistant" && last["prefix"] != Value::Bool(false))
}

fn normalise_messages(messages: Vec<Value>) -> Result<Vec<ChatCompletionRequestMessage>, ApiError> {
    let mut call_ids = BTreeMap::new();
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| {
            let place = format!("messages[{index}]");
            let Value::Object(mut message) = message else {
                return Err(wrong_type(&place, "an object", &message));
            };
            normalise_message(&mut message, &place, &mut call_ids)?;
            serde_json::from_value(Value::Object(message)).map_err(|error| {
                ApiError::invalid(place.as_str(), format!("`{place}` is not valid: {error}."))
            })
        })
        .collect()
}

/// `call_ids`: what the ids of the latest calls were renumbered to.
fn normalise_message(
    message: &mut Map<String, Value>,
    place: &str,
    call_ids: &mut BTreeMap<String, String>,
) -> Result<(), ApiError> {
    let role = match message.get("role") {
        Some(Value::String(role)) => role.clone(),
        Some(other) => return Err(wrong_type(&format!("{place}.role"), "a string", other)),
        None => {
            return Err(ApiError::invalid(format!("{place}.role"), format!("`{place}.role` is missing.")));
        }
    };
    if message.get("content").is_some_and(Value::is_null) {
        message.insert("content".to_owned(), json!(""));
    }
    match role.as_str() {
        "developer" => {
            message.insert("role".to_owned(), json!("system"));
        }
        "assistant" => normalise_assistant(message, place, call_ids)?,
        "tool" => normalise_tool_result(message, place, call_ids)?,
        _ => {}
    }
    Ok(())
}

fn normalise_assistant(
    message: &mut Map<String, Value>,
    place: &str,
    call_ids: &mut BTreeMap<String, String>,
) -> Result<(), ApiError> {
    message.entry("content").or_insert_with(|| json!(""));
    // Set again after the conversion, which refuses it beside tools.
    message.remove("prefix");
    if let Some(reasoning) = message.remove("reasoning")
        && message.get("reasoning_content").is_none_or(Value::is_null)
    {
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    call_ids.clear();
    match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => renumber_calls(calls, place, call_ids),
        Some(Value::Array(_) | Value::Null) => {
            message.remove("tool_calls");
            Ok(())
        }
        Some(other) => Err(wrong_type(&format!("{place}.tool_calls"), "an array", other)),
        None => Ok(()),
    }
}

fn renumber_calls(
    calls: &mut [Value],
    place: &str,
    call_ids: &mut BTreeMap<String, String>,
) -> Result<(), ApiError> {
    for (position, call) in calls.iter_mut().enumerate() {
        let place = format!("{place}.tool_calls[{position}]");
        let Value::Object(call) = call else { return Err(wrong_type(&place, "an object", call)) };
        let id = format!("call_{position:08}");
        match call.insert("id".to_owned(), json!(id)) {
            Some(Value::String(old)) => {
                if call_ids.insert(old, id).is_some() {
                    let message = format!("`{place}.id` is the id of an earlier call of this message.");
                    return Err(ApiError::invalid(format!("{place}.id"), message));
                }
            }
            Some(other) => return Err(wrong_type(&format!("{place}.id"), "a string", &other)),
            None => {
                return Err(ApiError::invalid(format!("{place}.id"), format!("`{place}.id` is missing.")));
            }
        }
        call.entry("type").or_insert_with(|| json!("function"));
        // A call without arguments; the template would make an argument of the empty text.
        if let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments"))
            && *arguments == ""
        {
            *arguments = json!("{}");
        }
    }
    Ok(())
}

fn normalise_tool_result(
    message: &mut Map<String, Value>,
    place: &str,
    call_ids: &BTreeMap<String, String>,
) -> Result<(), ApiError> {
    let param = format!("{place}.tool_call_id");
    match message.get("tool_call_id") {
        Some(Value::String(old)) => match call_ids.get(old) {
            Some(id) => {
                message.insert("tool_call_id".to_owned(), json!(id));
                Ok(())
            }
            None => {
                let message = format!("`{param}` answers no call of the assistant message before it.");
                Err(ApiError::invalid(param, message))
            }
        },
        Some(other) => Err(wrong_type(&param, "a string", other)),
        None => Err(ApiError::invalid(param.as_str(), format!("`{param}` is missing."))),
    }
}

fn tools(fields: &mut Fields) -> Result<Vec<ToolDefinition>, ApiError> {
    let mut names = BTreeSet::new();
    let mut tools = Vec::new();
    for (index, tool) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let tool = definition(tool, &place)?;
        if !names.insert(tool.name.clone()) {
            let message = format!("`{place}.function.name` is the name of an earlier tool.");
            return Err(ApiError::invalid(format!("{place}.function.name"), message));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn definition(tool: Value, place: &str) -> Result<ToolDefinition, ApiError> {
    let mut tool = Fields::of(place, tool)?;
    if tool.take("type").is_some_and(|kind| kind != "function") {
        let param = format!("{place}.type");
        return Err(ApiError::invalid(param.as_str(), format!("`{param}` must be `function`.")));
    }
    let place = format!("{place}.function");
    let Some(function) = tool.take("function") else {
        return Err(ApiError::invalid(place.as_str(), format!("`{place}` is missing.")));
    };
    let mut function = Fields::of(&place, function)?;
    let inside = |error: ApiError| within(&place, error);
    let name = function.string("name").map_err(inside)?.unwrap_or_default();
    if !is_tool_name(&name) {
        let message = format!(
            "`{place}.name` must be 1 to {MAX_TOOL_NAME_BYTES} letters, digits or characters of `_-.:/`."
        );
        return Err(ApiError::invalid(format!("{place}.name"), message));
    }
    let parameters = match function.take("parameters") {
        None => json!({}),
        Some(schema @ Value::Object(_)) => schema,
        Some(other) => return Err(wrong_type(&format!("{place}.parameters"), "an object", &other)),
    };
    let description = function.string("description").map_err(inside)?;
    Ok(ToolDefinition { name, description, parameters, strict: None, defer_loading: false })
}

/// Quotes, angle brackets and line ends would break the tags that calls are written in.
fn is_tool_name(name: &str) -> bool {
    (1..=MAX_TOOL_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte))
}

fn tool_choice(fields: &mut Fields, tools: &[ToolDefinition]) -> Result<Choice, ApiError> {
    const EXPECTED: &str = "one of none, auto, required, or a function by name";
    let choice = match fields.take("tool_choice") {
        None => return Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => return Ok(Choice::Auto),
            "none" => return Ok(Choice::None),
            "required" => Choice::Required,
            _ => return Err(ApiError::invalid("tool_choice", format!("`tool_choice` must be {EXPECTED}."))),
        },
        Some(Value::Object(named)) => match named
            .get("function")
            .and_then(|function| function["name"].as_str())
        {
            Some(name) => Choice::Named(name.to_owned()),
            None => {
                return Err(ApiError::invalid("tool_choice", format!("`tool_choice` must be {EXPECTED}.")));
            }
        },
        Some(other) => return Err(wrong_type("tool_choice", EXPECTED, &other)),
    };
    match &choice {
        Choice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            let message = format!("`tool_choice` names the function `{name}`, which is not in `tools`.");
            Err(ApiError::invalid("tool_choice", message))
        }
        Choice::Required if tools.is_empty() => {
            Err(ApiError::invalid("tool_choice", "`tool_choice: required` needs `tools`."))
        }
        _ => Ok(choice),
    }
}
