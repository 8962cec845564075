//! Which headers pass, in both directions.
//! In: a message's headers. Out: those that are meant for the other end, and ours.
//! Never: a hop-by-hop header; a client's word on which prefill to use.
//! Source: RFC 9110 §7.6.1 (connection-specific headers).

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// To the decode: the prefill that it shall use.
pub(super) static PREFILL: HeaderName = HeaderName::from_static("fathom-prefill");
/// From the decode: tokens of the prompt.
pub(super) static PROMPT_TOKENS: HeaderName = HeaderName::from_static("fathom-prompt-tokens");
pub(super) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A client's request id is kept up to this length.
const REQUEST_ID_BYTES: usize = 128;

fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == TE
        || *name == TRAILER
        || *name == UPGRADE
        || *name == PROXY_AUTHENTICATE
        || *name == PROXY_AUTHORIZATION
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Whether `Connection` names this header as meant for this hop only.
fn is_named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|option| option.trim().eq_ignore_ascii_case(name.as_str())))
}

fn passes(headers: &HeaderMap, name: &HeaderName) -> bool {
    !is_hop_by_hop(name) && (!headers.contains_key(CONNECTION) || !is_named_by_connection(headers, name))
}

/// What the decode gets. `Host` and `Content-Length` are set anew for the connection and the body that are sent.
pub(super) fn to_decode(
    client: &HeaderMap,
    prefill: Option<&HeaderValue>,
    request_id: &HeaderValue,
) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(client.len() + 2);
    for (name, value) in client {
        let ours = *name == PREFILL || *name == REQUEST_ID;
        let of_the_connection = *name == HOST || *name == CONTENT_LENGTH || *name == EXPECT;
        if !ours && !of_the_connection && passes(client, name) {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert(REQUEST_ID.clone(), request_id.clone());
    if let Some(prefill) = prefill {
        headers.insert(PREFILL.clone(), prefill.clone());
    }
    headers
}

/// Makes a decode's headers fit for the client, in place.
pub(super) fn to_client(headers: &mut HeaderMap, request_id: &HeaderValue) {
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| !passes(headers, name)).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
    headers.insert(REQUEST_ID.clone(), request_id.clone());
}

/// The client's request id, if it is one line of plain text.
pub(super) fn request_id(client: &HeaderMap) -> Option<HeaderValue> {
    let value = client.get(&REQUEST_ID)?;
    let plain = value.as_bytes().iter().all(|byte| byte.is_ascii_graphic());
    (plain && (1..=REQUEST_ID_BYTES).contains(&value.len())).then(|| value.clone())
}

pub(super) fn prompt_tokens(headers: &HeaderMap) -> Option<u64> {
    headers.get(&PROMPT_TOKENS)?.to_str().ok()?.parse().ok()
}

/// Whether the content type is `media_type`, whatever its parameters.
pub(super) fn is_type(headers: &HeaderMap, media_type: &str) -> bool {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(media_type))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse::<HeaderValue>().unwrap()))
            .collect()
    }

    #[test]
    fn hop_by_hop_headers_and_the_clients_prefill_stay_here() {
        let client = map(&[
            ("connection", "keep-alive, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("host", "router"),
            ("fathom-prefill", "evil:1"),
            ("authorization", "Bearer k"),
            ("x-request-id", "mine"),
        ]);
        let prefill = HeaderValue::from_static("p:9000");
        let id = request_id(&client).unwrap();
        let sent = to_decode(&client, Some(&prefill), &id);
        let expected =
            map(&[("authorization", "Bearer k"), ("x-request-id", "mine"), ("fathom-prefill", "p:9000")]);
        assert_eq!(sent, expected);
        assert!(!to_decode(&client, None, &id).contains_key(&PREFILL));
    }

    #[test]
    fn a_request_id_that_could_forge_a_log_line_is_replaced() {
        let long = "x".repeat(REQUEST_ID_BYTES + 1);
        for bad in ["", "two words", "tab\there", &long] {
            assert_eq!(request_id(&map(&[("x-request-id", bad)])), None, "{bad}");
        }
    }

    #[test]
    fn a_content_type_is_compared_without_its_parameters() {
        let headers = map(&[("content-type", "Text/Event-Stream; charset=utf-8")]);
        assert!(is_type(&headers, "text/event-stream"));
        assert!(!is_type(&map(&[("content-type", "text/event-streams")]), "text/event-stream"));
    }
}
