//! Stop strings in text that comes in pieces.
//! In: text. Out: text that no stop string can begin in any more, or the stop string that was completed.
//! Never: a byte of a stop string given out; more than the longest stop string held back.
//! The first one completed wins, the longest of those completed by the same byte. One Knuth-Morris-Pratt automaton
//! per stop string: a byte costs the same however the text repeats itself.

/// All stop strings of one answer.
#[derive(Debug)]
pub(super) struct Stops {
    patterns: Vec<Pattern>,
    /// The end of the text, in which a stop string may have begun.
    held: String,
}

#[derive(Debug)]
struct Pattern {
    text: String,
    /// For every length of a matched beginning: the longest proper ending of it that is a beginning too.
    fallback: Vec<usize>,
    matched: usize,
}

impl Stops {
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { patterns: stops.into_iter().map(Pattern::new).collect(), held: String::new() }
    }

    /// Adds text. What is returned first can be shown; a stop string ends the text before itself.
    pub(super) fn push(&mut self, text: String) -> (String, Option<String>) {
        if self.patterns.is_empty() {
            return (text, None);
        }
        let known = self.held.len();
        self.held.push_str(&text);
        for (index, byte) in text.bytes().enumerate() {
            if let Some(stop) = self.step(byte) {
                let mut shown = std::mem::take(&mut self.held);
                shown.truncate(known + index + 1 - stop.len());
                return (shown, Some(stop));
            }
        }
        // A beginning of a stop string begins with a whole character, so the cut is between characters.
        let keep = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, tail), None)
    }

    /// The text ends or changes its kind here: nothing held back is a stop string.
    pub(super) fn flush(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    fn step(&mut self, byte: u8) -> Option<String> {
        let mut longest: Option<&str> = None;
        for pattern in &mut self.patterns {
            if pattern.step(byte) && longest.is_none_or(|other| other.len() < pattern.text.len()) {
                longest = Some(&pattern.text);
            }
        }
        longest.map(str::to_owned)
    }
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut matched = 0;
        for index in 1..bytes.len() {
            while matched > 0 && bytes[index] != bytes[matched] {
                matched = fallback[matched - 1];
            }
            matched += usize::from(bytes[index] == bytes[matched]);
            fallback[index] = matched;
        }
        Self { text, fallback, matched: 0 }
    }

    /// True when `byte` completes the stop string, after which the text ends.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        let complete = self.matched == bytes.len();
        if complete {
            self.matched = 0;
        }
        complete
    }
}
