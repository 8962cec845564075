use bytes::Bytes;
use proptest::prelude::*;

use super::reference::element;
use super::*;
use crate::format::unpack::Unpacker;

/// Values in -1..1 from a small generator: tests need many, and the same on every run.
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub(crate) fn weight(format: WeightFormat, rows: usize, cols: usize, seed: u64) -> Weight {
    let values = noise(rows * cols, seed);
    match format {
        WeightFormat::F32 => Weight::from_f32(rows, cols, values),
        WeightFormat::Bf16 => Weight::quantise_bf16(rows, cols, &values),
        WeightFormat::Fp8 => Weight::quantise_fp8(rows, cols, &values),
        WeightFormat::Fp4 => Weight::quantise_fp4(rows, cols, &values),
    }
    .unwrap()
}

const FORMATS: [WeightFormat; 4] =
    [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Fp4];

/// Compares with the reference; the bound is that of f32 sums of `cols` products of magnitude 1.
fn check(t: usize, weight: &Weight, seed: u64) {
    let x = noise(t * weight.cols(), seed);
    let (mut fast, mut expected) = (vec![7.0; t * weight.rows()], vec![7.0; t * weight.rows()]);
    linear(&x, weight, &mut fast, &mut Scratch::new());
    reference::product(&mut Product::new(Input::new(&x, weight.cols()), weight, &mut expected));
    close(&fast, &expected, weight.cols());
}

fn close(fast: &[f32], expected: &[f32], cols: usize) {
    let bound = 1e-6 * (cols as f32).sqrt() + 1e-7;
    for (at, (fast, expected)) in fast.iter().zip(expected).enumerate() {
        assert!((fast - expected).abs() <= bound * 4.0, "value {at}: {fast}, expected {expected}");
    }
}

#[test]
fn products_equal_the_reference_for_every_format_and_batch() {
    for format in FORMATS {
        for t in [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 33] {
            check(t, &weight(format, 37, 160, 3), 4);
        }
    }
}

#[test]
fn products_equal_the_reference_at_sizes_that_fill_blocks() {
    for format in FORMATS {
        check(1, &weight(format, 512, 1024, 5), 6);
        check(70, &weight(format, 260, 1184, 7), 8);
        check(large::TOKENS, &weight(format, 300, 96, 9), 10);
        check(150, &weight(format, 37, 2080, 11), 12);
    }
}

/// Runs `f` on a pool of its own.
pub(crate) fn on_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

#[test]
fn threads_change_speed_and_nothing_else() {
    for (format, t) in FORMATS.into_iter().flat_map(|format| [(format, 1), (format, 20), (format, 90)]) {
        let weight = weight(format, 1030, 1024, 16);
        let x = noise(t * 1024, 17);
        let product = |threads| {
            let mut y = vec![0.0; t * weight.rows()];
            on_threads(threads, || linear(&x, &weight, &mut y, &mut Scratch::new()));
            y
        };
        let alone = product(1);
        for threads in [2, 3, 8] {
            close(&product(threads), &alone, 1024);
        }
    }
}

fn blocked_with<S: pulp::Simd>(simd: S, unpacker: Unpacker, x: &[f32], weight: &Weight) -> Vec<f32> {
    let (x, rows) = (Input::new(x, weight.cols()), 0..weight.rows());
    let (mut y, mut panel) = (vec![7.0; x.count() * weight.rows()], vec![0.0; blocked::PANEL]);
    let to = columns::Columns::new(&mut y, x.count(), weight.rows(), weight.rows());
    let piece = work::Piece { x, weight, rows, y: to };
    simd.vectorize(blocked::Blocked { piece, panel: &mut panel, unpacker });
    y
}

#[test]
fn vectors_of_every_length_multiply_alike() {
    for (format, t) in FORMATS.into_iter().flat_map(|format| [1, 2, 4, 7, 31].map(|t| (format, t))) {
        let weight = weight(format, 101, 1184, 20);
        let x = noise(t * weight.cols(), 21);
        let mut expected = vec![7.0; t * weight.rows()];
        reference::product(&mut Product::new(Input::new(&x, weight.cols()), &weight, &mut expected));
        close(&blocked_with(pulp::Scalar, Unpacker::plain(), &x, &weight), &expected, weight.cols());
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = pulp::x86::V3::try_new() {
            close(&blocked_with(avx2, Unpacker::new(), &x, &weight), &expected, weight.cols());
            close(
                &blocked_with(pulp::x86::V3_128b(avx2), Unpacker::new(), &x, &weight),
                &expected,
                weight.cols(),
            );
            close(
                &blocked_with(pulp::x86::V3_512b(avx2), Unpacker::new(), &x, &weight),
                &expected,
                weight.cols(),
            );
        }
    }
}

#[test]
fn a_weight_without_rows_or_columns_gives_nothing_or_zeros() {
    linear(&[], &Weight::from_f32(0, 0, Vec::new()).unwrap(), &mut [], &mut Scratch::new());
    let mut y = [7.0; 3];
    let empty = Weight::from_f32(3, 0, Vec::new()).unwrap();
    products(
        &mut [Product {
            x: Input::gathered(&[], 0, &[0]),
            weight: &empty,
            rows: 0..3,
            y: &mut y,
            y_stride: 3,
        }],
        &mut Scratch::new(),
    );
    assert_eq!(y, [0.0; 3]);
}

#[test]
fn grouped_products_use_each_groups_own_rows() {
    for (format, t) in FORMATS.into_iter().flat_map(|format| [(format, 1), (format, 5), (format, 85)]) {
        let (groups, r, cols) = (4, 24, 96);
        let weight = weight(format, groups * r, cols, 9);
        let x = noise(t * groups * cols, 10);
        let mut y = vec![0.0; t * groups * r];
        on_threads(3, || linear_grouped(&x, &weight, groups, &mut y, &mut Scratch::new()));
        for (at, value) in y.iter().enumerate() {
            let (t, group, o) = (at / (groups * r), at / r % groups, at % r);
            let x = &x[(t * groups + group) * cols..][..cols];
            let terms = x.iter().enumerate();
            let expected: f32 = terms.map(|(i, x)| x * element(&weight, group * r + o, i)).sum();
            assert!((value - expected).abs() < 1e-4);
        }
    }
}

#[test]
fn gathered_products_read_the_named_rows() {
    for (format, count) in FORMATS.into_iter().flat_map(|format| [(format, 4), (format, 100)]) {
        let weight = weight(format, 40, 64, 11);
        let x = noise(6 * 64, 12);
        let tokens: Vec<u32> = (0..count).map(|n| (n * n + 5) % 6).collect();
        let (mut gathered, mut all) = (vec![0.0; tokens.len() * 40], vec![0.0; 6 * 40]);
        linear_gathered(&x, &tokens, &weight, &mut gathered, &mut Scratch::new());
        linear(&x, &weight, &mut all, &mut Scratch::new());
        for (row, token) in gathered.chunks(40).zip(tokens) {
            close(row, &all[token as usize * 40..][..40], 64);
        }
    }
}

#[test]
fn a_range_of_rows_gives_those_columns() {
    for (format, t) in FORMATS.into_iter().flat_map(|format| [(format, 2), (format, 12), (format, 81)]) {
        let weight = weight(format, 150, 160, 18);
        let x = noise(t * 160, 19);
        let (mut some, mut all) = (vec![0.0; t * 31], vec![0.0; t * 150]);
        let part =
            Product { rows: 101..132, y_stride: 31, ..Product::new(Input::new(&x, 160), &weight, &mut some) };
        products(&mut [part], &mut Scratch::new());
        linear(&x, &weight, &mut all, &mut Scratch::new());
        for (row, all) in some.chunks(31).zip(all.chunks(150)) {
            close(row, &all[101..132], 160);
        }
    }
}

#[test]
fn many_products_at_once_equal_one_by_one_and_leave_gaps_alone() {
    let weights = [
        weight(WeightFormat::Fp8, 300, 256, 1),
        weight(WeightFormat::F32, 7, 256, 2),
        weight(WeightFormat::Fp4, 64, 256, 3),
    ];
    for t in [1, 6, 40, 90] {
        let x = noise(t * 256, 4);
        let mut together: Vec<Vec<f32>> = weights.iter().map(|w| vec![9.0; t * (w.rows() + 5)]).collect();
        let mut jobs: Vec<Product<'_>> = weights
            .iter()
            .zip(&mut together)
            .map(|(weight, y)| Product {
                x: Input::new(&x, 256),
                weight,
                rows: 0..weight.rows(),
                y,
                y_stride: weight.rows() + 5,
            })
            .collect();
        on_threads(3, || products(&mut jobs, &mut Scratch::new()));
        for (weight, together) in weights.iter().zip(together) {
            let mut alone = vec![0.0; t * weight.rows()];
            linear(&x, weight, &mut alone, &mut Scratch::new());
            for (row, alone) in together.chunks(weight.rows() + 5).zip(alone.chunks(weight.rows())) {
                close(&row[..weight.rows()], alone, 256);
                assert_eq!(row[weight.rows()..], [9.0; 5]);
            }
        }
    }
}

#[test]
fn expanding_is_exact_in_every_format() {
    for format in FORMATS {
        let packed = weight(format, 130, 288, 13);
        let expanded = packed.expand();
        assert_eq!(expanded.format(), WeightFormat::F32);
        for o in 0..130 {
            for i in 0..288 {
                assert_eq!(element(&packed, o, i), element(&expanded, o, i));
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused_with_both_numbers() {
    let fp8 = Weight::new(WeightFormat::Fp8, 130, 256, vec![0; 130 * 256].into(), vec![127; 3].into());
    assert_eq!(fp8.unwrap_err().to_string(), "scales of a FP8 weight [130, 256]: expected 4 bytes, found 3");
    let f32 = Weight::new(WeightFormat::F32, 2, 3, vec![0; 23].into(), Bytes::new());
    assert!(f32.unwrap_err().to_string().contains("expected 24 bytes, found 23"));
    assert!(matches!(
        Weight::new(WeightFormat::Fp4, 2, 48, vec![0; 48].into(), vec![0; 3].into()),
        Err(WeightError::Columns { cols: 48, .. })
    ));
    assert!(matches!(
        Weight::new(WeightFormat::F32, usize::MAX, 2, Bytes::new(), Bytes::new()),
        Err(WeightError::TooLarge { .. })
    ));
}

#[test]
fn codes_that_mean_nan_are_refused() {
    let scale = Weight::new(WeightFormat::Fp4, 1, 32, vec![0; 16].into(), vec![255].into());
    assert!(matches!(scale, Err(WeightError::NotANumber { part: "scales", at: 0, .. })));
    let code = Weight::new(WeightFormat::Fp8, 1, 4, vec![0, 0, 0xFF, 0].into(), vec![127].into());
    assert!(matches!(code, Err(WeightError::NotANumber { part: "values", at: 2, .. })));
}

#[test]
fn bytes_at_any_address_are_accepted() {
    let values = noise(64, 14);
    let mut bytes = vec![0_u8; 3];
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    for offset in 0..4 {
        let mut shifted = vec![0_u8; offset];
        shifted.extend(&bytes[3..]);
        let data = Bytes::from(shifted).slice(offset..);
        let weight = Weight::new(WeightFormat::F32, 4, 16, data, Bytes::new()).unwrap();
        check(2, &weight, 15);
        let mut row = vec![0.0; 16];
        weight.read_row(3, &mut row);
        assert_eq!(row, values[48..]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_shape_equals_the_reference(
        t in 0..14_usize, rows in 1..150_usize, cols in 1..10_usize, format in 0..4_usize, seed in 1..1000_u64,
    ) {
        let format = FORMATS[format];
        // FP4 needs whole groups; the others take any width.
        let cols = if format == WeightFormat::Fp4 { 32 * cols } else { 29 * cols };
        check(t, &weight(format, rows, cols, seed), seed + 1);
    }

    #[test]
    fn every_code_and_scale_multiplies_exactly(codes in prop::collection::vec(any::<u8>(), 32), scale in 0..255_u8) {
        let codes: Vec<u8> = codes.into_iter().map(|c| if c & 0x7F == 0x7F { 0 } else { c }).collect();
        let fp8 = Weight::new(WeightFormat::Fp8, 1, 32, codes.clone().into(), vec![scale].into()).unwrap();
        let fp4 = Weight::new(WeightFormat::Fp4, 2, 32, codes.into(), vec![scale, 254 - scale].into()).unwrap();
        for weight in [fp8, fp4] {
            for (o, i) in (0..weight.rows()).flat_map(|o| (0..32).map(move |i| (o, i))) {
                let mut x = [0.0; 32];
                x[i] = 1.0;
                let mut y = vec![0.0; weight.rows()];
                linear(&x, &weight, &mut y, &mut Scratch::new());
                let expected = element(&weight, o, i);
                // Zero times a huge neighbour is still zero, unless that neighbour overflows f32 itself.
                if (0..32).all(|i| element(&weight, o, i).is_finite()) {
                    prop_assert_eq!(y[o], expected);
                }
            }
        }
    }
}
