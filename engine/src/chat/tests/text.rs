//! Text boundaries, UTF-8 and stop strings: cases A3.

use proptest::prelude::*;

use super::*;

fn content(more: Value, ids: &[u32]) -> String {
    told(&body(more), ids, End::Length).content
}

#[test]
fn s21_characters_in_pieces_come_whole() {
    for text in ["👩‍👩‍👧‍👦", "한국어 문장", "𠮷野家 龘", "é\u{301}", "a\u{FFFD}b"]
    {
        assert_eq!(content(json!({}), &output(text)), text);
        assert_eq!(content(json!({}), &output_by_bytes(text)), text);
    }
}

#[test]
fn s21_bytes_that_become_no_character_are_replaced_once_and_not_waited_for() {
    for bytes in [
        &b"ab\xF0\x9F"[..],
        b"\xF0\x9F\x92ab",
        b"\xFF\xFEa",
        b"\xE2\x82",
        b"\xE2\x82\xE2\x82\xAC",
        b"\x80\x80",
    ] {
        assert_eq!(content(json!({}), &byte_ids(bytes)), String::from_utf8_lossy(bytes));
    }
    let before_special = [byte_ids(b"a\xF0\x9F"), output(EOS)].concat();
    assert_eq!(content(json!({}), &before_special), "a\u{FFFD}");
}

#[test]
fn s22_text_that_ends_within_a_wide_character_is_cut_between_characters() {
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for text in ["café", "café｜", "｜｜DSML", "\n\n<｜", "x\n\n<"] {
        for stop in ["é｜X", "｜X", "\u{ff5c}\u{ff5c}X"] {
            let more = json!({"stop": [stop], "tools": tool});
            assert_eq!(content(more.clone(), &output_by_bytes(text)), text);
            assert_eq!(content(more, &[output(text), output(" code")].concat()), format!("{text} code"));
        }
    }
}

#[test]
fn s23_no_part_of_a_stop_string_is_shown() {
    let pieces = ["ABC", "DEF", "GHI", "JKL"].map(output).concat();
    let told = told(&body(json!({"stop": ["DEFGHIJ"]})), &pieces, End::Length);
    assert_eq!((told.content.as_str(), told.finish.as_str()), ("ABC", "stop"));
    assert_eq!(content(json!({"stop": ["aab"]}), &byte_ids(b"xaaabx")), "xa");
    assert_eq!(content(json!({"stop": "b"}), &output("abc")), "a");
    assert_eq!(
        content(json!({"stop": ["bcd", "c", "abc"]}), &byte_ids(b"xabcd")),
        "x",
        "the longest of a tie"
    );
    assert_eq!(content(json!({"stop": ["cd", "bcd"]}), &byte_ids(b"abcd")), "a");
}

#[test]
fn s23_the_token_that_completes_a_stop_string_ends_the_answer() {
    let request = request(json!({"stop": "b"}));
    let mut answer = request.answer("chatcmpl-1".to_owned());
    let stopped: Vec<bool> = byte_ids(b"abc").into_iter().map(|id| answer.push(&token(id)).stopped).collect();
    assert_eq!(stopped, [false, true, true]);
    assert_eq!(answer.completion_tokens(), 2);
}

#[test]
fn s24_stop_strings_act_in_content_only_and_in_order() {
    let ids = output_by_bytes(&format!("the END is near{THINK_END}… END of it"));
    let body = body(json!({"stop": "END", "thinking": {"type": "enabled"}}));
    let told = told(&body, &ids, End::Length);
    assert_eq!((told.reasoning.as_str(), told.content.as_str()), ("the END is near", "… "));
    assert_eq!(told.finish, "stop");
}

#[test]
fn s25_the_end_is_known_by_its_id_and_not_by_its_spelling() {
    let spelled = chat().encoder.plain_ids(&format!("a{EOS}b<｜User｜>c{THINK_END}d")).unwrap();
    let told = told(&body(json!({})), &[spelled, output(EOS)].concat(), End::Length);
    assert_eq!(told.content, format!("a{EOS}b<｜User｜>c{THINK_END}d"));
    assert_eq!(told.finish, "stop");
}

#[test]
fn s25_special_ids_are_not_shown() {
    let mut ids = output("The");
    for special in ["<｜User｜>", "<think>", "<｜begin▁of▁sentence｜>"] {
        let range = 0..special.len();
        ids.extend(chat().encoder.encode_ids(special, std::slice::from_ref(&range)).unwrap());
    }
    ids.push(u32::MAX);
    ids.extend(output(" code"));
    assert_eq!(content(json!({}), &ids), "The code");
}

#[test]
fn the_end_can_be_ignored() {
    let ids = output(&format!("The{EOS} code"));
    assert_eq!(told(&body(json!({})), &ids, End::Length).content, "The");
    let told = told(&body(json!({"ignore_eos": true})), &ids, End::Length);
    assert_eq!((told.content.as_str(), told.finish.as_str()), ("The code", "length"));
}

proptest! {
    #![proptest_config(at_least(256))]

    #[test]
    fn s21_content_is_the_decoding_of_all_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(content(json!({}), &byte_ids(&bytes)), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn s23_content_ends_before_the_first_completed_stop_string(
        text in "[ab…]{0,24}",
        stops in prop::collection::vec("[ab…]{1,4}", 1..4),
        cuts in prop::collection::vec(any::<bool>(), 80),
    ) {
        let first = stops
            .iter()
            .filter_map(|stop| text.find(stop.as_str()).map(|start| (start + stop.len(), start)))
            .min();
        let expected = first.map_or(text.as_str(), |(_, start)| &text[..start]);
        prop_assert_eq!(content(json!({"stop": stops}), &in_pieces(&text, &cuts)), expected);
    }
}

/// `text` in tokens that end where `cuts` says, which may be within a character.
fn in_pieces(text: &str, cuts: &[bool]) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut piece: Vec<u8> = Vec::new();
    for (&byte, &cut) in text.as_bytes().iter().zip(cuts.iter().cycle()) {
        piece.push(byte);
        if cut {
            ids.extend(tokens_of(&std::mem::take(&mut piece)));
        }
    }
    ids.extend(tokens_of(&piece));
    ids
}

fn tokens_of(piece: &[u8]) -> Vec<u32> {
    std::str::from_utf8(piece)
        .map_or_else(|_| byte_ids(piece), |text| chat().encoder.plain_ids(text).unwrap())
}
