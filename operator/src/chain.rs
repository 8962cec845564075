//! An error of a library with its causes on one line: tonic's own texts stop at "transport error", and kube's sometimes
//! hold their cause already.

use std::error::Error;

/// `what went wrong: why`, each text once.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
