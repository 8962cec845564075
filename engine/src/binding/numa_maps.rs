//! On which NUMA nodes this process's own memory lies.
//! In: `/proc/self/numa_maps`. Out: pages by node.
//! Never: pages of files (mapped weights belong to whoever read them first); pages that nobody has touched.
//! Another process, even of the same user, may not read this file, so the engine itself has to tell.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde::Serialize;

/// A process has at most 65,530 mappings, of about 100 bytes each.
const MAX_BYTES: u64 = 8 << 20;

/// Anonymous memory: the device pool in host memory, weights that were converted, buffers.
#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PagesByNode {
    /// KiB by node.
    pub kib: BTreeMap<u32, u64>,
}

/// Reads where this process's memory is now.
///
/// # Errors
/// The kernel does not tell.
pub fn pages_by_node() -> Result<PagesByNode, String> {
    read(Path::new("/proc/self/numa_maps"))
}

fn read(file: &Path) -> Result<PagesByNode, String> {
    let cannot = |error: std::io::Error| format!("{} cannot be read: {error}", file.display());
    let opened = std::fs::File::open(file).map_err(cannot)?;
    let mut text = String::new();
    opened.take(MAX_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Ok(parse(&text))
}

/// Lines such as `7f00 bind:0 anon=512 dirty=512 N0=512 kernelpagesize_kB=4`.
fn parse(text: &str) -> PagesByNode {
    let mut kib: BTreeMap<u32, u64> = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(" anon=")) {
        let field = |name: &str| line.split_whitespace().find_map(|part| part.strip_prefix(name));
        let page_kib: u64 = field("kernelpagesize_kB=").and_then(|kib| kib.parse().ok()).unwrap_or(4);
        for part in line.split_whitespace().filter_map(|part| part.strip_prefix('N')) {
            let Some((node, pages)) = part.split_once('=') else { continue };
            if let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) {
                let sum = kib.entry(node).or_default();
                *sum = sum.saturating_add(pages.saturating_mul(page_kib));
            }
        }
    }
    PagesByNode { kib }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pages_are_summed_by_node_and_those_of_files_left_out() {
        let text = "7f00 bind:0 anon=512 dirty=512 N0=500 N1=12 kernelpagesize_kB=4\n\
                    7f10 default file=/model/a.safetensors mapped=900 N1=900 kernelpagesize_kB=4\n\
                    7f20 prefer:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n\
                    7f30 default stack anon=3 N0=3\n7f40 default\n";
        assert_eq!(parse(text).kib, BTreeMap::from([(0, 2012), (1, 48 + 4096)]));
    }

    #[test]
    fn a_file_that_is_not_there_is_said() {
        assert!(read(Path::new("/nonexistent/numa_maps")).unwrap_err().contains("cannot be read"));
    }
}
