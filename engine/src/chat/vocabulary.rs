//! What the ids of a tokenizer stand for on the way out.
//! In: a tokenizer. Out: the bytes of every id, and which ids mean something to the answer.
//! Never: decoding by text. A special token is known by its id; text that spells one is text.
//! Tokens are byte-level: one id can be a part of a character.
//! Source: GPT-2's byte-level alphabet; special spellings of DeepSeek V4's tokenizer.

use deepseek_recipe_core::special_tokens::SpecialToken;
use tokenizers::Tokenizer;

/// Bytes and meaning of every id.
pub(super) struct Vocabulary {
    /// Spellings of all ids, one after the other.
    bytes: Vec<u8>,
    /// Where the spelling of each id ends in `bytes`.
    ends: Vec<usize>,
    /// Members of the added vocabulary: never shown as text.
    special: Vec<bool>,
    eos: u32,
    think_end: u32,
    marker: u32,
}

/// What an id means in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Its spelling.
    Text,
    /// The end.
    Eos,
    /// `</think>`
    ThinkEnd,
    /// `｜DSML｜`, which stands in every tag of a tool call.
    Marker,
    /// Not shown: a special token without a place in answers, or an id that is no token.
    Nothing,
}

impl Vocabulary {
    /// Reads the tables.
    ///
    /// # Errors
    /// The spelling of a special token that the tokenizer lacks.
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, &'static str> {
        let id = |token: SpecialToken| {
            let spelling = token.default_str();
            tokenizer.get_added_vocabulary().get_vocab().get(spelling).copied().ok_or(spelling)
        };
        let (eos, think_end, marker) =
            (id(SpecialToken::Eos)?, id(SpecialToken::ThinkingEnd)?, id(SpecialToken::Dsml)?);
        let mut spellings: Vec<(u32, String)> =
            tokenizer.get_vocab(true).into_iter().map(|(spelling, id)| (id, spelling)).collect();
        spellings.sort_unstable();
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let alphabet = byte_alphabet();
        let mut vocabulary =
            Self { bytes: Vec::new(), ends: Vec::new(), special: Vec::new(), eos, think_end, marker };
        for (id, spelling) in spellings {
            let special = added.contains_key(&id);
            vocabulary.skip_to(id as usize);
            vocabulary.push(&spelling, special, &alphabet);
        }
        Ok(vocabulary)
    }

    pub(super) fn eos(&self) -> u32 {
        self.eos
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn meaning(&self, id: u32) -> Meaning {
        match self.special.get(id as usize) {
            Some(false) => Meaning::Text,
            _ if id == self.eos => Meaning::Eos,
            _ if id == self.think_end => Meaning::ThinkEnd,
            _ if id == self.marker => Meaning::Marker,
            _ => Meaning::Nothing,
        }
    }

    /// The bytes of an id, special or not; none for an id that is no token.
    pub(super) fn spelling(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// Ids that no token has stay empty and special.
    fn skip_to(&mut self, id: usize) {
        let missing = id.saturating_sub(self.ends.len());
        self.ends.extend(std::iter::repeat_n(self.bytes.len(), missing));
        self.special.extend(std::iter::repeat_n(true, missing));
    }

    fn push(&mut self, spelling: &str, special: bool, alphabet: &[Option<u8>]) {
        let byte = |letter: char| alphabet.get(letter as usize).copied().flatten();
        if special || !spelling.chars().all(|letter| byte(letter).is_some()) {
            self.bytes.extend_from_slice(spelling.as_bytes());
        } else {
            self.bytes.extend(spelling.chars().filter_map(byte));
        }
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.len()).field("eos", &self.eos).finish_non_exhaustive()
    }
}

/// The byte that each letter of a byte-level spelling stands for. Printable bytes stand for themselves, the other 68
/// are counted from U+0100.
fn byte_alphabet() -> Vec<Option<u8>> {
    let mut alphabet = vec![None; 0x100 + 68];
    let mut moved = 0x100;
    for byte in 0..=u8::MAX {
        let letter = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => usize::from(byte),
            _ => {
                moved += 1;
                moved - 1
            }
        };
        alphabet[letter] = Some(byte);
    }
    alphabet
}
