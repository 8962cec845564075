//! `fathom local logs`: the last lines that the processes wrote.

mod follow;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use self::follow::Follower;
use super::environment::Environment;
use super::select::select;
use super::state::{ClusterFolder, SUPERVISOR};

/// As much of a file's end as is looked at: enough for some thousand lines.
const TAIL_BYTES: u64 = 1 << 20;
/// How often `--follow` looks for more.
const EVERY: Duration = Duration::from_millis(200);

/// Shows the last lines that the processes of a local cluster wrote.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom local logs                        the last lines of every process
  fathom local logs needle decode -n 200   more of decode
  fathom local logs needle router -F       and what it writes from now on, until Ctrl-C
  fathom local logs needle supervisor      what was started, restarted and ended, and when")]
pub(crate) struct Args {
    /// Which cluster; not needed where only one runs.
    name: Option<String>,
    /// Only this role (`prefill`, `decode`, `router`, `supervisor`) or process (`prefill-0`).
    role: Option<String>,
    /// So many lines of each.
    #[arg(short = 'n', long, default_value_t = 20)]
    lines: usize,
    /// Go on with what is written from now on.
    #[arg(short = 'F', long)]
    follow: bool,
}

pub(crate) fn run(args: Args, environment: &Environment) -> anyhow::Result<ExitCode> {
    let (folder, state) = select(&environment.state_root, args.name.as_deref())?;
    // Only those of the last run: an earlier one may have had other processes.
    let names = state.processes.iter().map(|process| process.name.as_str()).chain([SUPERVISOR]);
    let all: Vec<&str> = names.filter(|name| folder.log_path(name).exists()).collect();
    let wanted: Vec<&str> = all
        .iter()
        .copied()
        .filter(|name| args.role.as_deref().is_none_or(|role| plays(name, role)))
        .collect();
    anyhow::ensure!(
        !wanted.is_empty(),
        "no log of `{}`; there are: {}",
        args.role.unwrap_or_default(),
        all.join(", ")
    );
    let mut out = std::io::stdout().lock();
    for name in &wanted {
        let path = folder.log_path(name);
        if wanted.len() > 1 {
            writeln!(out, "== {name} ({})", path.display())?;
        }
        let text = tail(&path, args.lines).with_context(|| format!("cannot read {}", path.display()))?;
        out.write_all(text.as_bytes())?;
    }
    if args.follow {
        follow(&folder, &wanted, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows new lines until nobody reads them any more.
fn follow(folder: &ClusterFolder, processes: &[&str], out: &mut impl Write) -> anyhow::Result<()> {
    let mut followed = Vec::new();
    for name in processes {
        let path = folder.log_path(name);
        let follower = Follower::from_end(path.clone());
        followed.push((*name, follower.with_context(|| format!("cannot read {}", path.display()))?));
    }
    loop {
        for (name, follower) in &mut followed {
            for line in follower.new_lines().with_context(|| format!("cannot read the log of {name}"))? {
                let written = match processes {
                    [_only] => writeln!(out, "{line}"),
                    _ => writeln!(out, "{name}: {line}"),
                };
                if written.is_err() {
                    return Ok(());
                }
            }
        }
        std::thread::sleep(EVERY);
    }
}

fn plays(process: &str, role: &str) -> bool {
    process == role
        || process
            .strip_prefix(role)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|index| index.chars().all(|c| c.is_ascii_digit()))
}

fn tail(path: &Path, lines: usize) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut all: Vec<&str> = text.lines().collect();
    if skipped > 0 && !all.is_empty() {
        // Cut in its middle.
        all.remove(0);
    }
    let from = all.len().saturating_sub(lines);
    Ok(all[from..].iter().flat_map(|line| [line, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_shown_however_long_the_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        let text: String = (0..400_000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&path, text).unwrap();
        assert_eq!(tail(&path, 2).unwrap(), "line 399998\nline 399999\n");
        assert!(tail(&path, usize::MAX).unwrap().starts_with("line "));
        std::fs::write(&path, "").unwrap();
        assert_eq!(tail(&path, 5).unwrap(), "");
    }

    #[test]
    fn a_role_means_its_processes_and_no_others() {
        assert!(
            plays("prefill-0", "prefill")
                && plays("prefill-10", "prefill")
                && plays("prefill-1", "prefill-1")
        );
        assert!(
            !plays("prefill-10", "prefill-1") && !plays("router-0", "prefill") && !plays("pre-fill", "pre")
        );
        assert!(plays("supervisor", "supervisor"));
    }
}
