//! The memory policy of a process: from which NUMA node its pages come.
//! In: a node. Out: a policy that every later thread inherits, or why the kernel refuses it.
//! Never: pages that are already there (the policy is set before anything is allocated that matters).
//! The standard library and rustix have no set_mempolicy(2), so the system call is made here.

use std::io::Error;

/// Nodes that a mask can name: the most that Linux can be built for.
const MAX_NODES: u32 = 1024;

const WORD_BITS: u32 = u64::BITS;

/// `strictly`: pages come from `node` or not at all; otherwise from others when it is full.
pub(super) fn bind(node: u32, strictly: bool) -> Result<(), String> {
    if node >= MAX_NODES {
        return Err(format!("EINVAL: NUMA node {node} is beyond {}", MAX_NODES - 1));
    }
    let mode = if strictly { libc::MPOL_BIND } else { libc::MPOL_PREFERRED };
    let mut mask = [0_u64; (MAX_NODES / WORD_BITS) as usize];
    mask[(node / WORD_BITS) as usize] = 1 << (node % WORD_BITS);
    set_policy(mode, &mask).map_err(|error| explain(node, &error))
}

#[expect(unsafe_code, reason = "a system call without a safe wrapper")]
fn set_policy(mode: libc::c_int, mask: &[u64]) -> Result<(), Error> {
    // The kernel takes one bit less than it is told.
    let bits = mask.len() * WORD_BITS as usize + 1;
    // SAFETY: set_mempolicy only reads `bits - 1` bits at `mask`, which is borrowed for the call and that long; it
    // writes nothing and keeps no pointer.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// What the error means for whoever runs the process.
fn explain(node: u32, error: &Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "EPERM: set_mempolicy is not allowed to this process: the default seccomp profile of \
                              container runtimes wants CAP_SYS_NICE for it; add the capability (\
                              placement.memoryBinding: Required asks for it) or let the profile pass it"
                .to_owned()
        }
        Some(libc::EINVAL) => {
            format!("EINVAL: there is no NUMA node {node} here, or the cgroup's cpuset excludes its memory")
        }
        Some(libc::ENOSYS) => "ENOSYS: this kernel knows no NUMA policies".to_owned(),
        _ => format!("the kernel refuses: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own: the policy must not reach other tests.
    fn bind_in_a_thread(node: u32, strictly: bool) -> Result<(), String> {
        std::thread::spawn(move || bind(node, strictly)).join().unwrap()
    }

    #[test]
    fn a_node_that_is_not_there_is_refused_by_name() {
        for strictly in [false, true] {
            let error = bind_in_a_thread(777, strictly).unwrap_err();
            // A machine that lets no policy through says so instead.
            assert!(error.contains("NUMA node 777") || error.contains("EPERM"), "{error}");
        }
        assert!(bind_in_a_thread(5000, false).unwrap_err().contains("1023"));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let explain = |errno| super::explain(3, &Error::from_raw_os_error(errno));
        assert!(explain(libc::EPERM).contains("CAP_SYS_NICE"));
        assert!(explain(libc::EINVAL).starts_with("EINVAL: there is no NUMA node 3"));
        assert!(explain(libc::ENOSYS).starts_with("ENOSYS"));
        assert!(explain(libc::EIO).contains("kernel refuses"));
    }
}
