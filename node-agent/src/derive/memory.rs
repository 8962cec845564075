//! Memory of the machine or of one NUMA node, and the limit of a control group.
//! In: the text of a meminfo file, of limit files. Out: bytes.
//! Never: zero for a line that is missing.
//! Available = free + active(file) + inactive(file) + reclaimable slab. /proc has MemAvailable, a node has not; one formula
//! for both keeps them comparable.
//! Source: kernel, drivers/base/node.c (node_read_meminfo), fs/proc/meminfo.c.

use node_facts::{Memory, Reading};

use super::excerpt;
use crate::source::FileText;

/// v1 writes the largest page-aligned number where v2 writes "max"; no machine has an exbibyte.
const NO_LIMIT_BYTES: u64 = 1 << 60;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MeminfoError {
    #[error("expected a line {key}, found none")]
    Missing { key: &'static str },
    #[error("expected {key} as a number of kB, found {found:?}")]
    NotKilobytes { key: &'static str, found: String },
    #[error("expected MemFree within MemTotal, found {free} of {total} bytes")]
    FreeAboveTotal { free: u64, total: u64 },
}

pub(super) fn parse(text: &str) -> Result<Memory, MeminfoError> {
    let bytes = |key| bytes_of(text, key);
    let (total, free) = (bytes("MemTotal")?, bytes("MemFree")?);
    if free > total {
        return Err(MeminfoError::FreeAboveTotal { free, total });
    }
    let mut available = free;
    for key in ["Active(file)", "Inactive(file)", "SReclaimable"] {
        available = available.saturating_add(bytes(key)?);
    }
    // The kernel's counters are not one snapshot: on a node full of page cache the sum may overshoot by some pages.
    Ok(Memory { total, free, available: available.min(total) })
}

/// Lines are `MemFree:  123 kB`, in a node's file `Node 0 MemFree:  123 kB`.
fn bytes_of(text: &str, key: &'static str) -> Result<u64, MeminfoError> {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.split_whitespace().last() == Some(key)).then(|| value.trim())
    });
    let value = value.ok_or(MeminfoError::Missing { key })?;
    let kilobytes = value.strip_suffix("kB").and_then(|number| number.trim().parse::<u64>().ok());
    kilobytes
        .and_then(|number| number.checked_mul(1024))
        .ok_or_else(|| MeminfoError::NotKilobytes { key, found: excerpt(value) })
}

/// The smallest limit of the group and its ancestors. One that cannot be read leaves the limit unknown, since it could be
/// the smallest.
pub(super) fn limit(files: &Reading<Vec<FileText>>) -> Reading<u64> {
    let files = match files {
        Reading::Value(files) => files,
        Reading::Absent(reason) => return Reading::Absent(reason.clone()),
        Reading::Failed(reason) => return Reading::Failed(reason.clone()),
    };
    let mut smallest: Option<u64> = None;
    for file in files {
        match file.parse(parse_limit) {
            Reading::Value(Some(limit)) => smallest = Some(smallest.map_or(limit, |least| least.min(limit))),
            Reading::Value(None) | Reading::Absent(_) => {}
            Reading::Failed(reason) => return Reading::Failed(reason),
        }
    }
    smallest.map_or_else(|| Reading::Absent("no limit".to_owned()), Reading::Value)
}

fn parse_limit(text: &str) -> Result<Option<u64>, String> {
    match text.trim() {
        "max" => Ok(None),
        number => match number.parse::<u64>() {
            Ok(bytes) => Ok(Some(bytes).filter(|&bytes| bytes < NO_LIMIT_BYTES)),
            Err(_) => Err(format!("expected max or a number of bytes, found {:?}", excerpt(number))),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: &str = "Node 0 MemTotal: 100 kB\nNode 0 MemFree: 10 kB\nNode 0 Active: 99 kB\n\
        Node 0 Active(file): 20 kB\nNode 0 Inactive(file): 30 kB\nNode 0 SReclaimable: 5 kB\n";

    #[test]
    fn available_is_free_and_file_pages_and_reclaimable_slab() {
        let memory = Memory { total: 100 << 10, free: 10 << 10, available: 65 << 10 };
        assert_eq!(parse(NODE), Ok(memory));
        assert_eq!(parse(&NODE.replace("Node 0 ", "")), Ok(memory));
    }

    #[test]
    fn any_missing_line_is_a_failure_and_never_zero() {
        for key in ["MemTotal", "MemFree", "Active(file)", "Inactive(file)", "SReclaimable"] {
            let lines = NODE.lines().filter(|line| !line.contains(&format!(" {key}:")));
            let text = lines.collect::<Vec<_>>().join("\n");
            assert_eq!(parse(&text), Err(MeminfoError::Missing { key }));
        }
    }

    #[test]
    fn numbers_without_sense_are_refused() {
        let found = |text: &str| parse(&NODE.replace("10 kB", text)).unwrap_err();
        assert_eq!(found("10"), MeminfoError::NotKilobytes { key: "MemFree", found: "10".into() });
        assert_eq!(found("-1 kB"), MeminfoError::NotKilobytes { key: "MemFree", found: "-1 kB".into() });
        let huge = "18446744073709551615 kB";
        assert_eq!(found(huge), MeminfoError::NotKilobytes { key: "MemFree", found: huge.into() });
        assert_eq!(found("101 kB"), MeminfoError::FreeAboveTotal { free: 101 << 10, total: 100 << 10 });
    }

    #[test]
    fn file_pages_that_overshoot_are_cut_at_the_total() {
        assert_eq!(parse(&NODE.replace("30 kB", "90 kB")).unwrap().available, 100 << 10);
    }

    #[track_caller]
    fn check_limit(texts: &[&str], expect: Reading<u64>) {
        let files = texts.iter().map(|text| FileText::of("limit", text)).collect();
        assert_eq!(limit(&Reading::Value(files)), expect);
    }

    #[test]
    fn the_smallest_limit_of_the_ancestors_holds() {
        check_limit(&["max\n", "8192\n", "4096\n"], Reading::Value(4096));
    }

    #[test]
    fn no_file_and_no_number_mean_no_limit() {
        check_limit(&[], Reading::Absent("no limit".into()));
        check_limit(&["max", "9223372036854771712"], Reading::Absent("no limit".into()));
    }

    #[test]
    fn one_unreadable_limit_leaves_the_limit_unknown() {
        let reason = "/limit: expected max or a number of bytes, found \"many\"";
        check_limit(&["4096", "many"], Reading::Failed(reason.into()));
    }

    proptest! {
        #[test]
        fn any_text_gives_ordered_numbers_or_an_error(
            text in prop_oneof![
                ".{0,200}",
                "((Node 0 )?(MemTotal|MemFree|Active\\(file\\)|Inactive\\(file\\)|SReclaimable): [0-9]{1,21} kB\n){0,9}",
            ],
        ) {
            if let Ok(memory) = parse(&text) {
                prop_assert!(memory.free <= memory.available && memory.available <= memory.total);
            }
        }

        #[test]
        fn any_table_of_the_kernel_is_read(numbers in prop::array::uniform5(0..1u64 << 40)) {
            let [rest, free, active, inactive, slab] = numbers;
            let total = rest + free + active + inactive + slab;
            let text = format!(
                "MemTotal: {total} kB\nMemFree: {free} kB\nActive(file): {active} kB\n\
                 Inactive(file): {inactive} kB\nSReclaimable: {slab} kB\n"
            );
            let available = (total - rest) << 10;
            prop_assert_eq!(parse(&text), Ok(Memory { total: total << 10, free: free << 10, available }));
        }
    }
}
