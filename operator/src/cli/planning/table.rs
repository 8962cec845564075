//! A plan as a table that a person understands.
//! In: a plan with its report. Out: text. Never: a figure that is not in the plan or its report.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use operator_plan::{ComputeDevice, Planned, ReplicaPlan, cpu_list, gib, thousands};

/// Wide enough for the columns on one line each, narrow enough for a split terminal.
const WIDTH: u16 = 118;

/// Prints where each replica runs and with what, then the limits, then what was rejected and why.
pub(crate) fn print_table(planned: &Planned, out: &mut impl Write) -> io::Result<()> {
    let plan = &planned.plan;
    if planned.is_feasible() {
        writeln!(
            out,
            "{}: context {} tokens, revision {}",
            plan.name,
            thousands(plan.context_tokens.into()),
            plan.revision
        )?;
    } else {
        writeln!(out, "{}: this cannot run here", plan.name)?;
        for refusal in &planned.report.refusals {
            writeln!(out, "  {}: {}", refusal.reason, refusal.message)?;
        }
    }
    if !plan.replicas.is_empty() {
        writeln!(out, "{}", replicas(planned))?;
        if plan.routers > 0 {
            writeln!(out, "{} x router: not pinned", plan.routers)?;
        }
        limits(planned, out)?;
    }
    rejections(planned, out)?;
    for note in &planned.report.notes {
        writeln!(out, "note: {note}")?;
    }
    let kept = planned.report.notes.len() as u64;
    let more = u64::from(planned.report.notes_total).saturating_sub(kept);
    if more > 0 {
        writeln!(out, "and {} more notes", thousands(more))?;
    }
    Ok(())
}

fn replicas(planned: &Planned) -> Table {
    let mut table = empty();
    table.set_header(["replica", "where", "GPUs", "CPUs", "memory", "device pool per rank", "host cache"]);
    for replica in &planned.plan.replicas {
        table.add_row([
            replica.name.clone(),
            place(replica),
            gpus(replica),
            cpus(replica),
            gib(replica.memory_bytes),
            pool(replica),
            if replica.host_cache_bytes == 0 { "off".to_owned() } else { gib(replica.host_cache_bytes) },
        ]);
    }
    table
}

fn empty() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table
}

fn place(replica: &ReplicaPlan) -> String {
    replica.numa_node.map_or_else(|| replica.node.clone(), |numa| format!("{} NUMA {numa}", replica.node))
}

fn gpus(replica: &ReplicaPlan) -> String {
    let indices: Vec<u32> = replica.gpus.iter().map(|gpu| gpu.index).collect();
    match (indices.is_empty(), replica.device) {
        (true, _) => "none".to_owned(),
        (false, ComputeDevice::Cuda) => cpu_list(&indices),
        (false, ComputeDevice::Cpu) => format!("{} (held, not used)", cpu_list(&indices)),
    }
}

fn cpus(replica: &ReplicaPlan) -> String {
    let shared = if replica.cpus_shared { " shared" } else { "" };
    format!("{}{shared}", cpu_list(&replica.cpus))
}

fn pool(replica: &ReplicaPlan) -> String {
    let pool = &replica.device_pool;
    let tokens = u64::from(pool.pages) * engine_spec::PAGE_TOKENS as u64;
    format!("{} = {} tokens, {} requests", gib(pool.bytes), thousands(tokens), pool.slots)
}

fn limits(planned: &Planned, out: &mut impl Write) -> io::Result<()> {
    let limit = &planned.plan.queue_limit;
    let tokens =
        limit.tokens.map_or_else(|| "not known yet".to_owned(), |t| format!("{} tokens", thousands(t)));
    writeln!(out, "queue limit of one prefill: {tokens}, {} requests", thousands(limit.requests.into()))?;
    writeln!(out, "  {}", limit.derivation)?;
    let caches = &planned.report.host_cache;
    let asked: Option<u64> = caches.iter().map(|cache| cache.asked_bytes).sum();
    if let Some(asked) = asked.filter(|asked| *asked > 0) {
        let granted = caches.iter().map(|cache| cache.granted_bytes).sum();
        writeln!(out, "host cache: asked {} in total, granted {}", gib(asked), gib(granted))?;
    }
    for cache in caches {
        if cache.granted_bytes > 0 {
            writeln!(out, "  {}: {} = ratio {:.2}", cache.replica, cache.message, cache.ratio)?;
        } else {
            writeln!(out, "  host cache of {}: {}", cache.replica, cache.message)?;
        }
    }
    Ok(())
}

fn rejections(planned: &Planned, out: &mut impl Write) -> io::Result<()> {
    let report = &planned.report;
    if report.rejected.is_empty() {
        return Ok(());
    }
    let mut table = empty();
    table.set_header(["rejected", "for", "why"]);
    for rejected in &report.rejected {
        let roles: Vec<String> = rejected.roles.iter().map(ToString::to_string).collect();
        table.add_row([rejected.place(), roles.join(", "), rejected.message.clone()]);
    }
    writeln!(out, "{table}")?;
    let more = u64::from(report.rejected_total).saturating_sub(report.rejected.len() as u64);
    if more > 0 {
        writeln!(out, "and {} more", thousands(more))?;
    }
    Ok(())
}
