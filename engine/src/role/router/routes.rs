//! Which requests the router knows.
//! In: method and path. Out: a [`Route`].
//! Never: a raw path in a metric or a log line.

use http::Method;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// To a decode and a prefill, counted by admission.
    Generate,
    /// To any decode.
    Ask,
    Alive,
    Ready,
    Metrics,
    ServerInfo,
    /// The path is known, the method is not: what is allowed.
    WrongMethod(&'static str),
    Unknown,
}

pub(super) fn route(method: &Method, path: &str) -> Route {
    let (route, allowed) = match path {
        "/v1/chat/completions" | "/v1/completions" | "/v1/responses" | "/v1/messages" => {
            (Route::Generate, "POST")
        }
        "/tokenize" | "/detokenize" | "/v1/messages/count_tokens" => (Route::Ask, "POST"),
        "/v1/models" | "/version" => (Route::Ask, "GET"),
        "/health" | "/healthz" => (Route::Alive, "GET"),
        "/readyz" => (Route::Ready, "GET"),
        "/metrics" => (Route::Metrics, "GET"),
        "/server_info" => (Route::ServerInfo, "GET"),
        _ if path.starts_with("/v1/models/") => (Route::Ask, "GET"),
        _ => return Route::Unknown,
    };
    let fits = method.as_str() == allowed || (allowed == "GET" && method == Method::HEAD);
    if fits { route } else { Route::WrongMethod(allowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_paths_with_their_methods_are_forwarded() {
        assert_eq!(route(&Method::POST, "/v1/chat/completions"), Route::Generate);
        assert_eq!(route(&Method::GET, "/v1/chat/completions"), Route::WrongMethod("POST"));
        assert_eq!(route(&Method::GET, "/v1/models/needle"), Route::Ask);
        assert_eq!(route(&Method::HEAD, "/readyz"), Route::Ready);
        for path in ["/", "/v1", "/v1/chat/completions/", "/abort_request", "/../readyz", "*"] {
            assert_eq!(route(&Method::POST, path), Route::Unknown, "{path}");
        }
    }
}
