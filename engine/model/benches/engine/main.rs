//! Tokens per second of prefill and decode, as JSON lines with the fields of the transformers peer's script.
//!
//! ```text
//! engine needle --model-dir DIR | large, --dtype f32|stored, for large also bf16|packed
//!     [--lengths 1024,4096] [--chunk 512] [--batches 1,4,16] [--context 1024] [--steps 32] [--reps 3] [--threads 2]
//!     [--precision exact|sim|full] [--index-keys f32|bf16|fp8|fp4] [--profile]
//! ```
//! `large` is the peer's random model of 303 million parameters in the published layout; `packed` (and `stored`) store it in FP8 and FP4,
//! `bf16` in bf16; `f32` widens bf16 once at loading.
//! `--profile` adds a line per operation: calls, seconds, share.

#![expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]

mod large;
mod profile;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use engine_model::{ModelOptions, Page, Runtime, Segment, Slot, Want, WeightStorage};
use engine_spec::PAGE_TOKENS;
use serde_json::json;

use self::profile::Timed;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    // Cargo passes --bench to every bench program.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let Some((what, flags)) = arguments.split_first() else {
        eprintln!(
            "usage: engine needle --model-dir DIR | large [--dtype f32|bf16|packed]; see the source's first lines"
        );
        return Ok(());
    };
    let settings = Settings::parse(what, flags)?;
    let scratch = (what == "large").then(tempfile::tempdir).transpose()?;
    let dir = match (&scratch, &settings.model_dir) {
        (Some(scratch), _) => {
            large::write(scratch.path(), matches!(settings.dtype.as_str(), "packed" | "stored"))?;
            scratch.path().to_owned()
        }
        (None, Some(dir)) => dir.clone(),
        (None, None) => return Err("needle: --model-dir is missing".into()),
    };
    let mut bench = Bench::load(settings, &dir)?;
    for length in bench.settings.lengths.clone() {
        bench.prefill(length)?;
    }
    for batch in bench.settings.batches.clone() {
        bench.decode(batch)?;
    }
    Ok(())
}

struct Settings {
    what: String,
    dtype: String,
    model_dir: Option<PathBuf>,
    lengths: Vec<usize>,
    batches: Vec<usize>,
    chunk: usize,
    context: usize,
    steps: usize,
    reps: usize,
    profile: bool,
    options: ModelOptions,
}

impl Settings {
    fn parse(what: &str, flags: &[String]) -> Result<Self, Failure> {
        let mut given: BTreeMap<&str, &str> = BTreeMap::new();
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            let value =
                if flag == "--profile" { "yes" } else { flags.next().ok_or("a flag lacks its value")? };
            given.insert(flag.trim_start_matches("--"), value);
        }
        let mut take = |name: &str, default: &'static str| given.remove(name).unwrap_or(default).to_owned();
        let dtype = take("dtype", "stored");
        let list = |text: String| -> Result<Vec<usize>, Failure> {
            text.split(',').filter(|n| !n.is_empty()).map(|n| Ok(n.parse()?)).collect()
        };
        let settings = Self {
            what: what.to_owned(),
            model_dir: Some(take("model-dir", "")).filter(|dir| !dir.is_empty()).map(PathBuf::from),
            lengths: list(take("lengths", "1024,4096"))?,
            batches: list(take("batches", "1,4,16"))?,
            chunk: take("chunk", "512").parse()?,
            context: take("context", "1024").parse()?,
            steps: take("steps", "32").parse()?,
            reps: take("reps", "3").parse()?,
            profile: take("profile", "no") == "yes",
            options: ModelOptions {
                precision: serde_json::from_value(json!(take("precision", "exact")))?,
                index_keys: serde_json::from_value(json!(take("index-keys", "f32")))?,
                index_top_k: None,
                threads: take("threads", "2").parse()?,
                weights: if dtype == "f32" { WeightStorage::F32 } else { WeightStorage::Auto },
            },
            dtype,
        };
        match given.keys().next() {
            Some(unknown) => Err(format!("unknown flag --{unknown}").into()),
            None => Ok(settings),
        }
    }
}

struct Bench {
    settings: Settings,
    runtime: Runtime,
    timed: Timed,
    /// Pages of each slot's sequence.
    pages: Vec<Vec<Page>>,
}

impl Bench {
    fn load(settings: Settings, dir: &std::path::Path) -> Result<Self, Failure> {
        let tokens = settings.lengths.iter().copied().max().unwrap_or(0);
        let decoded = settings.context + 4 + settings.steps * settings.reps;
        let slots = settings.batches.iter().copied().max().unwrap_or(1);
        let per_slot = tokens.max(decoded).div_ceil(PAGE_TOKENS);
        let start = Instant::now();
        let (pages, slots32) = (u32::try_from(per_slot * slots)?, u32::try_from(slots)?);
        let runtime = Runtime::load(dir, &settings.options, pages, slots32, &mut |_| {})?;
        let mut next = (0..).map(Page);
        let pages = (0..slots).map(|_| next.by_ref().take(per_slot).collect()).collect();
        let mut bench = Self { settings, runtime, timed: Timed::default(), pages };
        bench.emit(json!({"test": "load", "load_s": start.elapsed().as_secs_f64()}));
        bench.prompt(0, 160)?;
        Ok(bench)
    }

    fn prefill(&mut self, length: usize) -> Result<(), Failure> {
        self.timed.reset();
        let runs = self.repeat(|bench| bench.prompt(0, length))?;
        self.emit(json!({"test": "prefill", "tokens": length, "chunk": self.settings.chunk,
            "tok_s": summary(&runs, length as f64)}));
        self.print_profile();
        Ok(())
    }

    fn decode(&mut self, batch: usize) -> Result<(), Failure> {
        for slot in 0..batch {
            self.prompt(slot, self.settings.context)?;
        }
        let mut position = self.settings.context;
        for _ in 0..4 {
            self.step(batch, position)?;
            position += 1;
        }
        self.timed.reset();
        let steps = self.settings.steps;
        let runs = self.repeat(|bench| {
            for _ in 0..steps {
                bench.step(batch, position)?;
                position += 1;
            }
            Ok(())
        })?;
        self.emit(json!({"test": "decode", "batch": batch, "context": self.settings.context,
            "tok_s": summary(&runs, (batch * steps) as f64)}));
        self.print_profile();
        Ok(())
    }

    fn prompt(&mut self, slot: usize, length: usize) -> Result<(), Failure> {
        let id = Slot(u32::try_from(slot)?);
        self.runtime.reset_slot(id);
        let tokens: Vec<u32> = (0..length).map(|i| token(slot, i)).collect();
        for (i, tokens) in tokens.chunks(self.settings.chunk).enumerate() {
            let start = i * self.settings.chunk;
            let last = start + tokens.len() == length;
            let want = if last { Want::Last } else { Want::Nothing };
            let pages = self.pages[slot].clone();
            self.forward(&[Segment { slot: id, pages: &pages, start, tokens, want }])?;
        }
        Ok(())
    }

    fn step(&mut self, batch: usize, position: usize) -> Result<(), Failure> {
        let tokens: Vec<u32> = (0..batch).map(|slot| token(slot, position)).collect();
        let pages = std::mem::take(&mut self.pages);
        let segments: Vec<Segment<'_>> = (0u32..)
            .zip(tokens.chunks(1).zip(&pages))
            .map(|(slot, (tokens, pages))| Segment {
                slot: Slot(slot),
                pages,
                start: position,
                tokens,
                want: Want::Last,
            })
            .collect();
        let result = self.forward(&segments);
        self.pages = pages;
        result
    }

    fn forward(&mut self, batch: &[Segment<'_>]) -> Result<(), Failure> {
        if self.settings.profile {
            self.runtime.forward_over(&self.timed, batch)?;
        } else {
            self.runtime.forward(batch)?;
        }
        Ok(())
    }

    fn repeat(&mut self, mut run: impl FnMut(&mut Self) -> Result<(), Failure>) -> Result<Vec<Run>, Failure> {
        (0..self.settings.reps)
            .map(|_| {
                let (start, cpu, steal) = (Instant::now(), cpu_seconds(), steal());
                run(self)?;
                let (wall, stolen) = (start.elapsed().as_secs_f64(), steal_share(steal));
                Ok(Run { wall, cpu: cpu_seconds() - cpu, stolen })
            })
            .collect()
    }

    fn emit(&self, mut line: serde_json::Value) {
        let Settings { what, dtype, options, .. } = &self.settings;
        line["what"] = json!(what);
        line["dtype"] = json!(dtype);
        line["threads"] = json!(options.threads);
        line["precision"] = json!(options.precision);
        line["index_keys"] = json!(options.index_keys);
        println!("{line}");
    }

    fn print_profile(&self) {
        if self.settings.profile {
            self.timed.lines().for_each(|line| println!("{line}"));
        }
    }
}

/// Ids like the peer's: 16 up to 800.
fn token(slot: usize, position: usize) -> u32 {
    let mixed = (slot * 7919 + position + 1).wrapping_mul(0x9E37_79B9) >> 7;
    16 + u32::try_from(mixed % 784).unwrap_or(0)
}

struct Run {
    wall: f64,
    cpu: f64,
    stolen: f64,
}

fn summary(runs: &[Run], tokens: f64) -> serde_json::Value {
    let mut walls: Vec<f64> = runs.iter().map(|run| run.wall).collect();
    walls.sort_by(f64::total_cmp);
    let (first, last) = (walls[0], walls[walls.len() - 1]);
    let cores = runs.iter().map(|r| r.cpu).sum::<f64>() / walls.iter().sum::<f64>();
    json!({"median": tokens / walls[walls.len() / 2], "best": tokens / first, "worst": tokens / last,
        "reps": walls.len(), "secs": walls, "cores": cores,
        "steal": runs.iter().map(|r| r.stolen).fold(0.0, f64::max)})
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

/// Ticks that the hypervisor took away, and all ticks.
fn steal() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = ticks.filter_map(|n| n.parse().ok()).collect();
    (ticks.get(7).copied().unwrap_or(0.0), ticks.iter().sum())
}

fn steal_share(before: (f64, f64)) -> f64 {
    let after = steal();
    (after.0 - before.0) / (after.1 - before.1).max(1.0)
}
