//! Speed of the operations at the shapes of the needle model and of a large random one.
//! In: `cargo bench -p fathom-kernels [-- NAME]`, with the threads of RAYON_NUM_THREADS. Out: one line per operation:
//! microseconds (the best of many runs), GFLOP/s, GB/s of weights or rows read.
//! Compare with what plain CPUs of this kind give: about 150 GFLOP/s in f32 and 38 GB/s of memory on two cores.

#![expect(clippy::print_stdout, reason = "a program whose result is a table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fathom_kernels::attention::{Attention, Seen, attention};
use fathom_kernels::index::{Index, Selection, select};
use fathom_kernels::linear::{Weight, WeightFormat, linear};
use fathom_kernels::row::{KeyFormat, KeyRow, KvFormat, KvRow};
use fathom_kernels::{Scratch, round};

/// Values in -1..1, the same on every run.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The best wall-clock time of one call of `f` over a tenth of a second, and the mean processor time, which neighbours on
/// the same cores do not lengthen.
fn measure(mut f: impl FnMut()) -> (Duration, Duration) {
    f();
    let (start, cpu_start) = (Instant::now(), cpu_time());
    let (mut best, mut calls) = (Duration::MAX, 0);
    while start.elapsed() < Duration::from_millis(100) {
        let before = Instant::now();
        f();
        best = best.min(before.elapsed());
        calls += 1;
    }
    (best, (cpu_time() - cpu_start) / calls)
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("processor time is not negative")
}

struct Report {
    only: Option<String>,
}

impl Report {
    fn wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn line(&self, name: &str, (best, cpu): (Duration, Duration), flops: f64, bytes: f64) {
        let (ns, cpu) = (best.as_nanos() as f64, cpu.as_nanos() as f64);
        println!(
            "{name:<44} {:>10.1} us {:>7.1} GFLOP/s {:>6.1} GB/s | per core {:>6.1} GFLOP/s {:>5.1} GB/s",
            ns / 1e3,
            flops / ns,
            bytes / ns,
            flops / cpu,
            bytes / cpu
        );
    }
}

fn weight(format: WeightFormat, rows: usize, cols: usize, seed: u64) -> Weight {
    let values = noise(rows * cols, seed);
    match format {
        WeightFormat::F32 => Weight::from_f32(rows, cols, values),
        WeightFormat::Bf16 => Weight::quantise_bf16(rows, cols, &values),
        WeightFormat::Fp8 => Weight::quantise_fp8(rows, cols, &values),
        WeightFormat::Fp4 => Weight::quantise_fp4(rows, cols, &values),
    }
    .expect("lengths match")
}

/// Several weights in turn, so that large ones come from memory as they do in a model.
fn products(report: &Report, format: WeightFormat, rows: usize, cols: usize, copies: usize) {
    let weights: Vec<Weight> = (0..copies).map(|copy| weight(format, rows, cols, copy as u64)).collect();
    let mut scratch = Scratch::new();
    for tokens in [1, 2, 4, 8, 16, 64, 512] {
        let name = format!("linear {format} [{rows}, {cols}] x{copies}, {tokens} tokens");
        if !report.wanted(&name) {
            continue;
        }
        let x = noise(tokens * cols, 99);
        let mut y = vec![0.0; tokens * rows];
        let time = measure(|| {
            for weight in &weights {
                linear(black_box(&x), weight, &mut y, &mut scratch);
            }
        });
        let flops = 2.0 * (tokens * rows * cols * copies) as f64;
        report.line(&name, time, flops, (weights[0].bytes() * copies) as f64);
    }
}

/// Attention of `tokens` queries over a full window and `seen` of `entries` entries.
fn attend(
    report: &Report,
    (heads, dim, window): (usize, usize, usize),
    tokens: usize,
    seen: u32,
    entries: u32,
) {
    let name = format!("attention {heads} x {dim}, {tokens} tokens, {window} + {seen} of {entries}");
    if !report.wanted(&name) {
        return;
    }
    let (queries, sinks) = (noise(tokens * heads * dim, 1), noise(heads, 2));
    let (rows, entry_rows) = (noise((window - 1 + tokens) * dim, 3), noise(entries as usize * dim, 4));
    let mut selection = Selection::new();
    for _ in 0..tokens {
        selection.push(&(0..seen).map(|n| n * entries / seen).collect::<Vec<_>>());
    }
    let case = Attention {
        heads,
        dim,
        queries: &queries,
        sinks: &sinks,
        window: &rows,
        window_len: window,
        entries: &entry_rows,
        seen: Seen::Selected(&selection),
    };
    let (mut out, mut scratch) = (vec![0.0; queries.len()], Scratch::new());
    let time = measure(|| attention(black_box(&case), &mut out, &mut scratch));
    let values = (tokens * (window + seen as usize) * dim) as f64;
    report.line(&name, time, 4.0 * values * heads as f64, 4.0 * values);
}

fn index(report: &Report, heads: usize, tokens: usize, entries: u32, top_k: usize) {
    let name = format!("index {heads} x 128, {tokens} tokens, {top_k} of {entries}");
    if !report.wanted(&name) {
        return;
    }
    let (queries, weights) = (noise(tokens * heads * 128, 1), noise(tokens * heads, 2));
    let (keys, visible) = (noise(entries as usize * 128, 3), vec![entries; tokens]);
    let case = Index {
        heads,
        dim: 128,
        queries: &queries,
        weights: &weights,
        keys: &keys,
        visible: &visible,
        top_k,
    };
    let (mut selection, mut scratch) = (Selection::new(), Scratch::new());
    let time = measure(|| select(black_box(&case), &mut selection, &mut scratch));
    let values = (tokens * entries as usize * 128) as f64;
    report.line(&name, time, 2.0 * values * heads as f64, 4.0 * values);
}

/// Rows of the cache, and rounding.
fn rows(report: &Report) {
    const COUNT: usize = 640;
    let values = noise(COUNT * 512, 1);
    for (format, what) in [(KvFormat::F32, "F32"), (KvFormat::Fp8, "FP8")] {
        let layout = KvRow::new(format, 512, 64).expect("a published layout");
        let (mut bytes, mut read) = (vec![0; COUNT * layout.bytes()], vec![0.0; COUNT * 512]);
        let encode = measure(|| {
            for (row, bytes) in values.chunks(512).zip(bytes.chunks_mut(layout.bytes())) {
                layout.encode(black_box(row), bytes);
            }
        });
        let decode = measure(|| {
            for (row, bytes) in read.chunks_mut(512).zip(bytes.chunks(layout.bytes())) {
                layout.decode(black_box(bytes), row);
            }
        });
        report.line(&format!("row encode {what}, 640 x 512"), encode, 0.0, 4.0 * values.len() as f64);
        report.line(&format!("row decode {what}, 640 x 512"), decode, 0.0, 4.0 * values.len() as f64);
    }
    for (format, what) in [(KeyFormat::Bf16, "BF16"), (KeyFormat::Fp8, "FP8"), (KeyFormat::Fp4, "FP4")] {
        let layout = KeyRow::new(format, 128).expect("a published layout");
        let (mut bytes, mut read) = (vec![0; 4 * COUNT * layout.bytes()], vec![0.0; 4 * COUNT * 128]);
        let encode = measure(|| {
            for (key, bytes) in values.chunks(128).zip(bytes.chunks_mut(layout.bytes())) {
                layout.encode(black_box(key), bytes);
            }
        });
        let decode = measure(|| {
            for (key, bytes) in read.chunks_mut(128).zip(bytes.chunks(layout.bytes())) {
                layout.decode(black_box(bytes), key);
            }
        });
        report.line(&format!("row encode key {what}, 2560 x 128"), encode, 0.0, 4.0 * values.len() as f64);
        report.line(&format!("row decode key {what}, 2560 x 128"), decode, 0.0, 4.0 * values.len() as f64);
    }
    let mut values = values;
    let bytes = 4.0 * values.len() as f64;
    report.line("row round fp8 tiles of 128", measure(|| round::fp8_tiles(&mut values, 128)), 0.0, bytes);
    report.line("row round fp4 groups", measure(|| round::fp4_groups(&mut values)), 0.0, bytes);
    report.line("row rotate 128", measure(|| round::hadamard(&mut values, 128)), 0.0, bytes);
}

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let report = Report { only };
    println!("{} threads", rayon::current_num_threads());
    for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Fp4] {
        products(&report, format, 128, 128, 16);
        products(&report, format, 512, 128, 4);
        products(&report, format, 256, 1024, 1);
        products(&report, format, 1024, 1024, 24);
        products(&report, format, 4096, 512, 12);
    }
    let (needle, large) = ((4, 128, 32), (8, 512, 128));
    for tokens in [1, 512] {
        attend(&report, needle, tokens, 64, 256);
        attend(&report, large, tokens, 512, 1024);
        index(&report, 4, tokens, 1024, 64);
        index(&report, 8, tokens, 4096, 512);
    }
    if report.wanted("rows") {
        rows(&report);
    }
}
