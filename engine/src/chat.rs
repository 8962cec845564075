//! Requests in, prompt tokens out; output tokens in, OpenAI events out.
