//! Plan and report as plain text, one fact a line: golden cases and logs read this.
//! Every field is named here, so that a new one cannot be forgotten.

use std::fmt::{self, Display, Formatter};

use super::{HostCacheReport, Planned, Refusal, Rejected, Report, SizeReport, gib, place, thousands};
use crate::cpu_list::cpu_list;
use crate::plan::{Plan, QueueLimit, ReplicaPlan};

impl Display for Planned {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Planned { plan, report } = self;
        write!(f, "{plan}{report}")
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Plan { name, revision, context_tokens, replicas, routers, queue_limit } = self;
        writeln!(f, "plan {name}: revision {revision}, context {context_tokens}, {routers} routers")?;
        replicas.iter().try_for_each(|replica| write!(f, "{replica}"))?;
        write!(f, "{queue_limit}")
    }
}

impl Display for ReplicaPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ReplicaPlan {
            name,
            role,
            index,
            node,
            numa_node,
            device,
            gpus,
            cpus,
            cpus_shared,
            memory_bytes,
            memory_node,
            device_pool,
            host_cache_bytes,
            host_cache_limit: _,
        } = self;
        let gpus: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        let shared = if *cpus_shared { " shared" } else { "" };
        let memory_node = memory_node.map_or_else(|| "unbound".to_owned(), |node| format!("on {node}"));
        writeln!(f, "  {name}: {role} {index} on {}, {device:?}", place(node, *numa_node))?;
        writeln!(f, "    gpus [{}] cpus [{}]{shared}", cpu_list(&gpus), cpu_list(cpus))?;
        writeln!(
            f,
            "    memory {} {memory_node}, pool {} pages {} slots {}, host cache {}",
            gib(*memory_bytes),
            device_pool.pages,
            device_pool.slots,
            gib(device_pool.bytes),
            gib(*host_cache_bytes),
        )
    }
}

impl Display for QueueLimit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let QueueLimit {
            tokens,
            given,
            requests,
            time_to_first_token_ms,
            prefill_tokens_per_second: _,
            source: _,
            derivation,
        } = self;
        let tokens = tokens.map_or_else(|| "unknown".to_owned(), thousands);
        let given = if *given { ", given" } else { "" };
        writeln!(f, "  queue: {tokens} tokens{given}, {requests} requests, {time_to_first_token_ms} ms")?;
        writeln!(f, "    {derivation}")
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Report { sizes, refusals, kept, rejected, rejected_total, host_cache, notes, notes_total } = self;
        writeln!(f, "report: {kept} kept, {rejected_total} rejected, {notes_total} notes")?;
        for SizeReport { role, replicas, gpus, weight_bytes_per_rank, gpu_memory_bytes, memory_bytes } in
            sizes
        {
            let gpu = gpu_memory_bytes.map_or_else(String::new, |bytes| format!(" of {}", gib(bytes)));
            let (weights, memory) = (gib(*weight_bytes_per_rank), gib(*memory_bytes));
            writeln!(f, "  size {role} x {replicas}: {gpus} GPUs{gpu}, weights {weights}, memory {memory}")?;
        }
        for Refusal { reason, message } in refusals {
            writeln!(f, "  refused {reason}: {message}")?;
        }
        for Rejected { node, numa_node, roles, reason, message } in rejected {
            let roles: Vec<String> = roles.iter().map(ToString::to_string).collect();
            writeln!(
                f,
                "  rejected {} for {}: {reason}: {message}",
                place(node, *numa_node),
                roles.join(", ")
            )?;
        }
        for HostCacheReport { replica, asked_bytes: _, granted_bytes: _, ratio, limited_by, message } in
            host_cache
        {
            writeln!(f, "  host cache {replica}: {limited_by:?}, ratio {ratio:.2}: {message}")?;
        }
        notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}
