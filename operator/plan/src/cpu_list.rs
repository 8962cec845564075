//! CPUs as Linux writes them: `0-15,32`.

/// The list of `cpus`, in ascending order; empty for none.
pub fn cpu_list(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            [only] => only.to_string(),
            [] => String::new(),
        })
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined() {
        assert_eq!(cpu_list(&[]), "");
        assert_eq!(cpu_list(&[3]), "3");
        assert_eq!(cpu_list(&[2, 0, 1, 32, 34, 35]), "0-2,32,34-35");
        assert_eq!(cpu_list(&[u32::MAX, 0]), "0,4294967295");
    }
}
