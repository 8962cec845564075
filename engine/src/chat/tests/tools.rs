//! Tool calls in outputs, well written and damaged: cases A4.

use super::*;

/// A request whose prompt has tools `f` and `g`.
fn with_tools(more: Value) -> Value {
    let mut body = body(more);
    body["tools"] = json!([{"function": {"name": "f"}}, {"function": {"name": "g"}}]);
    body
}

fn invoke(name: &str, parameters: &[(&str, bool, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, string, value)| {
            format!("<{DSML}parameter name=\"{key}\" string=\"{string}\">{value}</{DSML}parameter>\n")
        })
        .collect();
    format!("<{DSML}invoke name=\"{name}\">\n{parameters}</{DSML}invoke>\n")
}

fn block(calls: &[String]) -> String {
    format!("\n\n<{DSML}tool_calls>\n{}</{DSML}tool_calls>", calls.concat())
}

/// What is told when the model writes `text` and ends; the same for every way to cut it into tokens.
#[track_caller]
fn wrote(body: &Value, text: &str) -> Told {
    ended(body, text, EOS, End::Stop)
}

#[track_caller]
fn ended(body: &Value, text: &str, eos: &str, end: End) -> Told {
    let told = told(body, &output(&format!("{text}{eos}")), end);
    let by_bytes = super::told(body, &output_by_bytes(&format!("{text}{eos}")), end);
    let counts = (told.completion_tokens, told.logprobs);
    assert_eq!(told, Told { completion_tokens: counts.0, logprobs: counts.1, ..by_bytes });
    told
}

#[track_caller]
fn check_call(text: &str, arguments: Value) {
    let told = wrote(&with_tools(json!({})), text);
    assert_eq!(told.calls.len(), 1, "{told:?}");
    assert_eq!(told.calls[0].0, "f");
    assert_eq!(serde_json::from_str::<Value>(&told.calls[0].1).unwrap(), arguments);
}

#[test]
fn s26_arguments_are_json_for_every_split() {
    let text = block(&[invoke(
        "f",
        &[
            ("a", true, "Plaza \"Norte\" </b> <｜ \\ {\"x\": 1}"),
            ("n", false, "15"),
            ("o", false, "{\"a\": [1, {\"b\": \"</c>\"}]}"),
            ("z", true, ""),
        ],
    )]);
    let expected = json!({
        "a": "Plaza \"Norte\" </b> <｜ \\ {\"x\": 1}", "n": 15, "o": {"a": [1, {"b": "</c>"}]}, "z": "",
    });
    check_call(&text, expected.clone());
    let ids = output_by_bytes(&format!("{text}{EOS}"));
    for cut in 0..=ids.len() {
        // One token to the left of the cut, bytes to the right of it.
        let left: Vec<u8> =
            ids[..cut].iter().flat_map(|&id| chat().vocabulary.spelling(id)).copied().collect();
        let Ok(left) = String::from_utf8(left) else { continue };
        let ids = [output(&left), ids[cut..].to_vec()].concat();
        let told = told(&with_tools(json!({})), &ids, End::Stop);
        assert_eq!(serde_json::from_str::<Value>(&told.calls[0].1).unwrap(), expected);
    }
}

#[test]
fn s27_markup_is_in_no_channel() {
    let text = format!("Let me look.{}", block(&[invoke("f", &[("a", true, "x")]), invoke("g", &[])]));
    let told = wrote(&with_tools(json!({})), &text);
    assert_eq!(told.content, "Let me look.");
    assert_eq!(told.finish, "tool_calls");
    assert_eq!(
        told.calls,
        [("f".to_owned(), "{\"a\": \"x\"}".to_owned()), ("g".to_owned(), "{}".to_owned())]
    );
}

#[test]
fn s27_a_marker_that_never_completes_is_content() {
    for text in [
        format!("The marker is <{DSML}> and more"),
        format!("The marker is {DSML} and more"),
        format!("a\n\n<{DSML}tool_cal"),
        format!("a\n\n<{DSML}"),
        format!("a\n\n<{DSML}<{DSML}tool"),
        format!("a <{DSML}tools>"),
        "a\n\n<".to_owned(),
        "a\n\n\n".to_owned(),
        "\n\na".to_owned(),
    ] {
        for (eos, end) in [(EOS, End::Stop), ("", End::Length)] {
            let told = ended(&with_tools(json!({})), &text, eos, end);
            assert_eq!(told.content, text);
            assert_eq!(told.calls, []);
        }
    }
}

#[test]
fn s28_a_block_without_calls_is_content_and_no_call() {
    let required = with_tools(json!({"tool_choice": "required"}));
    let told = wrote(&required, "I would rather not.");
    assert_eq!((told.content.as_str(), told.finish.as_str()), ("I would rather not.", "stop"));
    let empty = format!("a{}b", block(&[]));
    assert_eq!(wrote(&with_tools(json!({})), &empty).content, "ab");
    let prose = format!("a\n\n<{DSML}tool_calls>\nNo <{DSML}thing> calls.\n</{DSML}tool_calls> Bye");
    let told = wrote(&with_tools(json!({})), &prose);
    assert_eq!(told.content, format!("aNo <{DSML}thing> calls. Bye"));
    assert_eq!(told.finish, "stop");
}

#[test]
fn s29_required_finishes_with_tool_calls_and_named_with_stop() {
    let inside = format!("{}</{DSML}tool_calls>", invoke("f", &[("a", false, "1")]));
    let named = json!({"type": "function", "function": {"name": "f"}});
    for (choice, finish) in [(json!("required"), "tool_calls"), (named, "stop")] {
        let body = with_tools(json!({"tool_choice": choice}));
        let marker = output(&format!("\n\n<{DSML}tool_calls>\n"));
        assert!(prepare(body.clone()).prompt.ends_with(&marker), "the prompt opens the block");
        let told = wrote(&body, &inside);
        assert_eq!(told.calls, [("f".to_owned(), "{\"a\": 1}".to_owned())]);
        assert_eq!(told.finish, finish);
    }
}

#[test]
fn s31_a_forced_call_in_thinking_mode_is_refused_until_it_can_be_forced() {
    let body = with_tools(json!({"tool_choice": "required", "thinking": {"type": "enabled"}}));
    let error = chat().prepare(body.to_string().as_bytes()).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (400, Some("tool_choice")));
    assert!(error.message.contains("disabled"), "it says what to do");
}

#[test]
fn calls_follow_reasoning_even_if_it_was_not_closed() {
    let body = with_tools(json!({"thinking": {"type": "enabled"}}));
    for close in [THINK_END, ""] {
        let told = wrote(&body, &format!("I call f.{close}{}", block(&[invoke("f", &[])])));
        assert_eq!((told.reasoning.as_str(), told.content.as_str()), ("I call f.", ""));
        assert_eq!(told.calls.len(), 1);
    }
}

#[test]
fn the_newlines_before_a_block_are_no_stop_string() {
    let told = wrote(&with_tools(json!({"stop": "\n\n"})), &format!("a{}", block(&[invoke("f", &[])])));
    assert_eq!((told.content.as_str(), told.finish.as_str()), ("a", "tool_calls"));
    assert_eq!(wrote(&with_tools(json!({"stop": "\n\n"})), "a\n\nb").content, "a");
    assert_eq!(wrote(&with_tools(json!({"stop": "\n\n"})), "a\n\n").finish, "stop");
    let in_value = block(&[invoke("f", &[("a", true, "x\n\ny")])]);
    assert_eq!(wrote(&with_tools(json!({"stop": "\n\n"})), &in_value).calls[0].1, "{\"a\": \"x\\n\\ny\"}");
}

#[test]
fn without_tools_markup_is_text() {
    let text = format!("a{}", block(&[invoke("f", &[])]));
    assert_eq!(wrote(&body(json!({})), &text).content, text);
    assert_eq!(wrote(&with_tools(json!({"tool_choice": "none"})), &text).content, text);
}

#[test]
fn one_call_is_enough_when_parallel_calls_are_off() {
    let text = block(&[invoke("f", &[("a", false, "1")]), invoke("g", &[])]);
    let body = with_tools(json!({"parallel_tool_calls": false}));
    let told = wrote(&body, &text);
    assert_eq!(told.calls, [("f".to_owned(), "{\"a\": 1}".to_owned())]);
    assert_eq!(told.finish, "tool_calls");
    let mut answer = prepare(body).answer("chatcmpl-1".to_owned());
    assert!(output(&text).iter().any(|&id| answer.push(&token(id)).stopped), "it stops the model");
}

#[test]
fn damaged_calls_are_repaired() {
    let param = |inner: &str| format!("<{DSML}parameter name=\"a\" string=\"true\">{inner}");
    let open = format!("\n\n<{DSML}tool_calls>\n<{DSML}invoke name=\"f\">\n");
    let close = format!("</{DSML}invoke>\n</{DSML}tool_calls>");
    // Not JSON where JSON was promised.
    check_call(&block(&[invoke("f", &[("a", false, "Paris")])]), json!({"a": "Paris"}));
    check_call(&block(&[invoke("f", &[("a", false, "")])]), json!({"a": ""}));
    check_call(&block(&[invoke("f", &[("a", false, "1, \"b\": 2")])]), json!({"a": "1, \"b\": 2"}));
    check_call(&block(&[invoke("f", &[("a", false, "\"\\ud800\"")])]), json!({"a": "\"\\ud800\""}));
    // Keys with spaces and quotes.
    check_call(&block(&[invoke("f", &[("say \"hi\" > 1", true, "x")])]), json!({"say \"hi\" > 1": "x"}));
    // No kind of value.
    let bare = format!("<{DSML}parameter name=\"a\">Paris</{DSML}parameter>\n");
    check_call(&format!("{open}{bare}{close}"), json!({"a": "Paris"}));
    // Closing tags that are missing, cut or of the outer level.
    check_call(&format!("{open}{}\n{close}", param("x")), json!({"a": "x\n"}));
    check_call(&format!("{open}{}</{DSML}parameter\n{close}", param("x")), json!({"a": "x"}));
    check_call(&format!("{open}{}</{DSML}tool_calls>", param("x")), json!({"a": "x"}));
    let second = format!("<{DSML}parameter name=\"b\" string=\"false\">2</{DSML}parameter>\n");
    check_call(&format!("{open}{}{second}{close}", param("x")), json!({"a": "x", "b": 2}));
    // No block around the call.
    check_call(&invoke("f", &[("a", false, "1")]), json!({"a": 1}));
    // Unknown tags and text between.
    let odd = format!("<{DSML}what>ever</{DSML}what> and <{DSML}tool_calls> so on");
    check_call(&format!("{open}{odd}{second}{close}"), json!({"b": 2}));
    // A tag without an end.
    let endless = format!("<{DSML}parameter name=\"{}", "x".repeat(5_000));
    check_call(&format!("{open}{endless}{second}{close}"), json!({"b": 2}));
}

#[test]
fn a_call_that_the_end_leaves_open_is_closed_and_does_not_count() {
    let open =
        format!("a\n\n<{DSML}tool_calls>\n<{DSML}invoke name=\"f\">\n<{DSML}parameter name=\"a\" string=\"");
    for (rest, arguments) in [
        ("true\">x\"", json!({"a": "x\""})),
        ("true\">x</", json!({"a": "x</"})),
        ("false\">[1", json!({"a": "[1"})),
        ("false\">[1]", json!({"a": [1]})),
        ("tr", json!({})),
        (&format!("true\">x</{DSML}para"), json!({"a": "x"})),
    ] {
        let told = wrote(&with_tools(json!({})), &format!("{open}{rest}"));
        assert_eq!((told.content.as_str(), told.finish.as_str()), ("a", "stop"));
        assert_eq!(serde_json::from_str::<Value>(&told.calls[0].1).unwrap(), arguments);
    }
}

#[test]
fn a_call_that_is_cut_by_the_length_stays_open() {
    let text = format!(
        "\n\n<{DSML}tool_calls>\n<{DSML}invoke name=\"f\">\n<{DSML}parameter name=\"a\" string=\"true\">xy"
    );
    let told = ended(&with_tools(json!({})), &text, "", End::Length);
    assert_eq!(told.calls, [("f".to_owned(), "{\"a\": \"xy".to_owned())]);
    assert_eq!(told.finish, "length");
}
