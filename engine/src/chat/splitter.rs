//! Token ids to the parts of an answer: reasoning, content, tool calls.
//! In: ids, one at a time. Out: DeepSeek's `OutputChunk`s, which every protocol's response is made of.
//! Never: text lost or shown twice, whatever the model writes; a part that depends on how the ids came.
//! One pipeline, in this order: id, bytes, characters (`utf8`), channel, stop strings (`stops`, content only) or tool
//! calls (`tool_block`). `</think>`, the end of the answer and `｜DSML｜` are known by id only.
//! Content is given out exactly as written: what a client sends back becomes the same tokens again.
//! Source: DeepSeek V4's output format; its crate's parser loses text at damaged markup, so this is our own.

use std::sync::Arc;

use deepseek_recipe::stream::{CompletionUsage, FinishReason, OutputChunk};

use super::answer::End;
use super::convert::Start;
use super::vocabulary::{Meaning, Vocabulary};
use stops::Stops;
use tool_block::ToolBlock;
use utf8::Utf8;

mod stops;
mod tool_block;
mod utf8;

/// How the marker is spelled when it is no marker.
const MARKER: &str = "｜DSML｜";
/// What can follow `<｜DSML｜` in text and open calls. The second skips the block's own tag, as models sometimes do.
const OPENERS: [&str; 2] = ["tool_calls>", INVOKE];
const INVOKE: &str = "invoke name=\"";

/// What to look for in an answer.
#[derive(Debug, Clone)]
pub(super) struct SplitterOptions {
    pub(super) start: Start,
    /// Tool calls are calls, not text.
    pub(super) tools: bool,
    /// The answer ends with its first call.
    pub(super) single_call: bool,
    /// One tool was chosen by name, and its call ends with `stop`.
    pub(super) named: bool,
    pub(super) ignore_eos: bool,
    pub(super) stops: Vec<String>,
}

/// The reader of one answer.
#[derive(Debug)]
pub(super) struct Splitter {
    vocabulary: Arc<Vocabulary>,
    tools: bool,
    single_call: bool,
    named: bool,
    ignore_eos: bool,
    utf8: Utf8,
    place: Place,
    channel: Channel,
    /// In text: newlines and `<` that a marker may follow. In a tag: everything since those.
    held: String,
    stops: Stops,
    ended: Option<Ended>,
    calls: usize,
    tokens: usize,
    reasoning_tokens: usize,
}

#[derive(Debug)]
enum Place {
    Text,
    /// After `<｜DSML｜`; `tag` is where in `held` the tag's name begins.
    Opening {
        tag: usize,
    },
    Block(ToolBlock),
    /// After the last call.
    AfterBlock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Content,
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Eos,
    Stop(String),
    FirstCall,
}

impl Splitter {
    pub(super) fn new(vocabulary: Arc<Vocabulary>, options: SplitterOptions) -> Self {
        let SplitterOptions { start, tools, single_call, named, ignore_eos, stops } = options;
        let (place, channel) = match start {
            Start::Reasoning => (Place::Text, Channel::Reasoning),
            Start::Content => (Place::Text, Channel::Content),
            Start::ToolBlock => (Place::Block(ToolBlock::new(single_call)), Channel::Content),
        };
        Self {
            vocabulary,
            tools,
            single_call,
            named,
            ignore_eos,
            utf8: Utf8::default(),
            place,
            channel,
            held: String::new(),
            stops: Stops::new(stops),
            ended: None,
            calls: 0,
            tokens: 0,
            reasoning_tokens: 0,
        }
    }

    /// Reads the next token. After the end nothing is read any more.
    pub(super) fn push(&mut self, id: u32, out: &mut Vec<OutputChunk>) {
        if self.ended.is_some() {
            return;
        }
        self.tokens += 1;
        self.reasoning_tokens += usize::from(self.in_reasoning());
        let meaning = self.vocabulary.meaning(id);
        let mut text = String::new();
        if meaning == Meaning::Text {
            self.utf8.push(self.vocabulary.spelling(id), &mut text);
        } else {
            self.utf8.flush(&mut text);
        }
        self.text(&text, out);
        self.special(meaning, out);
    }

    /// Reads to the end: what was held back is given out, and the verdict.
    pub(super) fn finish(&mut self, end: End, out: &mut Vec<OutputChunk>) {
        let cut = self.ended.is_none() && end == End::Length;
        if self.reads_text() {
            self.flush(!cut, out);
        }
        let (finish_reason, stop_sequence) = match self.ended.take() {
            Some(Ended::Stop(stop)) => (FinishReason::StopSequence, Some(stop)),
            _ if cut => (FinishReason::Length, None),
            _ if self.calls > 0 && !self.named => (FinishReason::ToolCalls, None),
            _ => (FinishReason::Stop, None),
        };
        self.ended = Some(Ended::Eos);
        out.push(OutputChunk::Finish { finish_reason, stop_sequence, completion_usage: self.usage() });
    }

    /// A stop string, the end of the answer, or the only call asked for has been read.
    pub(super) fn ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn in_reasoning(&self) -> bool {
        self.channel == Channel::Reasoning && matches!(self.place, Place::Text | Place::Opening { .. })
    }

    /// Tokens read so far, those of markup and the end included.
    pub(super) fn usage(&self) -> CompletionUsage {
        CompletionUsage { completion_tokens: self.tokens, reasoning_tokens: Some(self.reasoning_tokens) }
    }

    /// False once text that is read cannot be shown any more.
    fn reads_text(&self) -> bool {
        !matches!(self.ended, Some(Ended::Stop(_) | Ended::FirstCall))
    }

    fn text(&mut self, text: &str, out: &mut Vec<OutputChunk>) {
        let mut rest = text;
        while !rest.is_empty() && self.reads_text() {
            rest = match &mut self.place {
                Place::Text => {
                    self.channel_text(rest, out);
                    ""
                }
                Place::Opening { tag } => {
                    let tag = *tag;
                    self.opening(rest, tag, out)
                }
                Place::Block(block) => {
                    let rest = block.text(rest, out);
                    self.after_block_step(out);
                    rest
                }
                Place::AfterBlock => "",
            };
        }
    }

    fn special(&mut self, meaning: Meaning, out: &mut Vec<OutputChunk>) {
        match meaning {
            Meaning::Eos if !self.ignore_eos && self.reads_text() => self.ended = Some(Ended::Eos),
            Meaning::ThinkEnd if self.in_reasoning() => {
                self.place = Place::Text;
                self.release(out);
                self.channel = Channel::Content;
            }
            Meaning::Marker => self.marker(out),
            Meaning::Text | Meaning::Eos | Meaning::ThinkEnd | Meaning::Nothing => {}
        }
    }

    fn marker(&mut self, out: &mut Vec<OutputChunk>) {
        match &mut self.place {
            Place::Text if self.tools && self.held.ends_with('<') => {
                self.held.push_str(MARKER);
                self.place = Place::Opening { tag: self.held.len() };
            }
            Place::Block(block) => {
                block.marker(out);
                self.after_block_step(out);
            }
            Place::Text | Place::Opening { .. } | Place::AfterBlock => self.text(MARKER, out),
        }
    }

    /// Text of the channel: all of it goes out but what a marker may follow.
    fn channel_text(&mut self, text: &str, out: &mut Vec<OutputChunk>) {
        self.held.push_str(text);
        let keep = if self.tools { before_marker(&self.held) } else { 0 };
        let tail = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, tail);
        self.emit(text, out);
    }

    /// Reads the name of a tag that may open calls; text again as soon as it cannot. Returns what is left to read.
    fn opening<'t>(&mut self, text: &'t str, tag: usize, out: &mut Vec<OutputChunk>) -> &'t str {
        for (index, letter) in text.char_indices() {
            self.held.push(letter);
            let name = &self.held[tag..];
            let rest = &text[index + letter.len_utf8()..];
            if name == OPENERS[0] {
                self.open_block(ToolBlock::new(self.single_call), out);
                return rest;
            }
            if name == INVOKE {
                self.open_block(ToolBlock::in_tag(INVOKE, self.single_call), out);
                return rest;
            }
            if !OPENERS.iter().any(|opener| opener.starts_with(name)) {
                self.place = Place::Text;
                let text = std::mem::take(&mut self.held);
                self.channel_text(&text, out);
                return rest;
            }
        }
        ""
    }

    /// The newlines before the block belong to it.
    fn open_block(&mut self, block: ToolBlock, out: &mut Vec<OutputChunk>) {
        self.held.clear();
        self.flush_stops(out);
        self.place = Place::Block(block);
    }

    /// Looks whether the block, or with it the answer, is over.
    fn after_block_step(&mut self, out: &mut Vec<OutputChunk>) {
        let Place::Block(block) = &mut self.place else { return };
        self.calls = block.closed_calls();
        if self.single_call && self.calls > 0 {
            self.ended = Some(Ended::FirstCall);
        } else if block.is_done() {
            match block.take_text_without_calls() {
                Some(text) => self.back_to_content(&text, out),
                None => self.place = Place::AfterBlock,
            }
        }
    }

    /// A block without a call was no block.
    fn back_to_content(&mut self, text: &str, out: &mut Vec<OutputChunk>) {
        self.place = Place::Text;
        self.channel = Channel::Content;
        self.channel_text(text, out);
    }

    /// `complete`: the model ended the answer itself, so a call that it left open gets closed.
    fn flush(&mut self, complete: bool, out: &mut Vec<OutputChunk>) {
        let mut text = String::new();
        self.utf8.flush(&mut text);
        self.text(&text, out);
        if let Place::Block(block) = &mut self.place
            && let Some(text) = block.end(complete, out)
        {
            self.back_to_content(&text, out);
        }
        // A tag that did not come to its end is text.
        self.release(out);
        if self.reads_text() {
            self.flush_stops(out);
        }
    }

    /// Gives out what was held back for a marker.
    fn release(&mut self, out: &mut Vec<OutputChunk>) {
        let text = std::mem::take(&mut self.held);
        self.emit(text, out);
    }

    fn flush_stops(&mut self, out: &mut Vec<OutputChunk>) {
        push_content(self.stops.flush(), out);
    }

    fn emit(&mut self, text: String, out: &mut Vec<OutputChunk>) {
        if text.is_empty() {
            return;
        }
        match self.channel {
            Channel::Reasoning => out.push(OutputChunk::Reasoning { content: text, logprobs: None }),
            Channel::Content => {
                let (text, stop) = self.stops.push(text);
                push_content(text, out);
                if let Some(stop) = stop {
                    self.ended = Some(Ended::Stop(stop));
                }
            }
        }
    }
}

fn push_content(content: String, out: &mut Vec<OutputChunk>) {
    if !content.is_empty() {
        out.push(OutputChunk::Content { content, logprobs: None });
    }
}

/// Length of the end of `text` that belongs to a tool block if a marker follows: up to two newlines and `<`.
fn before_marker(text: &str) -> usize {
    let bytes = text.as_bytes();
    let bracket = usize::from(bytes.last() == Some(&b'<'));
    let newlines =
        bytes[..bytes.len() - bracket].iter().rev().take(2).take_while(|&&byte| byte == b'\n').count();
    newlines + bracket
}
