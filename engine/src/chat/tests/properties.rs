//! What holds for every output, however damaged and however it is cut into tokens.

use proptest::prelude::*;

use super::*;

/// Pieces that outputs are made of: text of all kinds, and markup that may or may not fit together.
const PIECES: [&str; 36] = [
    "a",
    "The code",
    " ",
    "\n",
    "\n\n",
    "\n\n\n",
    "<",
    "</",
    ">",
    "\"",
    "\\",
    "é",
    "한국",
    "👩‍👩‍👧",
    "｜",
    "DSML",
    "STOP",
    "STO",
    "1",
    "{\"x\": [1]}",
    "null",
    "｜DSML｜",
    "<｜DSML｜",
    "</｜DSML｜",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"f\">",
    "<｜DSML｜invoke name=\"",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "<｜DSML｜parameter name=\"b\" string=\"false\">",
    "<｜DSML｜parameter name=\"c\">",
    "</｜DSML｜parameter>",
    "string=\"true\">",
    "</think>",
    "<｜end▁of▁sentence｜>",
];

const CALLS: [&str; 21] = [
    "Let me",
    " look.",
    "</think>",
    "\n\n",
    "<｜DSML｜tool_calls>",
    "\n",
    "<｜DSML｜invoke name=\"f\">",
    "\n",
    "<｜DSML｜parameter name=\"a b\" string=\"true\">",
    "say \"hi\" <b>",
    "</｜DSML｜parameter>",
    "\n",
    "<｜DSML｜parameter name=\"n\" string=\"false\">",
    "{\"x\": [1, \"\\n\"]}",
    "</｜DSML｜parameter>",
    "\n",
    "</｜DSML｜invoke>",
    "\n",
    "<｜DSML｜invoke name=\"g\">",
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
];

#[derive(Debug, Clone)]
struct Case {
    text: String,
    body: Value,
    end: End,
    cuts: Vec<bool>,
}

fn request_body() -> impl Strategy<Value = Value> {
    let choice = prop::sample::select(vec!["auto", "auto", "required", "none"]);
    (any::<[bool; 4]>(), choice).prop_map(|([thinking, tools, stop, single], choice)| {
        let forced = tools && choice == "required";
        let thinking = if thinking && !forced { "enabled" } else { "disabled" };
        let mut body = body(json!({"thinking": {"type": thinking}, "logprobs": true}));
        if tools {
            body["tools"] = json!([{"function": {"name": "f"}}, {"function": {"name": "g"}}]);
            body["tool_choice"] = json!(choice);
            body["parallel_tool_calls"] = json!(!single);
        }
        if stop {
            body["stop"] = json!(["STOP", "\n\n", "한국!"]);
        }
        body
    })
}

fn random_text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..24).prop_map(|pieces| pieces.concat())
}

/// A good output with a few pieces deleted, doubled, cut or replaced.
fn damaged_text() -> impl Strategy<Value = String> {
    let damage = (
        any::<prop::sample::Index>(),
        0u8..4,
        prop::sample::select(PIECES.to_vec()),
        any::<prop::sample::Index>(),
    );
    prop::collection::vec(damage, 0..3).prop_map(|damages| {
        let mut pieces: Vec<String> = CALLS.iter().map(|piece| (*piece).to_owned()).collect();
        for (at, kind, other, cut) in damages {
            let at = at.index(pieces.len());
            match kind {
                0 => drop(pieces.remove(at)),
                1 => pieces.insert(at, other.to_owned()),
                2 => pieces[at] = other.to_owned(),
                _ => {
                    let keep = cut.index(pieces[at].chars().count() + 1);
                    pieces[at] = pieces[at].chars().take(keep).collect();
                }
            }
        }
        pieces.concat()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let text = prop_oneof![random_text(), damaged_text()];
    let end = prop_oneof![3 => Just(End::Stop), 1 => Just(End::Length)];
    (text, request_body(), end, prop::collection::vec(any::<bool>(), 1..200)).prop_map(
        |(text, body, end, cuts)| {
            let eos = if end == End::Stop { EOS } else { "" };
            Case { text: format!("{text}{eos}"), body, end, cuts }
        },
    )
}

/// Tokens of bytes or of words, as `cuts` says, special tokens as they are.
fn tokens(text: &str, cuts: &[bool]) -> Vec<u32> {
    output(text)
        .into_iter()
        .zip(cuts.iter().cycle())
        .flat_map(|(id, &by_bytes)| match chat().vocabulary.meaning(id) {
            vocabulary::Meaning::Text if by_bytes => byte_ids(chat().vocabulary.spelling(id)),
            _ => vec![id],
        })
        .collect()
}

/// Without what depends on the number of tokens.
fn meaning(told: Told) -> Told {
    Told { logprobs: 0, completion_tokens: None, ..told }
}

proptest! {
    #![proptest_config(at_least(1_000))]

    #[test]
    fn an_answer_is_the_same_streamed_and_whole_and_for_every_cut_into_tokens(case in case()) {
        let Case { text, body, end, cuts } = case;
        let by_words = told(&body, &output(&text), end);
        let by_bytes = told(&body, &output_by_bytes(&text), end);
        let mixed = told(&body, &tokens(&text, &cuts), end);
        for told in [&by_words, &by_bytes, &mixed] {
            prop_assert_eq!(Some(told.logprobs as u64), told.completion_tokens, "one entry for every token");
        }
        let by_words = meaning(by_words);
        prop_assert_eq!(&by_words, &meaning(by_bytes));
        prop_assert_eq!(&by_words, &meaning(mixed));
        if by_words.finish == "tool_calls" {
            prop_assert!(!by_words.calls.is_empty());
        }
        if by_words.finish != "length" {
            for (name, arguments) in &by_words.calls {
                prop_assert!(!name.is_empty());
                let arguments = serde_json::from_str::<Value>(arguments);
                prop_assert!(arguments.as_ref().is_ok_and(Value::is_object), "{:?} of {:?}", arguments, text);
            }
        }
    }

    #[test]
    fn no_text_is_lost_or_changed_when_there_are_no_calls(text in random_text(), body in request_body()) {
        let mut body = body;
        for calls in ["tools", "tool_choice", "stop"] {
            body.as_object_mut().unwrap().remove(calls);
        }
        let text = text.replace(EOS, "").replace(THINK_END, "");
        let told = told(&body, &output(&format!("{text}{EOS}")), End::Stop);
        prop_assert_eq!(told.reasoning + &told.content, text);
    }
}

#[test]
fn the_cost_of_a_token_does_not_grow_with_the_answer() {
    const TOKENS: usize = 200_000;
    let tools = json!([{"function": {"name": "f"}}]);
    let open = format!("<{DSML}tool_calls>\n<{DSML}invoke name=\"f\">");
    let string = format!("{open}<{DSML}parameter name=\"a\" string=\"true\">");
    let raw = format!("{open}<{DSML}parameter name=\"a\" string=\"false\">[");
    for (what, more, start, repeated) in [
        ("text", json!({}), "", " code"),
        ("text and tools", json!({"tools": tools}), "", "\n<"),
        ("text and 16 stops", json!({"stop": vec![format!("{}b", "a".repeat(500)); 16]}), "", "a"),
        ("reasoning", json!({"thinking": {"type": "enabled"}}), "", "The code"),
        ("a string", json!({"tools": tools}), &string, "\"</"),
        ("JSON", json!({"tools": tools}), &raw, "1,"),
        ("a tag", json!({"tools": tools}), &format!("<{DSML}tool_calls>\n<{DSML}invoke name=\"f"), ">"),
        ("a gap", json!({"tools": tools}), &open, "</x "),
        ("calls", json!({"tools": tools}), &open, &format!("<{DSML}invoke name=\"f\">")),
        ("half characters", json!({}), "", "\u{10FFFF}"),
    ] {
        let mut answer = request(more).answer("chatcmpl-1".to_owned());
        let ids = [output(start), output_by_bytes(repeated).repeat(TOKENS)].concat();
        let tokens: Vec<Sampled> =
            ids[..TOKENS].iter().map(|&id| Sampled { id, logprob: 0.0, top: Vec::new() }).collect();
        let started = std::time::Instant::now();
        for token in &tokens {
            answer.push(token);
        }
        let elapsed = started.elapsed();
        println!("{what}: {} ns a token", elapsed.as_nanos() / TOKENS as u128);
        assert!(elapsed.as_secs() < 5, "{what}: {elapsed:?}");
        answer.finish(End::Length);
        assert!(!answer.body().is_empty());
    }
}
