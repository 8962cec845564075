//! Prompt text to token ids.
//! In: text, and the ranges of it that are special tokens. Out: ids.
//! Never: a special token that a client spelled. Only the template's own ranges become special ids; the same text
//! elsewhere becomes ordinary tokens.
//! Runs on the calling thread: the tokenizer's own batch would queue behind the model in the shared thread pool.

use std::collections::BTreeMap;
use std::ops::Range;

use deepseek_recipe_encoding::TokenizerEncoder;
use tokenizers::{AddedVocabulary, Tokenizer};

/// A tokenizer taken apart: plain text on one side, special spellings on the other.
pub(super) struct PromptEncoder {
    plain: Tokenizer,
    special: BTreeMap<String, u32>,
}

impl PromptEncoder {
    /// # Errors
    /// The tokenizer's reason when its truncation cannot be switched off.
    pub(super) fn new(mut tokenizer: Tokenizer) -> Result<Self, String> {
        let special = tokenizer
            .get_added_vocabulary()
            .get_vocab()
            .iter()
            .map(|(spelling, &id)| (spelling.clone(), id))
            .collect();
        tokenizer.with_added_vocabulary(AddedVocabulary::new());
        tokenizer.with_padding(None).with_truncation(None).map_err(|error| error.to_string())?;
        Ok(Self { plain: tokenizer, special })
    }

    /// Ids of text in which nothing is special.
    ///
    /// # Errors
    /// The tokenizer's reason.
    pub(super) fn plain_ids(&self, text: &str) -> Result<Vec<u32>, String> {
        self.encode_ids(text, &[])
    }

    fn push_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        if !text.is_empty() {
            let encoding = self.plain.encode_fast(text, false).map_err(|error| error.to_string())?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(())
    }
}

impl std::fmt::Debug for PromptEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptEncoder").field("special", &self.special.len()).finish_non_exhaustive()
    }
}

impl TokenizerEncoder for PromptEncoder {
    /// A range whose spelling this tokenizer lacks stays text: the template marks grounding tokens of V4.1 in what
    /// clients wrote, and V4 has none.
    fn encode_ids(&self, text: &str, special_ranges: &[Range<usize>]) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        let mut start = 0;
        for range in special_ranges {
            if let Some(&id) = self.special.get(&text[range.clone()]) {
                self.push_plain(&text[start..range.start], &mut ids)?;
                ids.push(id);
                start = range.end;
            }
        }
        self.push_plain(&text[start..], &mut ids)?;
        Ok(ids)
    }
}
