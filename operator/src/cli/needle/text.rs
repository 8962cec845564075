//! Builds a text with one fact to find and others that distract, and judges an answer.
//! In: a seed, a number of words, a depth. Out: a [`Haystack`].
//! Never: the same code twice in one text; randomness other than the seed's.
//! The wording is that of the small test model's training (which knows no other) and plain English for any model.

use super::Depth;

const THINGS: [&str; 40] = [
    "harbor", "lantern", "compass", "violin", "anchor", "kettle", "ladder", "mirror", "saddle", "whistle",
    "barrel", "bridge", "candle", "castle", "helmet", "wallet", "rocket", "basket", "camera", "engine",
    "hammer", "jacket", "magnet", "needle", "pillow", "tunnel", "wagon", "tower", "statue", "shovel",
    "piano", "guitar", "crown", "chest", "canoe", "cabin", "beacon", "banjo", "arrow", "vault",
];

const NOUNS: [&str; 32] = [
    "cloud", "village", "teacher", "winter", "horse", "street", "morning", "dog", "storm", "rabbit", "baker",
    "crow", "doctor", "sailor", "summer", "fox", "mountain", "farmer", "market", "bear", "neighbor", "river",
    "field", "cat", "child", "forest", "painter", "valley", "garden", "evening", "stove", "letter",
];

const ADJECTIVES: [&str; 20] = [
    "wide", "gentle", "slow", "cold", "empty", "sharp", "pale", "narrow", "tall", "old", "warm", "quick",
    "heavy", "plain", "soft", "green", "bright", "quiet", "busy", "small",
];

const DOES: [&str; 8] = ["stayed", "walked", "slept", "worked", "laughed", "sang", "rested", "waited"];

const DOES_TO: [&str; 12] = [
    "called", "helped", "passed", "left", "liked", "feared", "found", "crossed", "met", "watched",
    "followed", "forgot",
];

const HOW: [&str; 8] = ["often", "today", "slowly", "twice", "again", "quietly", "together", "later"];

const WHERE: [&str; 6] = ["behind", "beside", "under", "above", "beyond", "near"];

/// Distracting facts: one for so many words, within these bounds.
const WORDS_PER_DISTRACTOR: usize = 150;
const DISTRACTORS: std::ops::RangeInclusive<usize> = 3..=12;

/// Sentences from the very beginning or end within which a fact still stands at the start or the end.
const EDGE_SENTENCES: usize = 3;

/// Words of filler below which start, middle and end are the same place.
pub(super) const FEWEST_WORDS: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Haystack {
    /// The text, ending with the question.
    pub(super) prompt: String,
    /// The code that is asked for.
    pub(super) expected: String,
    /// The codes of other things in the text.
    distractors: Vec<String>,
}

impl Haystack {
    /// A text of about `words` words of filler; the facts come on top.
    pub(super) fn build(seed: u64, words: usize, depth: Depth) -> Self {
        let mut draw = Draw(seed);
        let mut sentences = filler(&mut draw, words);
        let distractors = (words / WORDS_PER_DISTRACTOR).clamp(*DISTRACTORS.start(), *DISTRACTORS.end());
        let mut facts = facts(&mut draw, distractors + 1);
        let (thing, expected) = facts.swap_remove(0);
        let place = match depth {
            Depth::Start => draw.below(EDGE_SENTENCES),
            Depth::Middle => sentences.len() / 2,
            Depth::End => sentences.len().saturating_sub(draw.below(EDGE_SENTENCES)),
        };
        // The distractors' places are drawn first: putting them in moves nothing before the fact's own place but them.
        let mut placed: Vec<(usize, String)> =
            facts.iter().map(|(thing, code)| (draw.below(sentences.len() + 1), fact(thing, code))).collect();
        placed.push((place.min(sentences.len()), fact(thing, &expected)));
        placed.sort();
        for (place, sentence) in placed.into_iter().rev() {
            sentences.insert(place, sentence);
        }
        sentences.push(format!("What is the code for {thing}?"));
        let distractors = facts.into_iter().map(|(_, code)| code).collect();
        Self { prompt: sentences.join(" "), expected, distractors }
    }

    /// Whether `answer` names the code that was asked for, and none of another thing.
    pub(super) fn is_right(&self, answer: &str) -> bool {
        let codes: Vec<&str> =
            answer.split(|c: char| !c.is_ascii_digit()).filter(|run| run.len() == 4).collect();
        codes.contains(&self.expected.as_str())
            && !codes.iter().any(|code| self.distractors.iter().any(|other| other == code))
    }
}

fn fact(thing: &str, code: &str) -> String {
    format!("The code for {thing} is {code}.")
}

/// Things with their codes, all different.
fn facts(draw: &mut Draw, count: usize) -> Vec<(&'static str, String)> {
    let mut things = THINGS.to_vec();
    let mut codes: Vec<usize> = Vec::with_capacity(count);
    while codes.len() < count {
        let code = draw.below(10_000);
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    let mut thing = || things.swap_remove(draw.below(things.len()));
    codes.into_iter().map(|code| (thing(), format!("{code:04}"))).collect()
}

fn filler(draw: &mut Draw, words: usize) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut written = 0;
    while written < words {
        let sentence = sentence(draw);
        written += sentence.split(' ').count();
        sentences.push(sentence);
    }
    sentences
}

fn sentence(draw: &mut Draw) -> String {
    let form = draw.below(6);
    let mut noun = || draw.of(&NOUNS);
    let (first, second, third) = (noun(), noun(), noun());
    let (adjective, other) = (draw.of(&ADJECTIVES), draw.of(&ADJECTIVES));
    let (does, does_to, place) = (draw.of(&DOES), draw.of(&DOES_TO), draw.of(&WHERE));
    match form {
        0 => format!("The {first} was {adjective} and {other}."),
        1 => format!("The {first} {does} {}.", draw.of(&HOW)),
        2 => format!("The {adjective} {first} {does_to} the {second}."),
        3 => format!("A {first} {does} {place} the {adjective} {second}."),
        4 => format!("The {first} and the {second} {does_to} a {adjective} {third}."),
        _ => format!("A {adjective} {first} {does_to} the {second} {place} the {third}."),
    }
}

/// SplitMix64: small, and the same on every machine.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
#[derive(Debug)]
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is small: the bias of the remainder is far below what could matter here.
    fn below(&mut self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// A seed for each question: neighbours share nothing.
pub(super) fn seed_of(seed: u64, length: u32, depth: Depth, trial: u32, attempt: usize) -> u64 {
    let mut draw = Draw(seed);
    for part in [u64::from(length), depth as u64, u64::from(trial), attempt as u64] {
        let mixed = draw.next() ^ part;
        draw = Draw(mixed);
    }
    draw.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(haystack: &Haystack) -> (usize, usize) {
        let sentences: Vec<&str> = haystack.prompt.split(". ").collect();
        let place = sentences.iter().position(|s| s.contains(&haystack.expected)).unwrap();
        (place, sentences.len())
    }

    #[test]
    fn a_text_holds_its_fact_once_and_asks_for_it() {
        for seed in 0..50 {
            let haystack = Haystack::build(seed, 800, Depth::Middle);
            assert_eq!(haystack.prompt.matches(&haystack.expected).count(), 1);
            let thing = haystack.prompt.rsplit("What is the code for ").next().unwrap().trim_end_matches('?');
            let fact = format!("The code for {thing} is {}.", haystack.expected);
            assert_eq!(haystack.prompt.matches(&format!("for {thing}")).count(), 2, "fact and question");
            assert!(haystack.prompt.contains(&fact), "{fact}");
            assert_eq!(haystack.distractors.len(), 5);
            for code in &haystack.distractors {
                assert_eq!(haystack.prompt.matches(&format!(" is {code}.")).count(), 1);
            }
        }
    }

    #[test]
    fn the_fact_stands_where_it_was_asked_to() {
        for seed in 0..50 {
            let (place, all) = positions(&Haystack::build(seed, 3000, Depth::Start));
            assert!(place <= EDGE_SENTENCES + 12 && place * 20 < all, "{place} of {all}");
            let (place, all) = positions(&Haystack::build(seed, 3000, Depth::Middle));
            assert!(place.abs_diff(all / 2) < all / 20, "{place} of {all}");
            let (place, all) = positions(&Haystack::build(seed, 3000, Depth::End));
            assert!((all - place) * 20 < all, "{place} of {all}");
        }
    }

    #[test]
    fn a_seed_makes_the_same_text_and_another_seed_another() {
        let build = |seed| Haystack::build(seed, 500, Depth::End);
        assert_eq!(build(7), build(7));
        assert_ne!(build(7).prompt, build(8).prompt);
        let seeds: std::collections::BTreeSet<u64> =
            (0..100).map(|n| seed_of(1, 1000, Depth::Start, n, 0)).collect();
        assert_eq!(seeds.len(), 100);
    }

    #[test]
    fn the_number_of_words_is_met_within_a_sentence() {
        for words in [FEWEST_WORDS, 100, 1000, 10_000] {
            let haystack = Haystack::build(3, words, Depth::Middle);
            let facts = haystack.distractors.len() + 2;
            let counted = haystack.prompt.split(' ').count() - 6 * facts;
            assert!(counted.abs_diff(words) <= 10, "{counted} for {words}");
        }
    }

    #[test]
    fn an_answer_is_right_if_it_names_this_code_and_no_other() {
        let haystack = Haystack {
            prompt: String::new(),
            expected: "0482".to_owned(),
            distractors: vec!["1111".to_owned()],
        };
        for right in ["0482", "The code for harbor is 0482.", "**0482**", "Code: 0482 (from 2024)", "0482\n"]
        {
            assert!(haystack.is_right(right), "{right}");
        }
        for wrong in ["", "482", "10482", "04820", "1111", "0482 or 1111", "I do not know."] {
            assert!(!haystack.is_right(wrong), "{wrong}");
        }
    }
}
