//! Files of /proc: the machine's name and its memory table.

use super::{FileText, Tree};

pub(crate) fn hostname(tree: &Tree) -> FileText {
    FileText::required(tree, "proc/sys/kernel/hostname")
}

pub(crate) fn meminfo(tree: &Tree) -> FileText {
    FileText::required(tree, "proc/meminfo")
}
