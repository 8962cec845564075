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
