//! Bodies that cannot be served, each refused with the field that is wrong.

use proptest::prelude::*;

use super::*;
use crate::ApiError;

#[track_caller]
fn refused(body: &[u8]) -> ApiError {
    chat().prepare(body).unwrap_err()
}

#[track_caller]
fn check(more: Value, param: &str) {
    let error = refused(body(more.clone()).to_string().as_bytes());
    assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{more}: {error}");
    assert!(error.message.len() < 1_000);
}

#[test]
fn bytes_that_are_no_object_are_refused() {
    let nested = [b"{\"a\":".repeat(100_000), b"1".to_vec(), b"}".repeat(100_000)].concat();
    for body in [
        &b""[..],
        b"  \n",
        b"null",
        b"[]",
        b"3",
        b"\"text\"",
        b"{",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xFF\"}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        b"{\"temperature\": 1e999}",
        &nested,
    ] {
        let error = refused(body);
        assert_eq!((error.status, error.param.as_deref()), (400, Some("body")), "{error}");
    }
}

#[test]
fn an_unknown_model_is_not_found() {
    let error = refused(body(json!({"model": "gpt-4"})).to_string().as_bytes());
    assert_eq!((error.status, error.code), (404, "model_not_found"));
    check(json!({"model": 3}), "model");
    assert!(chat().prepare(body(json!({"model": null})).to_string().as_bytes()).is_ok());
}

#[test]
fn values_out_of_range_are_refused() {
    for (field, values) in [
        ("temperature", json!([-0.1, 2.1, "1", true, {}, []])),
        ("top_p", json!([0, -1, 1.01, "1"])),
        ("min_p", json!([-0.1, 1.1, "0"])),
        ("top_k", json!([-2, 1.5, "5", 5_000_000_000u64])),
        ("seed", json!([1.5, "1", 1e30])),
        ("max_tokens", json!([0, -1, 1.5, "5"])),
        ("max_completion_tokens", json!([0, -1, "5"])),
        ("stream", json!([1, "true"])),
        ("logprobs", json!([1, "true"])),
        ("top_logprobs", json!([5, -1, 21, "5"])),
        ("stop", json!(["", [""], ["a", ""], [null], 5, {}, vec!["a"; 17]])),
        ("stream_options", json!([true, [], "usage"])),
        ("thinking", json!([true, "enabled", []])),
        ("reasoning_effort", json!(["huge", 3, "", {}, "x".repeat(100_000)])),
        ("tool_choice", json!(["sometimes", 5, {}, {"type": "function"}, "required"])),
        ("parallel_tool_calls", json!([1, "no"])),
        ("ignore_eos", json!([1])),
        ("response_format", json!(["json", 5])),
        ("tools", json!([{}, "f", 3])),
        ("messages", json!([[], null, "Hi", {}])),
    ] {
        for value in values.as_array().unwrap() {
            check(json!({field: value}), field);
        }
    }
    check(json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs");
    check(json!({"thinking": {"type": "maybe"}}), "thinking.type");
    check(json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage");
    check(json!({"response_format": {"type": 1}}), "response_format.type");
}

#[test]
fn what_is_not_carried_out_is_refused_and_not_ignored() {
    for (field, value) in [
        ("n", json!(2)),
        ("n", json!(0)),
        ("best_of", json!(3)),
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(-0.5)),
        ("repetition_penalty", json!(1.1)),
        ("min_tokens", json!(5)),
        ("logit_bias", json!({"5": 1})),
        ("logit_bias", json!([5])),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!("auto")),
        ("stop_token_ids", json!([5])),
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {"schema": {}}})),
    ] {
        let error = refused(body(json!({field: value})).to_string().as_bytes());
        assert_eq!((error.status, error.code), (400, "unsupported_value"), "{error}");
        assert_eq!(error.param.as_deref(), Some(field));
    }
    let neutral = json!({
        "n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "min_tokens": 0,
        "logit_bias": {}, "functions": [], "stop_token_ids": [], "response_format": {"type": "text"}, "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": true, "user": "me", "invented": {"deep": [1]},
    });
    assert!(chat().prepare(body(neutral).to_string().as_bytes()).is_ok());
}

#[test]
fn messages_that_cannot_be_written_are_refused_by_their_place() {
    let call =
        |id: Value| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let assistant = |calls: Value| json!({"role": "assistant", "tool_calls": calls});
    for (messages, param) in [
        (json!([5]), "messages[0]"),
        (json!([{"content": "Hi"}]), "messages[0].role"),
        (json!([{"role": 5, "content": "Hi"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "Hi"}, {"role": "wizard", "content": "Hi"}]), "messages[1]"),
        (json!([{"role": "user"}]), "messages[0]"),
        (json!([{"role": "user", "content": 5}]), "messages[0]"),
        (json!([{"role": "user", "content": [{"type": "sound"}]}]), "messages[0]"),
        (json!([{"role": "assistant", "content": {}}]), "messages[0]"),
        (json!([{"role": "tool", "content": "x", "tool_call_id": "1"}]), "messages[0].tool_call_id"),
        (json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id"),
        (json!([assistant(json!("f"))]), "messages[0].tool_calls"),
        (json!([assistant(json!([5]))]), "messages[0].tool_calls[0]"),
        (json!([assistant(json!([call(json!(5))]))]), "messages[0].tool_calls[0].id"),
        (json!([assistant(json!([call(json!("1")), call(json!("1"))]))]), "messages[0].tool_calls[1].id"),
        (json!([assistant(json!([{"id": "1", "function": {"name": "f"}}]))]), "messages[0]"),
        (json!([assistant(json!([call(json!("1"))]))]), "messages"),
    ] {
        check(json!({"messages": messages}), param);
    }
    let error = refused(b"{\"model\": \"needle\"}");
    assert_eq!(error.param.as_deref(), Some("messages"));
}

#[test]
fn tools_that_cannot_be_written_are_refused_by_their_place() {
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    for (tools, param) in [
        (json!([5]), "tools[0]"),
        (json!([{"type": "retrieval"}]), "tools[0].type"),
        (json!([{"type": "function"}]), "tools[0].function"),
        (tool(json!("f")), "tools[0].function"),
        (tool(json!({})), "tools[0].function.name"),
        (tool(json!({"name": 5})), "tools[0].function.name"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (tool(json!({"name": "a\">"})), "tools[0].function.name"),
        (tool(json!({"name": "f".repeat(129)})), "tools[0].function.name"),
        (tool(json!({"name": "f", "description": 5})), "tools[0].function.description"),
        (tool(json!({"name": "f", "parameters": "{}"})), "tools[0].function.parameters"),
        (json!([tool(json!({"name": "f"}))[0], tool(json!({"name": "f"}))[0]]), "tools[1].function.name"),
    ] {
        check(json!({"tools": tools}), param);
    }
    let named = json!({"tools": tool(json!({"name": "f"})), "tool_choice": {"type": "function", "function": {"name": "g"}}});
    check(named, "tool_choice");
}

#[test]
fn s17_client_schemas_are_never_compiled() {
    let mut properties = serde_json::Map::new();
    for index in 0..2_000 {
        properties.insert(format!("p{index}"), json!({"type": "string", "pattern": "^(a+)+[0-9]{1,400}$"}));
    }
    let hostile = json!({"type": "object", "properties": properties, "$ref": "http://127.0.0.1:1/x"});
    for parameters in [hostile, json!({"type": "nonsense"}), json!({"$ref": "#"}), json!({"pattern": "("})] {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": true}}]);
        let started = std::time::Instant::now();
        let request = chat().prepare(body(json!({"tools": tools})).to_string().as_bytes());
        // The prompt itself is long; compiling took 54 s.
        assert!(started.elapsed().as_secs() < 5);
        assert!(request.is_ok() || request.unwrap_err().code == "context_length_exceeded");
    }
}

#[test]
fn tokenize_and_detokenize_refuse_bad_bodies() {
    for body in ["", "[]", "{}", "{\"prompt\": 5}", "{\"model\": \"other\", \"prompt\": \"\"}"] {
        assert!((400..500).contains(&chat().tokenize(body.as_bytes()).unwrap_err().status), "{body}");
    }
    for (body, param) in [
        ("", "body"),
        ("{}", "tokens"),
        ("{\"tokens\": 5}", "tokens"),
        ("{\"tokens\": [1, -1]}", "tokens[1]"),
        ("{\"tokens\": [896]}", "tokens[0]"),
        ("{\"tokens\": [99999999999]}", "tokens[0]"),
        ("{\"tokens\": [\"a\"]}", "tokens[0]"),
    ] {
        let error = chat().detokenize(body.as_bytes()).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{body}");
    }
}

#[test]
fn long_runs_of_one_character_are_read_in_time() {
    let large = open(4_000_000, Thinking::Off, EffortProfile::Preview);
    for run in [" ", "a", "0", "\n", "!", "é", "\u{4e00}", "\u{0}", "<", "\r\n \t"] {
        let content = run.repeat(200_000 / run.len());
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let started = std::time::Instant::now();
        assert!(large.prepare(body.to_string().as_bytes()).is_ok());
        assert!(started.elapsed().as_secs() < 5, "{run:?}: {:?}", started.elapsed());
    }
}

/// A request with everything in it.
fn everything() -> Value {
    json!({
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "S", "name": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, {\"b\": 2}]}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
            {"role": "assistant", "content": "On", "prefix": true},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "seed": 1, "max_tokens": 5, "stop": ["a", "b"],
        "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2,
        "thinking": {"type": "disabled"}, "reasoning_effort": "high", "response_format": {"type": "text"}, "n": 1,
    })
}

/// Every place in a value that can be replaced or removed.
fn pointers(value: &Value, at: String, found: &mut Vec<String>) {
    found.push(at.clone());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| pointers(value, format!("{at}/{name}"), found))
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| pointers(value, format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([{"role": "assistant"}])),
        Just(json!("assistant")),
        Just(json!("required")),
        Just(json!(format!("{DSML}{EOS}<｜ref｜>"))),
    ]
}

proptest! {
    #![proptest_config(at_least(2_000))]

    #[test]
    fn mutated_requests_are_served_or_refused_with_a_field(
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd_value()), 1..4),
    ) {
        let mut body = everything();
        for (index, value) in changes {
            let mut places = Vec::new();
            pointers(&body, String::new(), &mut places);
            let place = index.get(&places);
            *body.pointer_mut(place).unwrap() = value;
        }
        match chat().prepare(body.to_string().as_bytes()) {
            Ok(request) => {
                prop_assert!(request.max_tokens >= 1);
                prop_assert!(request.prompt.len() + request.max_tokens as usize <= 32_768);
                let told = Told::by_chunks(&chunks(&with_stream(request), &output(&format!("Hi{EOS}")), End::Stop));
                prop_assert!(!told.finish.is_empty());
            }
            Err(error) => {
                prop_assert!((400..500).contains(&error.status), "{}", error);
                prop_assert!(error.param.is_some(), "{}", error);
            }
        }
    }

    #[test]
    fn cut_and_flipped_bodies_never_panic(cut: prop::sample::Index, flip: prop::sample::Index, byte: u8) {
        let mut body = everything().to_string().into_bytes();
        let place = flip.index(body.len());
        body[place] = byte;
        body.truncate(cut.index(body.len() + 1));
        if let Err(error) = chat().prepare(&body) {
            prop_assert!((400..500).contains(&error.status));
        }
    }
}

fn with_stream(mut request: ChatRequest) -> ChatRequest {
    request.answer.emitter.stream = true;
    request
}
