//! The block of tool calls in an answer, as far as the model wrote it well, and as well as can be where it did not.
//! In: text and markers (`｜DSML｜` ids). Out: tool calls, their arguments as JSON in pieces.
//! Never: arguments that are not JSON once the model has ended its answer; markup inside them from a well-formed call.
//! Only a marker after `<` or `</` makes a tag; without its marker the same text is a part of a value.
//! Forgiving: an unknown tag is skipped, a missing closing tag is supplied, a value that claims to be JSON and is not
//! becomes a string. A call that the end of the answer leaves open is closed too, but does not count as called.
//! Source: DeepSeek V4's DSML (`<｜DSML｜invoke name="f">`, `<｜DSML｜parameter name="k" string="true|false">`).

use deepseek_recipe::stream::OutputChunk;
use serde_json::Value;

use super::{INVOKE, MARKER};

/// A tag that is longer is none.
const MAX_TAG_BYTES: usize = 1024;
const PARAMETER: &str = "parameter name=\"";

/// The reader of one block.
#[derive(Debug)]
pub(super) struct ToolBlock {
    /// The block is over after one call.
    single_call: bool,
    state: State,
    /// What the state has read and not used yet.
    held: String,
    call: Option<Call>,
    opened: usize,
    closed: usize,
    /// Everything read while no call has been opened: content, if none ever is.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between tags: `held` is the last two characters.
    Gap,
    /// In an opening tag: `held` is what stands before its `>`.
    Tag,
    /// `held` is a `<` or `</` that may belong to a tag.
    StringValue,
    /// `held` is the whole value, which is checked when complete.
    JsonValue,
    /// In a closing tag. `start` is where in `text` it began.
    Closing {
        start: usize,
    },
    Done,
}

/// A call whose end has not been read.
#[derive(Debug)]
struct Call {
    has_parameters: bool,
}

impl ToolBlock {
    /// After the block's opening tag.
    pub(super) fn new(single_call: bool) -> Self {
        Self {
            single_call,
            state: State::Gap,
            held: String::new(),
            call: None,
            opened: 0,
            closed: 0,
            text: String::new(),
        }
    }

    /// In a tag that stands without a block around it, of which `beginning` was read.
    pub(super) fn in_tag(beginning: &str, single_call: bool) -> Self {
        Self {
            state: State::Tag,
            held: beginning.to_owned(),
            text: format!("<{MARKER}{beginning}"),
            ..Self::new(single_call)
        }
    }

    /// Calls that the model finished.
    pub(super) fn closed_calls(&self) -> usize {
        self.closed
    }

    /// The block's own closing tag has been read, or the only call that was wanted.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// What was read instead of calls.
    pub(super) fn take_text_without_calls(&mut self) -> Option<String> {
        (self.opened == 0).then(|| std::mem::take(&mut self.text).trim_matches('\n').to_owned())
    }

    /// Reads text; returns what stands after the block.
    pub(super) fn text<'t>(&mut self, text: &'t str, out: &mut Vec<OutputChunk>) -> &'t str {
        let mut rest = text;
        while !rest.is_empty() && self.state != State::Done {
            let (read, after) = match self.state {
                State::Tag | State::Closing { .. } => split_after(rest, '>'),
                State::Gap | State::StringValue | State::JsonValue | State::Done => (rest, ""),
            };
            self.note(read);
            self.held.push_str(read);
            match self.state {
                State::Gap => keep_last_two(&mut self.held),
                State::Tag => self.tag(out),
                State::StringValue => self.string_value(out),
                State::Closing { start } => self.closing(start, out),
                State::JsonValue | State::Done => {}
            }
            rest = after;
        }
        rest
    }

    /// Reads a marker, which begins a tag if `<` or `</` stands before it.
    pub(super) fn marker(&mut self, out: &mut Vec<OutputChunk>) {
        let closing = self.held.ends_with("</");
        if !closing && !self.held.ends_with('<') {
            // In a string, this is one more piece of it; elsewhere it joins what is held.
            self.text(MARKER, out);
            return;
        }
        let bracket = if closing { 2 } else { 1 };
        self.held.truncate(self.held.len() - bracket);
        let start = self.text.len().saturating_sub(bracket);
        self.note(MARKER);
        match self.state {
            // A closing tag without its `>`.
            State::Closing { start } => self.close(start, out),
            State::StringValue | State::JsonValue => self.end_value(out),
            State::Gap | State::Tag | State::Done => {}
        }
        self.held.clear();
        if self.state != State::Done {
            self.state = if closing { State::Closing { start } } else { State::Tag };
        }
    }

    /// The answer ends inside the block. `complete`: the model ended it, so that open calls are closed. Returns what
    /// was read instead of calls.
    pub(super) fn end(&mut self, complete: bool, out: &mut Vec<OutputChunk>) -> Option<String> {
        if complete && self.opened > 0 {
            self.end_value(out);
            self.end_call(out);
        }
        self.take_text_without_calls()
    }

    fn note(&mut self, text: &str) {
        if self.opened == 0 {
            self.text.push_str(text);
        }
    }

    fn tag(&mut self, out: &mut Vec<OutputChunk>) {
        if self.leaves_long_tag() {
            return;
        }
        if self.held.ends_with('>') {
            let tag = std::mem::take(&mut self.held);
            if let Some(name) = invoke_name(&tag) {
                self.begin_call(name, out);
            } else if let Some((key, state)) = parameter(&tag) {
                self.begin_value(key, state, out);
            } else if tag.starts_with(INVOKE) || tag.starts_with(PARAMETER) {
                // A `>` inside a name.
                self.held = tag;
            } else {
                self.state = State::Gap;
            }
        }
    }

    fn closing(&mut self, start: usize, out: &mut Vec<OutputChunk>) {
        if !self.leaves_long_tag() && self.held.ends_with('>') {
            self.held.pop();
            self.close(start, out);
            self.held.clear();
        }
    }

    fn leaves_long_tag(&mut self) -> bool {
        let long = self.held.len() > MAX_TAG_BYTES;
        if long {
            keep_last_two(&mut self.held);
            self.state = State::Gap;
        }
        long
    }

    /// Carries out the closing tag whose name is held. A parameter's has nothing left to do: its value ended at `</`.
    fn close(&mut self, start: usize, out: &mut Vec<OutputChunk>) {
        self.state = State::Gap;
        let name = self.held.trim();
        if name == "invoke" {
            self.complete_call(out);
        } else if name == "tool_calls" {
            self.complete_call(out);
            self.text.truncate(start);
            self.state = State::Done;
        }
    }

    fn begin_call(&mut self, name: &str, out: &mut Vec<OutputChunk>) {
        self.complete_call(out);
        if self.is_done() {
            return;
        }
        out.push(OutputChunk::ToolCallBegin);
        out.push(OutputChunk::ToolCallNamed { tool_name: name.to_owned() });
        self.call = Some(Call { has_parameters: false });
        self.opened += 1;
        self.text.clear();
        self.state = State::Gap;
    }

    /// A parameter without a call is skipped.
    fn begin_value(&mut self, key: &str, state: State, out: &mut Vec<OutputChunk>) {
        let Some(call) = &mut self.call else {
            self.state = State::Gap;
            return;
        };
        let before = if call.has_parameters { ", " } else { "{" };
        call.has_parameters = true;
        let quote = if state == State::StringValue { "\"" } else { "" };
        push_arguments(format!("{before}{}: {quote}", json_string(key)), out);
        self.state = state;
    }

    fn string_value(&mut self, out: &mut Vec<OutputChunk>) {
        let keep = if self.held.ends_with("</") { 2 } else { usize::from(self.held.ends_with('<')) };
        let tail = self.held.split_off(self.held.len() - keep);
        let value = std::mem::replace(&mut self.held, tail);
        push_arguments(inside_json_string(&value), out);
    }

    fn end_value(&mut self, out: &mut Vec<OutputChunk>) {
        let value = match self.state {
            State::StringValue => inside_json_string(&self.held) + "\"",
            State::JsonValue if serde_json::from_str::<Value>(&self.held).is_ok() => self.held.clone(),
            State::JsonValue => json_string(&self.held),
            State::Gap | State::Tag | State::Closing { .. } | State::Done => return,
        };
        push_arguments(value, out);
        self.held.clear();
        self.state = State::Gap;
    }

    fn complete_call(&mut self, out: &mut Vec<OutputChunk>) {
        self.closed += usize::from(self.end_call(out));
        if self.single_call && self.closed > 0 {
            self.state = State::Done;
        }
    }

    /// Closes the arguments of an open call. False when none is open.
    fn end_call(&mut self, out: &mut Vec<OutputChunk>) -> bool {
        let Some(call) = self.call.take() else { return false };
        push_arguments(if call.has_parameters { "}" } else { "{}" }.to_owned(), out);
        true
    }
}

/// The name in `invoke name="…">`.
fn invoke_name(tag: &str) -> Option<&str> {
    let name = tag.strip_prefix(INVOKE)?.strip_suffix("\">")?;
    (!name.is_empty() && !name.contains(['"', '\n'])).then_some(name)
}

/// Key and kind of value of `parameter name="…" string="…">`. The name is not escaped and may hold quotes. Without a
/// readable kind the value is taken for JSON, which becomes a string if it is not.
fn parameter(tag: &str) -> Option<(&str, State)> {
    let rest = tag.strip_prefix(PARAMETER)?;
    if let Some(key) = rest.strip_suffix("\" string=\"true\">") {
        return Some((key, State::StringValue));
    }
    if let Some(key) = rest.strip_suffix("\" string=\"false\">") {
        return Some((key, State::JsonValue));
    }
    let (key, kind) = rest.split_once('"')?;
    (kind == ">" || kind.starts_with(" string=")).then_some((key, State::JsonValue))
}

fn push_arguments(arguments: String, out: &mut Vec<OutputChunk>) {
    if !arguments.is_empty() {
        out.push(OutputChunk::ToolCallArgumentsDelta { arguments });
    }
}

fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

fn inside_json_string(text: &str) -> String {
    let quoted = json_string(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// `text` cut after the first `letter`.
fn split_after(text: &str, letter: char) -> (&str, &str) {
    text.split_at(text.find(letter).map_or(text.len(), |index| index + letter.len_utf8()))
}

/// All that a marker looks back on.
fn keep_last_two(text: &mut String) {
    if let Some((start, _)) = text.char_indices().rev().nth(1) {
        text.drain(..start);
    }
}
