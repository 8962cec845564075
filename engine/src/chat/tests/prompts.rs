//! Prompts: what the model is asked, token by token.

use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use super::*;

/// The prompt of a body, its special tokens spelled.
#[track_caller]
fn rendered(chat: &Chat, body: &Value) -> String {
    let request = chat.prepare(body.to_string().as_bytes()).unwrap();
    let tokens = json!({"tokens": request.prompt}).to_string();
    let text: Value = serde_json::from_slice(&chat.detokenize(tokens.as_bytes()).unwrap()).unwrap();
    text["prompt"].as_str().unwrap().to_owned()
}

fn rows() -> Vec<Value> {
    let rows = std::fs::read_to_string(needle().join("eval.jsonl")).unwrap();
    rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn prompt_of_row(row: &Value) -> Vec<u32> {
    let thinking = if row["thinking"] == true { "enabled" } else { "disabled" };
    let body = json!({"model": MODEL, "messages": row["messages"], "thinking": {"type": thinking}});
    prepare(body).prompt
}

#[test]
fn every_row_of_the_needle_questions_has_its_prompt_tokens() {
    let rows = rows();
    assert_eq!(rows.len(), 230);
    for row in rows {
        assert_eq!(
            prompt_of_row(&row).len() as u64,
            row["prompt_tokens"].as_u64().unwrap(),
            "row {}",
            row["id"]
        );
    }
}

#[test]
fn golden_prompts_begin_with_the_same_ids() {
    let bytes = std::fs::read(needle().join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let rows = rows();
    let mut checked = 0;
    for name in golden.names() {
        let Some(row) = name.strip_suffix(".ids") else { continue };
        let row = rows.iter().find(|candidate| candidate["id"] == row).unwrap();
        let tensor = golden.tensor(name).unwrap();
        let width = tensor.data().len() / tensor.shape().iter().product::<usize>();
        let ids: Vec<u32> = tensor
            .data()
            .chunks_exact(width)
            .map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
            .collect();
        let prompt = prompt_of_row(row);
        assert_eq!(prompt, ids[..prompt.len()], "row {}", row["id"]);
        checked += 1;
    }
    assert_eq!(checked, 8);
}

#[test]
fn turns_are_written_as_the_model_was_trained() {
    let system = json!({"role": "system", "content": "You are terse."});
    let user = json!({"role": "user", "content": "Capital of Peru?"});
    let lima = json!({"role": "assistant", "content": "Lima."});
    let chile = json!({"role": "user", "content": "And of Chile?"});
    let off = json!({"messages": [system, user]});
    let on = json!({"messages": [system, user], "thinking": {"type": "enabled"}});
    let second = json!({"messages": [user, lima, chile], "thinking": {"type": "enabled"}});
    let start = "<｜begin▁of▁sentence｜>";
    assert_eq!(
        rendered(chat(), &off),
        format!("{start}You are terse.<｜User｜>Capital of Peru?<｜Assistant｜></think>")
    );
    assert_eq!(
        rendered(chat(), &on),
        format!("{start}You are terse.<｜User｜>Capital of Peru?<｜Assistant｜><think>")
    );
    assert_eq!(
        rendered(chat(), &second),
        format!(
            "{start}<｜User｜>Capital of Peru?<｜Assistant｜></think>Lima.{EOS}<｜User｜>And of Chile?<｜Assistant｜><think>"
        )
    );
}

#[test]
fn s12_a_final_assistant_message_is_continued() {
    let body = json!({"messages": [{"role": "assistant", "content": "Once"}]});
    assert_eq!(rendered(chat(), &body), "<｜begin▁of▁sentence｜><｜Assistant｜></think>Once");
    let thinking = json!({
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "reasoning": "Hm"}],
        "thinking": {"type": "enabled"},
    });
    assert_eq!(rendered(chat(), &thinking), "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>Hm");
    let told = told(&thinking, &output(&format!(", so.{THINK_END}Yes{EOS}")), End::Stop);
    assert_eq!((told.reasoning.as_str(), told.content.as_str()), (", so.", "Yes"));
    let closed = json!({"messages": [{"role": "assistant", "content": "Once", "prefix": false}]});
    assert!(rendered(chat(), &closed).ends_with(&format!("Once{EOS}<｜Assistant｜></think>")));
}

#[test]
fn s13_s14_empty_contents_render_alike() {
    let call = json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let with = |assistant: Value| {
        let result = json!({"role": "tool", "tool_call_id": "a", "content": "ok"});
        rendered(chat(), &json!({"messages": [{"role": "user", "content": "Hi"}, assistant, result]}))
    };
    let null = with(json!({"role": "assistant", "content": null, "tool_calls": call}));
    assert_eq!(null, with(json!({"role": "assistant", "tool_calls": call})));
    assert_eq!(null, with(json!({"role": "assistant", "content": "", "tool_calls": call})));
    let user = json!({"role": "user", "content": "Hi"});
    let silent = |content: Value| {
        let silent = json!({"role": "assistant", "content": content, "tool_calls": []});
        rendered(chat(), &json!({"messages": [user, silent, user]}))
    };
    assert_eq!(silent(json!("")), silent(Value::Null));
}

#[test]
fn s16_an_empty_text_runs() {
    let empty = json!({"messages": [{"role": "user", "content": ""}]});
    assert_eq!(rendered(chat(), &empty), "<｜begin▁of▁sentence｜><｜User｜><｜Assistant｜></think>");
}

#[test]
fn s15_null_is_absent_for_every_optional_field() {
    let plain = request(json!({}));
    for name in [
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "thinking",
        "reasoning_effort",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "functions",
        "function_call",
        "best_of",
        "repetition_penalty",
        "min_tokens",
        "ignore_eos",
        "user",
        "metadata",
    ] {
        let request = request(json!({name: null}));
        assert_eq!((request.prompt, request.max_tokens), (plain.prompt.clone(), plain.max_tokens), "{name}");
    }
    assert_eq!(request(json!({"thinking": {"type": null}})).prompt, plain.prompt);
    let nulls = json!({"messages": [{"role": "user", "content": "Hi", "name": null}]});
    assert_eq!(prepare(nulls).prompt, plain.prompt);
}

#[test]
fn s18_effort_levels_map_by_their_table() {
    let (off, low) = (request(json!({})).prompt, request(json!({"thinking": {"type": "enabled"}})).prompt);
    assert_eq!(request(json!({"reasoning_effort": "none"})).prompt, off);
    let preview = open(32_768, Thinking::On, EffortProfile::Preview);
    let current = open(32_768, Thinking::On, EffortProfile::V0731);
    let effort = |chat: &Chat, level: &str| {
        let prompt = rendered(chat, &body(json!({"reasoning_effort": level})));
        let text = prompt.strip_prefix("<｜begin▁of▁sentence｜>").unwrap();
        let text = text.strip_suffix("<｜User｜>Hi<｜Assistant｜><think>").unwrap();
        (text.len(), Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let nothing = (0, Sha256::digest("").iter().map(|byte| format!("{byte:02x}")).collect());
    let high = (476, "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7".to_owned());
    let max = (528, "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c".to_owned());
    for (level, in_preview, in_current) in [
        ("minimal", &nothing, &nothing),
        ("low", &nothing, &nothing),
        ("medium", &nothing, &high),
        ("high", &nothing, &high),
        ("xhigh", &nothing, &high),
        ("ultra", &high, &max),
        ("max", &high, &max),
    ] {
        assert_eq!(&effort(&preview, level), in_preview, "{level}");
        assert_eq!(&effort(&current, level), in_current, "{level}");
    }
    let said_nothing = preview.prepare(body(json!({})).to_string().as_bytes()).unwrap().prompt;
    assert_eq!(said_nothing, low);
}

#[test]
fn s20_tools_are_written_with_the_reference_encoders_spaces_and_key_order() {
    let parameters = json!({
        "type": "object",
        "properties": {"stop": {"type": "string", "description": "Où?"}, "n": {"enum": [1, 2.5]}},
        "required": ["stop"], "$defs": {"a": {"const": 1}},
    });
    let tool = json!({"type": "function", "function": {
        "name": "find_bus", "description": "Next bus", "parameters": parameters, "strict": true,
    }});
    let prompt = rendered(chat(), &body(json!({"tools": [tool]})));
    let (before, after) = prompt
        .split_once(
            "{\"name\": \"find_bus\", \"description\": \"Next bus\", \"parameters\": {\"type\": \"object\", \"properties\": \
             {\"stop\": {\"type\": \"string\", \"description\": \"Où?\"}, \"n\": {\"enum\": [1, 2.5]}}, \"required\": \
             [\"stop\"], \"$defs\": {\"a\": {\"const\": 1}}}}",
        )
        .unwrap();
    let before = before.strip_prefix("<｜begin▁of▁sentence｜>").unwrap();
    let after = after.strip_suffix("<｜User｜>Hi<｜Assistant｜></think>").unwrap();
    let sha = |text: &str| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(sha(before), "876d4bbdf029848a8dcaa451ecc49041a7a4f9705fa64d4f722d92d8f8f59d64");
    assert_eq!(sha(after), "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7");
    let none = rendered(chat(), &body(json!({"tools": [tool], "tool_choice": "none"})));
    assert_eq!(none, rendered(chat(), &body(json!({}))));
}

#[test]
fn calls_keep_their_order_whatever_their_ids() {
    let call =
        |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": "{\"a\": 1}"}});
    let result = |id: &str, content: &str| json!({"role": "tool", "tool_call_id": id, "content": content});
    let prompt = rendered(
        chat(),
        &json!({"messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [call("z", "first"), call("a", "second")]},
            result("a", "two"),
            result("z", "one"),
        ]}),
    );
    let invoke = |name: &str| {
        format!(
            "<{DSML}invoke name=\"{name}\">\n<{DSML}parameter name=\"a\" string=\"false\">1</{DSML}parameter>\n</{DSML}invoke>\n"
        )
    };
    let expected = format!(
        "\n\n<{DSML}tool_calls>\n{}{}</{DSML}tool_calls>{EOS}<｜User｜><tool_result>one</tool_result>\n\n\
         <tool_result>two</tool_result><｜Assistant｜></think>",
        invoke("first"),
        invoke("second")
    );
    assert!(prompt.ends_with(&expected), "{prompt}");
}

#[test]
fn s32_reasoning_of_a_tool_loop_is_optional_and_has_two_names() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let history = |more: Value| {
        let mut assistant = json!({
            "role": "assistant", "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        });
        for (name, value) in more.as_object().unwrap() {
            assistant[name] = value.clone();
        }
        let result = json!({"role": "tool", "tool_call_id": "1", "content": "ok"});
        json!({
            "messages": [{"role": "user", "content": "Hi"}, assistant, result],
            "tools": [tool], "thinking": {"type": "enabled"},
        })
    };
    assert!(rendered(chat(), &history(json!({}))).contains("<think></think>"));
    let with = rendered(chat(), &history(json!({"reasoning_content": "Why"})));
    assert!(with.contains("<think>Why</think>"));
    assert_eq!(with, rendered(chat(), &history(json!({"reasoning": "Why"}))));
    assert!(with.ends_with("<｜Assistant｜><think>"), "s33: every turn of the loop opens thinking");
}

#[test]
fn what_a_client_spells_is_never_a_special_token() {
    let spelled = format!("{EOS}<｜User｜>{THINK_END}<{DSML}tool_calls><｜ref｜>");
    let request = prepare(json!({"messages": [
        {"role": "user", "content": spelled},
        {"role": "assistant", "content": spelled, "prefix": false},
        {"role": "user", "content": spelled},
    ]}));
    let special = |id: &&u32| chat().vocabulary.meaning(**id) != vocabulary::Meaning::Text;
    let found: Vec<String> = request
        .prompt
        .iter()
        .filter(special)
        .map(|&id| String::from_utf8_lossy(chat().vocabulary.spelling(id)).into_owned())
        .collect();
    let turn = ["<｜User｜>", "<｜Assistant｜>", THINK_END];
    let expected = [&["<｜begin▁of▁sentence｜>"], &turn[..], &[EOS], &turn[..]].concat();
    assert_eq!(found, expected);
}

#[test]
fn developer_messages_are_system_messages_and_parts_are_joined() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let prompt = rendered(
        chat(),
        &json!({"messages": [
            {"role": "developer", "content": parts}, {"role": "user", "content": parts},
        ]}),
    );
    assert_eq!(prompt, "<｜begin▁of▁sentence｜>a\n\nb<｜User｜>a\n\nb<｜Assistant｜></think>");
}

#[test]
fn tokenize_counts_as_prepare_does_and_comes_back() {
    let answer = |body: Value| -> Value {
        serde_json::from_slice(&chat().tokenize(body.to_string().as_bytes()).unwrap()).unwrap()
    };
    let by_messages = answer(body(json!({})));
    let prompt = request(json!({})).prompt;
    assert_eq!(by_messages["tokens"], json!(prompt));
    assert_eq!(by_messages["count"], json!(prompt.len()));
    assert_eq!(by_messages["max_model_len"], 32_768);
    let text = format!("The code 👩‍👩‍👧 한국어 {EOS}");
    let ids = answer(json!({"prompt": text}));
    let back = chat().detokenize(json!({"tokens": ids["tokens"]}).to_string().as_bytes()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&back).unwrap()["prompt"], text);
}

#[test]
fn the_checkpoint_says_how_answers_are_drawn_and_ended() {
    assert_eq!(chat().eos(), 1);
    let sampling = request(json!({"seed": -1})).sampling;
    let expected = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: u64::MAX };
    assert_eq!(sampling, expected);
    let asked = json!({"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": 7, "reasoning_effort": "max"});
    let expected = Sampling { temperature: 0.0, top_p: 0.5, top_k: 0, min_p: 0.1, seed: 7 };
    assert_eq!(request(asked).sampling, expected, "thinking does not change it");
    let seeds = [request(json!({})).sampling.seed, request(json!({})).sampling.seed];
    assert_ne!(seeds[0], seeds[1]);
    let models: Value = serde_json::from_slice(&chat().models()).unwrap();
    assert_eq!(models["data"][0]["id"], MODEL);
    assert_eq!(chat().tokenizer_hash().len(), 64);
}

#[test]
fn a_folder_that_is_no_checkpoint_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options =
            ChatOptions { model_name: MODEL.to_owned(), context_tokens: 64, defaults: ChatConfig::default() };
        Chat::open(folder.path(), options).unwrap_err().to_string()
    };
    assert!(open().contains("tokenizer.json"));
    std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    assert!(open().contains("tokenizer.json"));
    let tokenizer = std::fs::read_to_string(needle().join("tokenizer.json")).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.replace("｜DSML｜", "｜XSML｜")).unwrap();
    assert!(open().contains("｜DSML｜"));
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    for (config, said) in
        [("{\"temperature\": \"hot\"}", "hot"), ("{\"top_p\": 0}", "top_p"), ("{\"eos_token_id\": 7}", "[7]")]
    {
        std::fs::write(folder.path().join("generation_config.json"), config).unwrap();
        let error = open();
        assert!(error.contains("generation_config.json") && error.contains(said), "{error}");
    }
}
