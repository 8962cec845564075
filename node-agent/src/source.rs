//! The sources of facts: files of the kernel, and NVML. The only code that touches the machine.
//! Out: text as the kernel wrote it and answers as NVML gave them; `derive` makes sense of both.
//! Never: a decision about what a value means.

pub(crate) mod cgroup;
pub(crate) mod nvml;
pub(crate) mod pods;
pub(crate) mod procfs;
pub(crate) mod sysfs;
mod tree;

use node_facts::Reading;

pub(crate) use tree::{Packed, Tree, TreeError};

/// The text of one kernel file, with its path: a reason without the path helps nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileText {
    path: String,
    text: Reading<String>,
}

impl FileText {
    /// A file that a kernel with this feature always has: missing is a failure.
    pub(crate) fn required(tree: &Tree, path: impl Into<String>) -> Self {
        let path = path.into();
        let text = match tree.text(&path) {
            Ok(text) => Reading::Value(text),
            Err(error) => Reading::Failed(error.to_string()),
        };
        FileText { path, text }
    }

    /// A file that may rightly be missing.
    pub(crate) fn optional(tree: &Tree, path: impl Into<String>) -> Self {
        let path = path.into();
        let text = match tree.text(&path) {
            Ok(text) => Reading::Value(text),
            Err(error @ TreeError::NotFound { .. }) => Reading::Absent(error.to_string()),
            Err(error) => Reading::Failed(error.to_string()),
        };
        FileText { path, text }
    }

    /// Reads the text's meaning; a text without sense is a failure that names the file.
    pub(crate) fn parse<T, E: std::fmt::Display>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Reading<T> {
        match &self.text {
            Reading::Value(text) => match parse(text) {
                Ok(value) => Reading::Value(value),
                Err(error) => Reading::Failed(format!("/{}: {error}", self.path)),
            },
            Reading::Absent(reason) => Reading::Absent(reason.clone()),
            Reading::Failed(reason) => Reading::Failed(reason.clone()),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(path: &str, text: &str) -> Self {
        FileText { path: path.into(), text: Reading::Value(text.into()) }
    }
}
