use proptest::prelude::*;

use super::{KeyFormat, KeyRow, KvFormat, KvRow, RowError};

fn row(dim: usize) -> impl Strategy<Value = Vec<f32>> {
    (prop::collection::vec(-1_f32..1.0, dim), -20..20_i32)
        .prop_map(|(values, shift)| values.iter().map(|value| value * 2_f32.powi(shift)).collect())
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Zeros of either sign are equal.
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn rows_have_the_published_sizes() {
    let kv = |format, dim| KvRow::new(format, dim, 64).unwrap().bytes();
    assert_eq!(kv(KvFormat::Fp8, 512), 584);
    assert_eq!(kv(KvFormat::F32, 512), 2048);
    assert_eq!(kv(KvFormat::Fp8, 128), 200);
    let key = |format| KeyRow::new(format, 128).unwrap().bytes();
    assert_eq!(
        [KeyFormat::F32, KeyFormat::Bf16, KeyFormat::Fp8, KeyFormat::Fp4].map(key),
        [512, 256, 132, 68]
    );
}

#[test]
fn several_rows_at_once_are_the_same_bytes_as_one_by_one() {
    let values: Vec<f32> = (0..4 * 128_u16).map(|n| f32::from(n) / 7.0 - 30.0).collect();
    let layout = KvRow::new(KvFormat::Fp8, 128, 64).unwrap();
    let keys = KeyRow::new(KeyFormat::Fp4, 128).unwrap();
    let (mut together, mut keys_together) = (vec![0; 4 * layout.bytes()], vec![0; 4 * keys.bytes()]);
    layout.encode(&values, &mut together);
    keys.encode(&values, &mut keys_together);
    for (n, row) in values.chunks(128).enumerate() {
        let (mut alone, mut key_alone) = (vec![0; layout.bytes()], vec![0; keys.bytes()]);
        layout.encode(row, &mut alone);
        keys.encode(row, &mut key_alone);
        assert_eq!(together[n * layout.bytes()..][..layout.bytes()], alone);
        assert_eq!(keys_together[n * keys.bytes()..][..keys.bytes()], key_alone);
    }
    let mut read = vec![0.0; values.len()];
    layout.decode(&together, &mut read);
    let mut rounded = values.clone();
    rounded.chunks_mut(128).for_each(|row| layout.round(row));
    assert_eq!(bits(&read), bits(&rounded));
}

#[test]
fn impossible_widths_are_refused() {
    assert_eq!(KvRow::new(KvFormat::Fp8, 100, 64), Err(RowError::KvWidth { dim: 100, rope: 64 }));
    assert_eq!(KvRow::new(KvFormat::Fp8, 32, 64), Err(RowError::KvWidth { dim: 32, rope: 64 }));
    assert_eq!(KeyRow::new(KeyFormat::Fp4, 96), Err(RowError::KeyWidth { dim: 96 }));
}

#[test]
fn the_parts_of_an_fp8_row_lie_where_the_layout_says() {
    let layout = KvRow::new(KvFormat::Fp8, 512, 64).unwrap();
    let mut row = vec![0.0; 512];
    (row[0], row[64], row[448]) = (3.0, 448.0, 1.0);
    let mut bytes = vec![0xAA; 584];
    layout.encode(&row, &mut bytes);
    // 3.0 with scale 2^-7 is 384 = 0x7C; 448 with scale 1 is 0x7E; bf16 1.0 is 0x3F80.
    assert_eq!((bytes[0], bytes[64], bytes[448], bytes[449]), (0x7C, 0x7E, 0x80, 0x3F));
    assert_eq!((bytes[576], bytes[577], bytes[583]), (120, 127, 0));
}

proptest! {
    #[test]
    fn a_kv_row_read_back_is_the_rounded_row(row in row(256)) {
        for format in [KvFormat::F32, KvFormat::Fp8] {
            let layout = KvRow::new(format, 256, 64).unwrap();
            let mut bytes = vec![0xAA; layout.bytes()];
            let mut read = vec![0.0; 256];
            layout.encode(&row, &mut bytes);
            layout.decode(&bytes, &mut read);
            let mut rounded = row.clone();
            layout.round(&mut rounded);
            prop_assert_eq!(bits(&read), bits(&rounded));
        }
    }

    #[test]
    fn an_index_key_read_back_is_the_rounded_key(key in row(128)) {
        for format in [KeyFormat::F32, KeyFormat::Bf16, KeyFormat::Fp8, KeyFormat::Fp4] {
            let layout = KeyRow::new(format, 128).unwrap();
            let mut rotated = key.clone();
            layout.rotate(&mut rotated);
            let mut bytes = vec![0xAA; layout.bytes()];
            let mut read = vec![0.0; 128];
            layout.encode(&rotated, &mut bytes);
            layout.decode(&bytes, &mut read);
            layout.round(&mut rotated);
            prop_assert_eq!(bits(&read), bits(&rotated), "{:?}", format);
        }
    }

    #[test]
    fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 584)) {
        KvRow::new(KvFormat::Fp8, 512, 64).unwrap().decode(&bytes, &mut vec![0.0; 512]);
        KeyRow::new(KeyFormat::Fp8, 128).unwrap().decode(&bytes[..132], &mut vec![0.0; 128]);
        KeyRow::new(KeyFormat::Fp4, 128).unwrap().decode(&bytes[..68], &mut vec![0.0; 128]);
    }
}
