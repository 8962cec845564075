//! Where a stream of server-sent events stands: what its last line was and whether the event is closed.
//! In: the bytes as they pass, cut anywhere. Out: whether the stream is complete, or what to append when it breaks.
//! Never: a copy of an event, a search inside a line: text that talks about the end marker is text.

use bytes::{Bytes, BytesMut};

use crate::ApiError;

/// A whole line that is this ends the stream.
const DONE: &[u8] = b"data: [DONE]";
/// A line that begins so already tells the client of a failure.
const ERROR: &[u8] = b"data: {\"error\"";

/// As much of a line's beginning as is needed to recognise both; one more, to see that [`DONE`] goes on.
const HEAD_BYTES: usize = 16;

#[derive(Debug, Clone, Default)]
pub(super) struct SseTail {
    /// The beginning of the last line that is not empty.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Line ends behind it: 0 = within the line, 1 = within the event, 2 = the event is closed.
    line_ends: usize,
}

impl SseTail {
    pub(super) fn pass(&mut self, bytes: &[u8]) {
        let text_end = bytes.iter().rposition(|&byte| !is_line_end(byte)).map_or(0, |last| last + 1);
        let (text, ends) = bytes.split_at(text_end);
        let new_ends = ends.iter().filter(|&&byte| byte == b'\n').count();
        if text.is_empty() {
            self.line_ends = self.line_ends.saturating_add(new_ends);
            return;
        }
        let line_start = text.iter().rposition(|&byte| is_line_end(byte)).map(|last| last + 1);
        // A line that began in earlier bytes goes on, unless it was ended there or here.
        let goes_on = line_start.is_none() && self.line_ends == 0;
        if !goes_on {
            self.head_bytes = 0;
        }
        let line = &text[line_start.unwrap_or(0)..];
        let taken = line.len().min(HEAD_BYTES - self.head_bytes);
        self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&line[..taken]);
        self.head_bytes += taken;
        self.line_ends = new_ends;
    }

    /// The end marker has passed: nothing is missing.
    pub(super) fn is_complete(&self) -> bool {
        self.line() == DONE && self.line_ends >= 1
    }

    /// The bytes that tell the client of `error`, beginning with the line ends that the last event lacks; nothing if
    /// the decode has told already.
    pub(super) fn closing(&self, error: &ApiError) -> Bytes {
        let missing: &[u8] = match (self.head_bytes, self.line_ends) {
            (0, _) | (_, 2..) => b"",
            (_, 1) => b"\n",
            (_, 0) => b"\n\n",
        };
        let mut bytes = BytesMut::from(missing);
        if !(self.line().starts_with(ERROR) && self.line_ends >= 1) {
            bytes.extend_from_slice(&error.event());
        }
        bytes.freeze()
    }

    fn line(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }
}

fn is_line_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(pieces: &[&str]) -> SseTail {
        let mut tail = SseTail::default();
        pieces.iter().for_each(|piece| tail.pass(piece.as_bytes()));
        tail
    }

    /// S09
    #[test]
    fn only_a_whole_line_equal_to_the_marker_ends_the_stream() {
        for complete in [&["data: [DONE]\n\n"][..], &["data: {}\n\nda", "ta: [DO", "NE]", "\n", "\n"]] {
            assert!(after(complete).is_complete(), "{complete:?}");
        }
        let incomplete = [
            "data: {\"content\":\"data: [DONE]\"}\n\n",
            "data: [DONE]",
            "data: [DONE] \n\n",
            "xdata: [DONE]\n\n",
            "data: [DONE]\n\ndata: {}\n\n",
            "",
        ];
        for text in incomplete {
            assert!(!after(&[text]).is_complete(), "{text:?}");
        }
    }

    /// S08
    #[test]
    fn an_error_event_stands_alone_whatever_came_before() {
        let error = ApiError::bad_gateway("it said \"no\"\nand left");
        let cases = [("", ""), ("data: {}\n\n", ""), ("data: {}\n", "\n"), ("data: {\"a", "\n\n")];
        for (before, missing) in cases {
            let closing = String::from_utf8(after(&[before]).closing(&error).to_vec()).unwrap();
            let event = closing.strip_prefix(missing).unwrap();
            let data = event.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
            assert!(!data.contains('\n'));
            let value: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(value["error"]["code"], 502);
            assert_eq!(value["error"]["message"], "it said \"no\"\nand left");
        }
    }

    #[test]
    fn the_decodes_own_error_event_is_not_repeated() {
        let tail = after(&["data: {}\n\ndata: {\"error\": {\"code\": 500}}\n\n"]);
        assert!(tail.closing(&ApiError::bad_gateway("x")).is_empty());
    }

    proptest! {
        #[test]
        fn the_state_does_not_depend_on_where_the_bytes_are_cut(
            lines in prop::collection::vec(
                prop::sample::select(vec!["data: [DONE]", "", "data: {}", "data: {\"error\":1}", ": ping", "x"]), 0..8),
            ended in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut text = lines.join("\n");
            if ended { text.push('\n'); }
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            places.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for place in places {
                pieces.push(&text[from..place]);
                from = place;
            }
            pieces.push(&text[from..]);
            let (whole, cut) = (after(&[&text]), after(&pieces));
            let error = ApiError::internal("x");
            prop_assert_eq!(whole.is_complete(), cut.is_complete());
            prop_assert_eq!(whole.closing(&error), cut.closing(&error));
        }
    }
}
