//! The fields of a JSON body, taken out one by one with their type checked.
//! In: bytes of a client. Out: typed values; `null` is the same as absent.
//! Never: a panic or unbounded recursion (nesting over 128 levels is refused by the parser).

use serde_json::{Map, Value};

use crate::ApiError;

/// The object of a request body; what has been taken is gone from it.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 when it is empty, not UTF-8, not JSON, nested too deeply, or not an object.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::invalid("body", "The request body is empty; send a JSON object."));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(wrong_type("body", "a JSON object", &other)),
            Err(error) => {
                Err(ApiError::invalid("body", format!("The request body is not valid JSON: {error}.")))
            }
        }
    }

    /// The value of `name`, if there is one and it is not null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// A whole number of either sign that 64 bits hold.
    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i128>, ApiError> {
        self.typed(name, "an integer", |value| {
            value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))
        })
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(name, "a string", &other)),
        }
    }

    pub(super) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(name, "an array", &other)),
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        self.take(name).map(|value| Self::of(name, value)).transpose()
    }

    /// The fields of `value`, which stands at `param` of the request.
    pub(super) fn of(param: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            other => Err(wrong_type(param, "an object", &other)),
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong_type(name, expected, &value))
    }
}

/// 400: the value at `param` has another type.
pub(super) fn wrong_type(param: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "another number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    ApiError::invalid(param, format!("`{param}` must be {expected}, but is {found}."))
}

/// 400: a known parameter that this server does not carry out; ignoring it would give another answer than asked for.
pub(super) fn unsupported(param: &str, message: impl Into<String>) -> ApiError {
    ApiError { code: "unsupported_value", ..ApiError::invalid(param, message) }
}

/// An error of a field of `place`, its parameter named from the root of the request.
pub(super) fn within(place: &str, error: ApiError) -> ApiError {
    let param = error.param.map_or_else(|| place.to_owned(), |param| format!("{place}.{param}"));
    ApiError { param: Some(param), ..error }
}
