use engine_spec::NamedShape;

use super::*;

fn cache(precision: Precision) -> Cache {
    let format = CacheFormat { precision, index_keys: IndexKeyFormat::Fp4 };
    Cache::new(&NamedShape::Needle.shape(), format, 3, 2).unwrap()
}

#[test]
fn every_row_of_a_page_and_of_a_slot_has_a_place_of_its_own() {
    for precision in [Precision::Exact, Precision::Sim] {
        let mut cache = cache(precision);
        let (pages, slot) = ([Page(2), Page(0)], Slot(1));
        let row = |n: u32| (0u32..128).map(|i| ((7 * n + i) % 13) as f32 - 6.0).collect::<Vec<f32>>();
        // Layers of the needle model: window, ratio 4, ratio 128, ratio 4.
        let mut n = 0;
        let mut number = || {
            n += 1;
            n
        };
        let mut written: Vec<(u8, usize, usize, u32)> = Vec::new();
        for layer in [1, 3] {
            for entry in 0..128 {
                written.push((0, layer, entry, number()));
                written.push((1, layer, entry, number()));
            }
        }
        (0..4).for_each(|entry| written.push((0, 2, entry, number())));
        for layer in 0..4 {
            (40..72).for_each(|position| written.push((2, layer, position, number())));
        }
        for &(what, layer, at, n) in &written {
            match what {
                0 => cache.write_entry(&pages, layer, at, &row(n)),
                1 => cache.write_key(&pages, layer, at, &row(n)),
                _ => cache.write_window(slot, layer, at, &row(n)),
            }
        }
        for (what, layer, at, n) in written {
            let (mut found, mut expected) = (vec![0.0; 128], row(n));
            match what {
                0 => cache.read_entries(&pages, layer, at, &mut found),
                1 => cache.read_keys(&pages, layer, at, &mut found),
                _ => cache.read_window(slot, layer, at, &mut found),
            }
            if what == 1 {
                cache.key().round(&mut expected)
            } else {
                cache.round_kv(&mut expected)
            }
            assert_eq!(found, expected, "kind {what}, layer {layer}, row {at}");
        }
        // Several rows at once are the same rows, over the ends of pages and of the ring.
        let singly = |read: &dyn Fn(usize, &mut [f32]), first: usize, count: usize| {
            let mut rows = vec![0.0; count * 128];
            rows.chunks_mut(128).enumerate().for_each(|(i, row)| read(first + i, row));
            let mut at_once = vec![0.0; count * 128];
            read(first, &mut at_once);
            assert_eq!(at_once, rows);
        };
        singly(&|first, rows| cache.read_entries(&pages, 1, first, rows), 3, 120);
        singly(&|first, rows| cache.read_keys(&pages, 3, first, rows), 60, 68);
        singly(&|first, rows| cache.read_entries(&pages, 2, first, rows), 1, 3);
        singly(&|first, rows| cache.read_window(slot, 2, first, rows), 41, 31);
        // The page and the slot that nobody wrote.
        assert!(cache.page(Page(1)).iter().chain(cache.slot(Slot(0))).all(|byte| *byte == 0));
    }
}

#[test]
fn state_rows_of_both_streams_share_a_slot_without_overlap() {
    let mut cache = cache(Precision::Sim);
    let slot = Slot(0);
    let value = |layer: usize, stream: Stream, position: usize| {
        (100 * layer + position) as f32 + if stream == Stream::Main { 0.0 } else { 0.5 }
    };
    let rows = || {
        let csa = [1, 3].into_iter().flat_map(|layer| {
            (20..28).flat_map(move |p| [(layer, Stream::Main, p, 256), (layer, Stream::Index, p, 256)])
        });
        csa.chain((256..384).map(|p| (2, Stream::Main, p, 128)))
    };
    for (layer, stream, position, width) in rows() {
        let v = value(layer, stream, position);
        cache.write_state(slot, layer, stream, position, &vec![v; width], &vec![-v; width]);
    }
    for (layer, stream, position, width) in rows() {
        let (v, mut row) = (value(layer, stream, position), vec![0.0; 2 * width]);
        cache.read_state(slot, layer, stream, position, &mut row);
        assert!(row[..width].iter().all(|x| *x == v) && row[width..].iter().all(|x| *x == -v));
    }
}

#[test]
fn a_pool_that_memory_cannot_hold_is_refused() {
    let format = CacheFormat::default();
    let shape = NamedShape::V4Pro.shape();
    let error = Cache::new(&shape, format, u32::MAX, u32::MAX).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("allocating"), "{error}");
}
