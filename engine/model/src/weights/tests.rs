//! Good checkpoints in every shape, and bad ones.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::golden::{exact, load, testdata};
use crate::{ModelOptions, Page, Progress, Runtime, Segment, Slot, Want};

const MODEL: &str = "tiny-published-exact";

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(model: &str) -> Tensors {
    let bytes = std::fs::read(testdata(model).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let owned = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    tensors.tensors().into_iter().map(|(name, view)| (name, owned(view))).collect()
}

fn write(file: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, file).unwrap();
}

/// A folder with the model's configuration and these tensors in one file.
fn folder(model: &str, tensors: &Tensors) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(testdata(model).join("config.json"), dir.path().join("config.json")).unwrap();
    write(&dir.path().join("model.safetensors"), tensors);
    dir
}

fn open(dir: &Path) -> Result<Runtime, crate::LoadError> {
    Runtime::load(dir, &exact(), 1, 1, &mut |_| {})
}

/// The chain of messages of a refusal.
fn refusal(dir: &Path) -> String {
    let mut error: &dyn std::error::Error = &open(dir).unwrap_err();
    let mut text = error.to_string();
    while let Some(source) = error.source() {
        text = format!("{text}: {source}");
        error = source;
    }
    text
}

fn logits(runtime: &mut Runtime) -> Vec<f32> {
    let tokens: Vec<u32> = (2..202).collect();
    let segment = Segment { slot: Slot(0), pages: &[Page(0)], start: 0, tokens: &tokens, want: Want::All };
    runtime.forward(&[segment]).unwrap().values
}

/// Splits tensors over three files with an index, as published checkpoints are.
fn shards(model: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(testdata(model).join("config.json"), dir.path().join("config.json")).unwrap();
    let mut map = serde_json::Map::new();
    let mut parts: [Tensors; 3] = Default::default();
    for (i, (name, tensor)) in read(model).into_iter().enumerate() {
        let file = format!("model-0000{}-of-00003.safetensors", i % 3 + 1);
        map.insert(name.clone(), file.into());
        parts[i % 3].insert(name, tensor);
    }
    for (i, part) in parts.iter().enumerate() {
        write(&dir.path().join(format!("model-0000{}-of-00003.safetensors", i + 1)), part);
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    dir
}

#[test]
fn three_shards_load_equal_to_one_file() {
    let dir = shards(MODEL);
    let (mut sharded, mut single) = (open(dir.path()).unwrap(), load(MODEL, &exact(), 1, 1));
    assert_eq!(sharded.fingerprint(), single.fingerprint());
    assert_eq!(logits(&mut sharded), logits(&mut single));
}

#[test]
fn a_missing_shard_is_named_with_what_it_should_hold() {
    let dir = shards(MODEL);
    std::fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    let text = refusal(dir.path());
    assert!(text.contains("model-00002-of-00003.safetensors is missing; it should hold"), "{text}");
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let dir = shards(MODEL);
    let index = dir.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    let moved = text.replacen("model-00001", "model-00002", 1);
    std::fs::write(&index, &moved).unwrap();
    assert!(refusal(dir.path()).contains("which does not hold it"), "{}", refusal(dir.path()));
    std::fs::write(&index, text.replacen("model-00001-of", "../../etc/model-00001-of", 1)).unwrap();
    assert!(refusal(dir.path()).contains("is no file name"), "{}", refusal(dir.path()));
    std::fs::write(&index, "{\"weight_map\": 3}").unwrap();
    assert!(refusal(dir.path()).contains("weight_map"), "{}", refusal(dir.path()));
}

#[test]
fn experts_in_fp8_load_as_well_as_in_fp4() {
    use fathom_kernels::linear::{Weight, WeightFormat};
    let mut tensors = read(MODEL);
    let experts: Vec<String> =
        tensors.keys().filter(|n| n.contains(".experts.") && n.ends_with(".weight")).cloned().collect();
    let mut bf16 = tensors.clone();
    for name in experts {
        let stem = name.trim_end_matches(".weight");
        let (rows, cols) = (tensors[&name].1[0], 2 * tensors[&name].1[1]);
        let (data, scales) = (tensors[&name].2.clone(), tensors[&format!("{stem}.scale")].2.clone());
        let fp4 = Weight::new(WeightFormat::Fp4, rows, cols, data.into(), scales.into()).unwrap();
        let mut values = vec![0.0; rows * cols];
        values.chunks_mut(cols).enumerate().for_each(|(o, row)| fp4.read_row(o, row));
        let fp8 = Weight::quantise_fp8(rows, cols, &values).unwrap();
        let mut again = vec![0.0; rows * cols];
        again.chunks_mut(cols).enumerate().for_each(|(o, row)| fp8.read_row(o, row));
        let blocks = vec![rows.div_ceil(128), cols.div_ceil(128)];
        tensors.insert(name.clone(), (Dtype::F8_E4M3, vec![rows, cols], fp8.data().to_vec()));
        tensors.insert(format!("{stem}.scale"), (Dtype::F8_E8M0, blocks, fp8.scales().to_vec()));
        // The same values in bf16, which holds any FP8 value.
        let widened = again.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        bf16.insert(name.clone(), (Dtype::BF16, vec![rows, cols], widened));
        bf16.remove(&format!("{stem}.scale"));
    }
    let (fp8, bf16) = (folder(MODEL, &tensors), folder(MODEL, &bf16));
    assert_eq!(logits(&mut open(fp8.path()).unwrap()), logits(&mut open(bf16.path()).unwrap()));
}

/// One change to a good checkpoint, and what the refusal must say.
#[test]
fn a_damaged_tensor_is_named_with_what_was_expected() {
    type Change = fn(&mut Tensors);
    let cases: [(Change, &[&str]); 12] = [
        (|t| drop(t.remove("layers.2.attn.wkv.weight")), &["layers.2.attn.wkv.weight is missing"]),
        (
            |t| drop(t.remove("layers.2.attn.wkv.scale")),
            &["layers.2.attn.wkv.scale is missing", "F8_E8M0 [1, 1]"],
        ),
        (|t| drop(t.remove("layers.3.ffn.gate.bias")), &["layers.3.ffn.gate.bias is missing"]),
        (
            |t| t.get_mut("layers.1.attn.wq_b.weight").unwrap().1 = vec![256, 256],
            &["layers.1.attn.wq_b.weight is F8_E4M3 [256, 256]", "[512, 128]"],
        ),
        (
            |t| t.get_mut("norm.weight").unwrap().0 = Dtype::F16,
            &["norm.weight is F16 [128]", "expected BF16 or F32 [128]"],
        ),
        (
            |t| t.get_mut("layers.0.attn.wq_a.weight").unwrap().0 = Dtype::F8_E5M2,
            &["layers.0.attn.wq_a.weight is F8_E5M2"],
        ),
        (
            |t| t.get_mut("layers.0.ffn.experts.1.w2.scale").unwrap().0 = Dtype::U8,
            &["layers.0.ffn.experts.1.w2.scale is U8 [128, 4]", "F8_E8M0 [128, 4]"],
        ),
        (
            |t| t.get_mut("layers.0.ffn.experts.1.w2.scale").unwrap().2[7] = 255,
            &["layers.0.ffn.experts.1.w2.weight holds an impossible value", "byte 7"],
        ),
        (
            |t| t.get_mut("layers.0.ffn.gate.tid2eid").unwrap().2[8] = 4,
            &["layers.0.ffn.gate.tid2eid holds an impossible value", "element 1 is no expert below 4"],
        ),
        (
            |t| t.get_mut("layers.1.ffn.gate.tid2eid").unwrap().2[15] = 0x80,
            &["layers.1.ffn.gate.tid2eid", "element 1"],
        ),
        (
            |t| drop(t.insert("layers.4.attn_norm.weight".into(), (Dtype::BF16, vec![1], vec![0, 0]))),
            &["1 tensors are not part of DeepSeek V4", "layers.4.attn_norm.weight"],
        ),
        (
            |t| {
                *t =
                    BTreeMap::from([("model.embed_tokens.weight".into(), (Dtype::BF16, vec![1], vec![0, 0]))])
            },
            &["embed.weight is missing", "model.embed_tokens.weight, which is another model's naming"],
        ),
    ];
    for (change, says) in cases {
        let mut tensors = read(MODEL);
        change(&mut tensors);
        let text = refusal(folder(MODEL, &tensors).path());
        assert!(says.iter().all(|part| text.contains(part)), "{text:?} does not say {says:?}");
    }
}

#[test]
fn drafts_that_are_not_used_are_skipped() {
    let mut tensors = read(MODEL);
    tensors.insert("mtp.0.anything".into(), (Dtype::BF16, vec![1], vec![0, 0]));
    let dir = folder(MODEL, &tensors);
    assert_eq!(logits(&mut open(dir.path()).unwrap()), logits(&mut load(MODEL, &exact(), 1, 1)));
}

#[test]
fn a_promised_draft_layer_must_be_there() {
    let mut tensors = read("tiny-mtp-published-exact");
    tensors.remove("mtp.0.h_proj.weight").unwrap();
    let text = refusal(folder("tiny-mtp-published-exact", &tensors).path());
    assert!(text.contains("mtp.0.h_proj.weight is missing"), "{text}");
}

#[test]
fn folders_without_a_part_of_a_checkpoint_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).contains("config.json"), "{}", refusal(dir.path()));
    std::fs::copy(testdata(MODEL).join("config.json"), dir.path().join("config.json")).unwrap();
    assert!(refusal(dir.path()).contains("has no weights"), "{}", refusal(dir.path()));
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    assert!(refusal(dir.path()).contains("llama"), "{}", refusal(dir.path()));
}

#[test]
fn damaged_files_are_refused() {
    let dir = folder(MODEL, &read(MODEL));
    let file = dir.path().join("model.safetensors");
    let good = std::fs::read(&file).unwrap();
    for (bytes, says) in [
        (vec![], "model.safetensors"),
        (vec![1, 2, 3], "has 3 bytes; a header needs at least 8"),
        (good[..1000].to_vec(), "longer than the whole file of 1000 bytes"),
        (good[..good.len() - 1].to_vec(), "cut short or damaged"),
        ([good.as_slice(), &[0]].concat(), "cut short or damaged"),
        ([&u64::MAX.to_le_bytes(), &good[8..]].concat(), "larger than 100 MB"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let text = refusal(dir.path());
        assert!(text.contains("model.safetensors") && text.contains(says), "{text:?} does not say {says:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes in place of the header's first kilobytes load or are refused; nothing panics.
    #[test]
    fn a_file_damaged_anywhere_in_its_header_never_panics(
        at in 0usize..4000,
        bytes in proptest::collection::vec(any::<u8>(), 1..6),
    ) {
        let dir = folder(MODEL, &read(MODEL));
        let file = dir.path().join("model.safetensors");
        let mut damaged = std::fs::read(&file).unwrap();
        damaged[at..at + bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&file, damaged).unwrap();
        let _refused_or_not = open(dir.path());
    }
}

#[test]
fn progress_counts_every_tensor_once() {
    let mut seen: Vec<Progress> = Vec::new();
    let options: ModelOptions = exact();
    Runtime::load(&testdata(MODEL), &options, 1, 1, &mut |progress| seen.push(progress)).unwrap();
    let tensors = read(MODEL);
    assert!(seen.iter().enumerate().all(|(i, p)| p.tensors == i + 1 && p.total == tensors.len()));
    assert_eq!(seen.len(), tensors.len());
    let bytes: usize = tensors.values().map(|(_, _, data)| data.len()).sum();
    assert_eq!(seen.last().unwrap().bytes, bytes as u64);
}
