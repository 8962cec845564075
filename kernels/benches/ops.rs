//! Speed of the operations at the shapes of the needle model and of a large random one.
//! In: `cargo bench -p fathom-kernels [-- NAME]`, with the threads of RAYON_NUM_THREADS. Out: one line per operation:
//! microseconds (the best of many runs), GFLOP/s, GB/s of weights or rows read.
//! Compare with what plain CPUs of this kind give: about 150 GFLOP/s in f32 and 38 GB/s of memory on two cores.

#![expect(clippy::print_stdout, reason = "a program whose result is a table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fathom_kernels::Scratch;
use fathom_kernels::linear::{Weight, WeightFormat, linear};

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

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let report = Report { only };
    println!("{} threads", rayon::current_num_threads());
    for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Fp4] {
        products(&report, format, 128, 128, 16);
        products(&report, format, 512, 128, 4);
        products(&report, format, 1024, 1024, 24);
        products(&report, format, 4096, 512, 12);
    }
}
