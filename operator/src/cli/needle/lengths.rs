//! How many words make a prompt of so many tokens, as one server counts them.
//! In: what the server counted for texts of known size. Out: words for a wanted number of tokens.
//! Never: a tokenizer.
//! Tokens are a fixed part (template, question, facts) and a part that grows with the words: two texts tell both, and
//! every further answer corrects the second.

/// A length is met when it is so near.
const TOLERANCE: f64 = 0.05;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    fixed_tokens: f64,
    tokens_per_word: f64,
}

impl Scale {
    /// From two texts, as (words, tokens); `None` if tokens do not grow with words.
    pub(super) fn from_two(small: (usize, u64), large: (usize, u64)) -> Option<Self> {
        let (small_words, large_words) = (float(small.0 as u64), float(large.0 as u64));
        let tokens_per_word = (float(large.1) - float(small.1)) / (large_words - small_words);
        let fixed_tokens = float(small.1) - tokens_per_word * small_words;
        (tokens_per_word.is_finite() && tokens_per_word > 0.0)
            .then_some(Self { fixed_tokens, tokens_per_word })
    }

    /// Words for a prompt of `tokens`; `None` when the fixed part alone is longer.
    pub(super) fn words_for(&self, tokens: u32) -> Option<usize> {
        let words = (f64::from(tokens) - self.fixed_tokens) / self.tokens_per_word;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be at least one"
        )]
        (words >= 1.0).then_some(words as usize)
    }

    /// Tokens of a prompt of `words`.
    pub(super) fn tokens_for(&self, words: usize) -> u64 {
        let tokens = self.fixed_tokens + self.tokens_per_word * float(words as u64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
        let tokens = tokens.ceil() as u64;
        tokens
    }

    /// A text of `words` had `tokens`: the growing part was that of this text.
    pub(super) fn correct(&mut self, words: usize, tokens: u64) {
        let tokens_per_word = (float(tokens) - self.fixed_tokens) / float(words as u64);
        if tokens_per_word.is_finite() && tokens_per_word > 0.0 {
            self.tokens_per_word = tokens_per_word;
        }
    }
}

/// Whether a prompt of `counted` tokens is one of `asked` tokens.
pub(super) fn is_met(asked: u32, counted: u64) -> bool {
    (float(counted) - f64::from(asked)).abs() <= TOLERANCE * f64::from(asked)
}

#[expect(clippy::cast_precision_loss, reason = "word and token counts are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_texts_tell_the_scale_and_a_third_corrects_it() {
        let mut scale = Scale::from_two((100, 170), (300, 430)).unwrap();
        assert_eq!(scale.words_for(1340), Some(1000));
        scale.correct(1000, 1540);
        assert_eq!(scale.words_for(1540), Some(1000));
        assert_eq!(scale.words_for(40), None);
    }

    #[test]
    fn tokens_that_do_not_grow_make_no_scale() {
        for (small, large) in [((100, 10), (300, 10)), ((100, 20), (300, 10)), ((100, 10), (100, 20))] {
            assert_eq!(Scale::from_two(small, large), None);
        }
    }

    #[test]
    fn a_length_is_met_within_five_percent() {
        assert!(is_met(1000, 950) && is_met(1000, 1050));
        assert!(!is_met(1000, 949) && !is_met(1000, 1051) && !is_met(1000, u64::MAX));
    }
}
