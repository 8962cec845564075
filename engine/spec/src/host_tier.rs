//! How much host memory an engine process needs, and how much of a NUMA node may be promised to its host tier.
//! In: facts of a NUMA node, a device pool. Out: bytes.
//! Never: facts of its own, a choice between pods. Planner and engine use the same numbers.

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Never promised, at least: kernel, kubelet and agents of a node with GPUs take a few GiB, and a node that swaps or
/// kills is worse than a smaller cache.
pub const RESERVE_MIN_BYTES: u64 = 10 * GIB;

/// Never promised, as a share of the NUMA node: page tables, slab and network buffers grow with memory.
pub const RESERVE_SHARE_PERCENT: u64 = 5;

/// While loading, a rank's shards pass through a staging buffer of at most this size before they are on the device.
pub const LOAD_STAGING_BYTES: u64 = 4 * GIB;

/// Per rank with a GPU: CUDA context, pinned buffers, allocator and tokenizer, measured at 2 to 3 GiB in serving
/// engines of this kind, rounded up.
pub const RANK_BASE_BYTES: u64 = 4 * GIB;

/// Per rank with a GPU: shared memory for collectives; it counts as the pod's memory.
pub const RANK_SHM_BYTES: u64 = GIB;

/// A process that computes on the CPU: code, threads, activations of one step.
pub const CPU_BASE_BYTES: u64 = 256 * MIB;

/// The same process's shared memory.
pub const CPU_SHM_BYTES: u64 = 64 * MIB;

/// Share of the room that a host tier may take: what was free a minute ago is not all free when it is touched.
pub const ROOM_SHARE_PERCENT: u64 = 80;

/// A host tier below the device pool holds nothing that the device has not: then there is none.
pub const MIN_RATIO: u64 = 1;

/// On the CPU the device pool holds at most so many requests of the full context.
pub const CPU_POOL_CONTEXTS: u64 = 4;

/// On the CPU the device pool takes at most this share of the headroom.
pub const CPU_POOL_SHARE_PERCENT: u64 = 25;

/// Of a GPU's memory, what a rank uses: the rest absorbs fragmentation and other clients of the device.
pub const GPU_SHARE_PERCENT: u64 = 90;

/// Of a GPU's memory, activations, graphs and communication buffers of one rank.
pub const GPU_ACTIVATION_BYTES: u64 = 4 * GIB;

/// Bytes of a NUMA node of `total` bytes that are never promised. Without GPUs the floor does not apply: it would be
/// the whole of a small machine.
pub fn reserve_bytes(total: u64, on_gpu: bool) -> u64 {
    let share = percent(total, RESERVE_SHARE_PERCENT);
    if on_gpu { share.max(RESERVE_MIN_BYTES) } else { share }
}

/// Host memory that a replica of `ranks` GPUs needs for itself, without its host tier.
pub fn gpu_replica_bytes(ranks: u64) -> u64 {
    LOAD_STAGING_BYTES + ranks * (RANK_BASE_BYTES + RANK_SHM_BYTES)
}

/// Host memory that a replica on the CPU needs for itself, without its device pool and host tier. Weights are mapped:
/// their pages can be dropped and are not charged beyond the staging.
pub fn cpu_replica_bytes(weight_bytes: u64) -> u64 {
    weight_bytes.min(LOAD_STAGING_BYTES) + CPU_BASE_BYTES + CPU_SHM_BYTES
}

/// Bytes that a host tier may take of `room`.
pub fn room_share(room: u64) -> u64 {
    percent(room, ROOM_SHARE_PERCENT)
}

/// Device pool of a rank on a GPU of `total` bytes, or how many bytes are missing to load at all.
pub fn gpu_pool_bytes(total: u64, weight_bytes: u64) -> Result<u64, u64> {
    let usable = percent(total, GPU_SHARE_PERCENT);
    let fixed = weight_bytes.saturating_add(GPU_ACTIVATION_BYTES);
    usable.checked_sub(fixed).ok_or(fixed - usable.min(fixed))
}

/// `percent` of `of`, rounded down, exact for any size of memory.
pub fn percent(of: u64, percent: u64) -> u64 {
    of / 100 * percent + of % 100 * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_240_gb_keeps_5_percent_and_a_small_one_10_gib() {
        assert_eq!(reserve_bytes(240_000_000_000, true), 12_000_000_000);
        assert_eq!(reserve_bytes(64 * GIB, true), 10 * GIB);
        assert_eq!(reserve_bytes(8 * GIB, false), 8 * GIB / 20);
    }

    #[test]
    fn a_replica_of_four_ranks_needs_24_gib() {
        assert_eq!(gpu_replica_bytes(4), 24 * GIB);
    }

    #[test]
    fn staging_on_the_cpu_is_the_weights_up_to_4_gib() {
        assert_eq!(cpu_replica_bytes(3 * MIB), 323 * MIB);
        assert_eq!(cpu_replica_bytes(100 * GIB), 4 * GIB + 320 * MIB);
    }

    #[test]
    fn a_gpu_that_is_too_small_says_how_much_is_missing() {
        assert_eq!(gpu_pool_bytes(100 * GIB, 38 * GIB), Ok(48 * GIB));
        assert_eq!(gpu_pool_bytes(20 * GIB, 38 * GIB), Err(24 * GIB));
        assert_eq!(gpu_pool_bytes(0, 0), Err(4 * GIB));
    }

    #[test]
    fn a_percentage_of_a_huge_size_does_not_overflow() {
        assert_eq!(percent(u64::MAX, 100), u64::MAX);
        assert_eq!(percent(199, 50), 99);
    }
}
