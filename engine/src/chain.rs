//! An error with its causes on one line: errors do not print their own source, whoever reports one walks the chain.

use std::error::Error;

/// `what was attempted: what went wrong: why`.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    // One line, whatever a cause says.
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    #[derive(Debug, thiserror::Error)]
    #[error("reading the plan")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_follow_what_was_attempted() {
        let error = Outer(std::io::Error::other("disk\non fire"));
        assert_eq!(super::chain(&error), "reading the plan: disk on fire");
    }
}
