//! Streaming shape, usage, log probabilities: cases A1.

use super::*;

fn streamed(more: Value) -> ChatRequest {
    let mut body = body(more);
    body["stream"] = json!(true);
    prepare(body)
}

#[test]
fn s01_usage_comes_once_in_its_own_chunk() {
    let request = streamed(json!({"stream_options": {"include_usage": true}}));
    let ids = output(&format!("The code.{EOS}"));
    let chunks = chunks(&request, &ids, End::Stop);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    for chunk in others {
        assert_eq!(chunk.get("usage"), Some(&Value::Null), "usage is null on every other chunk");
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
    }
    let whole = whole(&super::request(json!({})), &ids, End::Stop);
    assert_eq!(last["usage"], whole["usage"]);
    let tokens = (request.prompt.len(), ids.len());
    assert_eq!(last["usage"]["prompt_tokens"], tokens.0);
    assert_eq!(last["usage"]["completion_tokens"], tokens.1);
    assert_eq!(last["usage"]["total_tokens"], tokens.0 + tokens.1);
}

#[test]
fn s03_no_other_option_is_a_wish_for_usage() {
    for options in [
        json!({}),
        Value::Null,
        json!({"include_usage": false}),
        json!({"include_usage": null}),
        json!({"continuous_usage_stats": true}),
    ] {
        let request = streamed(json!({"stream_options": options}));
        for chunk in chunks(&request, &output(&format!("Hi.{EOS}")), End::Stop) {
            assert!(chunk.get("usage").is_none(), "{options}: {chunk}");
            assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        }
    }
}

#[test]
fn s04_nothing_after_the_finish_reason_carries_a_choice() {
    let request = streamed(json!({"stream_options": {"include_usage": true}}));
    for end in [End::Stop, End::Length] {
        let chunks = chunks(&request, &output("The code."), end);
        let finish = chunks.iter().position(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).unwrap();
        assert_eq!(finish, chunks.len() - 2);
        assert_eq!(chunks[finish]["choices"][0]["delta"], json!({}));
        assert_eq!(chunks[finish + 1]["choices"], json!([]));
    }
}

#[test]
fn s05_continuous_usage_is_on_every_chunk() {
    let request =
        streamed(json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}}));
    let chunks = chunks(&request, &output(&format!("The code for{EOS}")), End::Stop);
    let counts: Vec<u64> =
        chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.first(), Some(&1));
    assert_eq!(counts.last(), Some(&4));
}

#[test]
fn s06_a_prompt_over_the_context_is_refused_before_a_stream_begins() {
    let small = open(64, Thinking::Off, EffortProfile::Preview);
    for stream in [true, false] {
        let body = json!({"messages": [{"role": "user", "content": "0".repeat(97)}], "stream": stream});
        let error = small.prepare(body.to_string().as_bytes()).unwrap_err();
        assert_eq!((error.status, error.code), (400, "context_length_exceeded"));
        assert!(error.message.contains("64 tokens") && error.message.contains("101 tokens"), "{error}");
        assert_eq!(error.param.as_deref(), Some("messages"));
    }
}

#[test]
fn the_answer_is_cut_to_the_room_that_the_prompt_leaves() {
    let small = open(64, Thinking::Off, EffortProfile::Preview);
    let room = |zeros: usize, more: Value| {
        let mut body = body(more);
        body["messages"][0]["content"] = json!("0".repeat(zeros));
        small.prepare(body.to_string().as_bytes()).map(|request| request.max_tokens)
    };
    // BOS, User, Assistant and </think> are four tokens more.
    assert_eq!(room(10, json!({})), Ok(50));
    assert_eq!(room(10, json!({"max_tokens": 7})), Ok(7));
    assert_eq!(room(10, json!({"max_tokens": 7, "max_completion_tokens": 8})), Ok(8));
    assert_eq!(room(10, json!({"max_completion_tokens": 1_000_000_000_000u64})), Ok(50));
    assert_eq!(room(59, json!({"max_tokens": 7})), Ok(1));
    assert!(room(60, json!({"max_tokens": 1})).is_err());
}

#[test]
fn without_a_wish_the_answer_may_be_as_long_as_deepseeks() {
    let large = open(1_048_576, Thinking::Off, EffortProfile::Preview);
    let longest = |more: Value| large.prepare(body(more).to_string().as_bytes()).unwrap().max_tokens;
    assert_eq!(longest(json!({})), 8_192);
    assert_eq!(longest(json!({"reasoning_effort": "high"})), 65_536);
    assert_eq!(longest(json!({"reasoning_effort": "max"})), 131_072);
}

#[test]
fn s10_log_probabilities_wait_for_the_chunk_that_shows_their_token() {
    let family = "👩‍👩‍👧";
    let text = format!("Hi {family} END");
    for (more, ids) in [
        (json!({}), output(&format!("{text}{EOS}"))),
        (json!({}), output_by_bytes(&text)),
        (json!({"stop": "END"}), output_by_bytes(&text)),
        (json!({"thinking": {"type": "enabled"}}), output_by_bytes(&format!("{text}{THINK_END}{text}{EOS}"))),
    ] {
        let mut body = body(more);
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(2);
        let told = told(&body, &ids, End::Length);
        assert_eq!(told.logprobs, ids.len(), "one entry for every token");
        assert_eq!(told.completion_tokens, Some(ids.len() as u64));
    }
}

#[test]
fn s10_a_chunk_carries_exactly_the_entries_of_its_bytes() {
    let request = streamed(json!({"logprobs": true, "top_logprobs": 1}));
    let chunks = chunks(&request, &byte_ids("aé".as_bytes()), End::Length);
    let entries = |chunk: &Value| chunk["choices"][0]["logprobs"]["content"].as_array().cloned();
    assert_eq!(entries(&chunks[0]), None, "the role shows nothing");
    assert_eq!(entries(&chunks[1]).unwrap().len(), 1);
    let both = entries(&chunks[2]).unwrap();
    assert_eq!(
        both.iter().map(|entry| entry["bytes"].clone()).collect::<Vec<_>>(),
        [json!([0xC3]), json!([0xA9])]
    );
    assert_eq!(both[0]["token"], "\\xc3");
    assert_eq!(both[0]["top_logprobs"].as_array().unwrap().len(), 1);
    assert_eq!(entries(&chunks[3]), None);
}

#[test]
fn s11_text_that_is_held_back_makes_no_chunk() {
    let request = streamed(json!({"stop": ["abcdefgh"]}));
    let mut answer = request.answer("chatcmpl-1".to_owned());
    for id in byte_ids(b"abcdefg") {
        assert!(answer.push(&token(id)).events.is_empty(), "not even the role");
    }
    let told = Told::by_chunks(&chunks(&request, &byte_ids(b"abcdefgX"), End::Length));
    assert_eq!(told.content, "abcdefgX");
    let events = answer.push(&token(byte_ids(b"X")[0])).events;
    assert_eq!(events.len(), 2, "the role and the text");
}

#[test]
fn an_empty_answer_is_a_role_and_a_finish_reason() {
    let chunks = chunks(&streamed(json!({})), &output(EOS), End::Stop);
    assert_eq!(chunks.len(), 2);
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], "stop");
    let whole = whole(&request(json!({})), &output(EOS), End::Stop);
    assert_eq!(whole["choices"][0]["message"], json!({"role": "assistant", "content": ""}));
    assert_eq!(whole["object"], "chat.completion");
}

#[test]
fn an_answer_that_is_full_says_length_and_nothing_follows_its_end() {
    let request = request(json!({}));
    let mut answer = request.answer("chatcmpl-1".to_owned());
    for id in output("The code") {
        assert!(!answer.push(&token(id)).stopped);
    }
    answer.finish(End::Length);
    assert!(answer.finish(End::Stop).is_empty());
    assert!(answer.push(&token(3)).stopped);
    assert_eq!(answer.completion_tokens(), 2);
    let body: Value = serde_json::from_slice(&answer.body()).unwrap();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["message"]["content"], "The code");
}

#[test]
fn reasoning_is_apart_from_content_and_counted() {
    let body = body(json!({"thinking": {"type": "enabled"}}));
    let ids = output(&format!("I found it.{THINK_END}4821{EOS}"));
    let told = told(&body, &ids, End::Stop);
    assert_eq!((told.reasoning.as_str(), told.content.as_str()), ("I found it.", "4821"));
    let whole = whole(&prepare(body.clone()), &ids, End::Stop);
    let reasoning = output(&format!("I found it.{THINK_END}")).len();
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], reasoning);
    let cut = super::told(&body, &output("I found"), End::Length);
    assert_eq!(
        (cut.reasoning.as_str(), cut.content.as_str(), cut.finish.as_str()),
        ("I found", "", "length")
    );
}
