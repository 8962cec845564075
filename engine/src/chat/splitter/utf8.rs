//! Bytes to characters, when characters come in pieces.
//! In: the bytes of one token after the other. Out: whole characters.
//! Never: more than three bytes held back. Bytes that can no longer become a character are replaced by U+FFFD, as
//! `String::from_utf8_lossy` replaces them in the whole text.

/// The beginning of a character whose rest has not come yet.
#[derive(Debug, Default)]
pub(super) struct Utf8 {
    held: Vec<u8>,
}

impl Utf8 {
    /// Adds bytes; what is complete is appended to `text`.
    pub(super) fn push(&mut self, bytes: &[u8], text: &mut String) {
        if self.held.is_empty() {
            self.decode(bytes, text);
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(bytes);
            self.decode(&joined, text);
        }
    }

    /// The text ends here: a character that was not completed becomes U+FFFD.
    pub(super) fn flush(&mut self, text: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn decode(&mut self, bytes: &[u8], text: &mut String) {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let may_go_on = chunks.peek().is_none()
                && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if may_go_on {
                self.held.extend_from_slice(invalid);
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}
