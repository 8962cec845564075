//! Lists of CPUs as the kernel prints them: `0-31,64-95`, empty for none.
//! Never: more work than there are CPU numbers, whatever the text says: ranges ascend, as the kernel prints them.
//! Source: kernel, lib/vsprintf.c, bitmap_list_string.

use super::excerpt;

/// Above the largest NR_CPUS of any architecture (8,192), with room.
const MAX_CPUS: u32 = 65_536;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CpuListError {
    #[error("expected CPU numbers such as 0-3,8, found {found:?}")]
    NotANumber { found: String },
    #[error("expected CPU numbers below {MAX_CPUS}, found {found}")]
    TooLarge { found: u64 },
    #[error("expected ascending CPU numbers, found {found:?}")]
    NotAscending { found: String },
}

pub(crate) fn parse(text: &str) -> Result<Vec<u32>, CpuListError> {
    let text = text.trim();
    let mut cpus: Vec<u32> = Vec::new();
    if text.is_empty() {
        return Ok(cpus);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || cpus.last().is_some_and(|&before| first <= before) {
            return Err(CpuListError::NotAscending { found: excerpt(part) });
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

fn number(text: &str) -> Result<u32, CpuListError> {
    let not_a_number = || CpuListError::NotANumber { found: excerpt(text) };
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(not_a_number());
    }
    let found: u64 = text.parse().map_err(|_| not_a_number())?;
    match u32::try_from(found) {
        Ok(cpu) if cpu < MAX_CPUS => Ok(cpu),
        Ok(_) | Err(_) => Err(CpuListError::TooLarge { found }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_and_single_numbers_become_cpus() {
        assert_eq!(parse("0-2,5,7-8\n"), Ok(vec![0, 1, 2, 5, 7, 8]));
    }

    #[test]
    fn an_empty_list_is_a_node_without_cpus() {
        assert_eq!(parse("\n"), Ok(vec![]));
    }

    #[test]
    fn lists_that_the_kernel_never_prints_are_refused() {
        assert_eq!(parse("3-1"), Err(CpuListError::NotAscending { found: "3-1".into() }));
        assert_eq!(parse("0-3,2"), Err(CpuListError::NotAscending { found: "2".into() }));
        assert_eq!(parse("0,,1"), Err(CpuListError::NotANumber { found: "".into() }));
        assert_eq!(parse("0-"), Err(CpuListError::NotANumber { found: "".into() }));
        assert_eq!(parse("+1"), Err(CpuListError::NotANumber { found: "+1".into() }));
        assert_eq!(parse("0-1000000000"), Err(CpuListError::TooLarge { found: 1_000_000_000 }));
    }

    /// The kernel's printer, slowly.
    fn print(cpus: &[u32]) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &cpu in cpus {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let print = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
        ranges.iter().map(print).collect::<Vec<_>>().join(",")
    }

    proptest! {
        #[test]
        fn what_the_kernel_prints_is_read_back(cpus in prop::collection::btree_set(0..400u32, 0..200)) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse(&print(&cpus)), Ok(cpus));
        }

        #[test]
        fn any_text_gives_ascending_cpus_below_the_bound_or_an_error(
            text in prop_oneof![".{0,60}", "[0-9,\\-]{0,60}", "([0-9]{1,12}-[0-9]{1,12},){0,8}"],
        ) {
            if let Ok(cpus) = parse(&text) {
                prop_assert!(cpus.is_sorted_by(|a, b| a < b));
                prop_assert!(cpus.iter().all(|&cpu| cpu < MAX_CPUS));
            }
        }
    }
}
