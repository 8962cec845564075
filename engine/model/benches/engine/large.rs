//! The peer's random model of 303 million parameters, written in the published layout.
//! Values only need the right magnitude: norms keep activations bounded, so bf16 and packed weights are drawn as codes.

use std::collections::BTreeMap;
use std::path::Path;

use engine_spec::{LayerKind, ModelShape};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

/// Writes `config.json` and `model.safetensors` into `dir`; FP8 and FP4 when `packed`, else bf16.
pub(crate) fn write(dir: &Path, packed: bool) -> Result<(), Failure> {
    let config = config();
    std::fs::write(dir.join("config.json"), config.to_string())?;
    let shape = ModelShape::from_config_json(&config.to_string())?;
    let mut writer = Writer { packed, tensors: BTreeMap::new(), state: 0x9E37_79B9_7F4A_7C15 };
    writer.model(&shape);
    let views = writer.tensors.iter().map(|(name, (dtype, shape, data))| {
        Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), data)?))
    });
    let views: Vec<(&str, TensorView<'_>)> = views.collect::<Result<_, Failure>>()?;
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors"))?;
    Ok(())
}

fn config() -> serde_json::Value {
    json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "bos_token_id": 0, "eos_token_id": 1,
        "compress_ratios": [0, 4, 128, 0, 4, 128, 0, 4, 0], "compress_rope_theta": 160_000, "hc_eps": 1e-6,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_size": 1024, "index_head_dim": 128,
        "index_n_heads": 8, "index_topk": 512, "max_position_embeddings": 32_768, "moe_intermediate_size": 512,
        "n_routed_experts": 16, "n_shared_experts": 1, "num_attention_heads": 8, "num_experts_per_tok": 4,
        "num_hidden_layers": 8, "num_hash_layers": 2, "num_nextn_predict_layers": 0, "o_groups": 4,
        "o_lora_rank": 512, "q_lora_rank": 512, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16,
            "original_max_position_embeddings": 2048, "type": "yarn"},
        "rope_theta": 10_000, "routed_scaling_factor": 1.5, "sliding_window": 128, "swiglu_limit": 10.0,
        "vocab_size": 8192,
    })
}

struct Writer {
    packed: bool,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    state: u64,
}

impl Writer {
    fn model(&mut self, shape: &ModelShape) {
        let (vocab, d) = (shape.vocab_size, shape.hidden_size);
        self.bf16("embed.weight", vocab, d);
        self.bf16("head.weight", vocab, d);
        self.ones("norm.weight", d);
        self.hyper("hc_head", 4, 1, d);
        for layer in 0..shape.num_hidden_layers {
            let prefix = format!("layers.{layer}.");
            self.ones(&format!("{prefix}attn_norm.weight"), d);
            self.ones(&format!("{prefix}ffn_norm.weight"), d);
            self.hyper(&format!("{prefix}hc_attn"), 24, 3, d);
            self.hyper(&format!("{prefix}hc_ffn"), 24, 3, d);
            self.attention(&format!("{prefix}attn."), shape.layer_kind(layer), shape);
            self.moe(&format!("{prefix}ffn."), layer < shape.num_hash_layers, shape);
        }
    }

    fn attention(&mut self, prefix: &str, kind: LayerKind, shape: &ModelShape) {
        let (d, dim, q) = (shape.hidden_size, shape.head_dim, shape.q_lora_rank);
        let heads = shape.num_attention_heads;
        let latent = shape.o_groups * shape.o_lora_rank;
        self.fp8(&format!("{prefix}wq_a"), q, d);
        self.ones(&format!("{prefix}q_norm.weight"), q);
        self.fp8(&format!("{prefix}wq_b"), heads * dim, q);
        self.fp8(&format!("{prefix}wkv"), dim, d);
        self.ones(&format!("{prefix}kv_norm.weight"), dim);
        self.f32(&format!("{prefix}attn_sink"), vec![heads]);
        self.fp8(&format!("{prefix}wo_a"), latent, heads * dim / shape.o_groups);
        self.fp8(&format!("{prefix}wo_b"), d, latent);
        if kind != LayerKind::Window {
            self.compressor(&format!("{prefix}compressor."), kind, dim, d);
        }
        if kind == LayerKind::Csa {
            let (index_heads, index_dim) = (shape.index_n_heads, shape.index_head_dim);
            self.fp8(&format!("{prefix}indexer.wq_b"), index_heads * index_dim, q);
            self.bf16(&format!("{prefix}indexer.weights_proj.weight"), index_heads, d);
            self.compressor(&format!("{prefix}indexer.compressor."), kind, index_dim, d);
        }
    }

    fn compressor(&mut self, prefix: &str, kind: LayerKind, dim: usize, d: usize) {
        let width = if kind == LayerKind::Csa { 2 * dim } else { dim };
        self.f32(&format!("{prefix}ape"), vec![kind.ratio(), width]);
        self.bf16(&format!("{prefix}wkv.weight"), width, d);
        self.bf16(&format!("{prefix}wgate.weight"), width, d);
        self.ones(&format!("{prefix}norm.weight"), dim);
    }

    fn moe(&mut self, prefix: &str, hashed: bool, shape: &ModelShape) {
        let (d, inner, experts) = (shape.hidden_size, shape.moe_intermediate_size, shape.n_routed_experts);
        self.bf16(&format!("{prefix}gate.weight"), experts, d);
        if hashed {
            let (vocab, k) = (shape.vocab_size, shape.num_experts_per_tok);
            let ids = (0..vocab * k).flat_map(|i| {
                let first = (i / k).wrapping_mul(0x9E37_79B9) >> 9;
                ((first + i % k) % experts).to_le_bytes()
            });
            let ids = ids.collect();
            self.put(format!("{prefix}gate.tid2eid"), Dtype::I64, vec![vocab, k], ids);
        } else {
            self.f32(&format!("{prefix}gate.bias"), vec![experts]);
        }
        for (name, rows, cols) in [("w1", inner, d), ("w2", d, inner), ("w3", inner, d)] {
            self.fp8(&format!("{prefix}shared_experts.{name}"), rows, cols);
            for expert in 0..experts {
                self.fp4(&format!("{prefix}experts.{expert}.{name}"), rows, cols);
            }
        }
    }

    fn hyper(&mut self, prefix: &str, outputs: usize, scales: usize, d: usize) {
        self.f32(&format!("{prefix}_fn"), vec![outputs, 4 * d]);
        self.f32(&format!("{prefix}_base"), vec![outputs]);
        self.f32(&format!("{prefix}_scale"), vec![scales]);
    }

    fn fp8(&mut self, stem: &str, rows: usize, cols: usize) {
        if !self.packed {
            return self.bf16(&format!("{stem}.weight"), rows, cols);
        }
        // Codes of magnitude 1/8 up to 2 and a scale that brings them to the magnitude of a projection.
        let codes = (0..rows * cols).map(|_| self.byte() & 0x9F | 0x20).collect();
        let scales = vec![scale_near(1.0 / (cols as f32).sqrt()); rows.div_ceil(128) * cols.div_ceil(128)];
        let blocks = vec![rows.div_ceil(128), cols.div_ceil(128)];
        self.put(format!("{stem}.weight"), Dtype::F8_E4M3, vec![rows, cols], codes);
        self.put(format!("{stem}.scale"), Dtype::F8_E8M0, blocks, scales);
    }

    fn fp4(&mut self, stem: &str, rows: usize, cols: usize) {
        if !self.packed {
            return self.bf16(&format!("{stem}.weight"), rows, cols);
        }
        let codes = (0..rows * cols / 2).map(|_| self.byte()).collect();
        let scales = vec![scale_near(0.3 / (cols as f32).sqrt()); rows * cols / 32];
        self.put(format!("{stem}.weight"), Dtype::I8, vec![rows, cols / 2], codes);
        self.put(format!("{stem}.scale"), Dtype::F8_E8M0, vec![rows, cols / 32], scales);
    }

    fn bf16(&mut self, name: &str, rows: usize, cols: usize) {
        let size = 1.7 / (cols as f32).sqrt();
        let data = (0..rows * cols).flat_map(|_| half(self.uniform() * size)).collect();
        self.put(name.to_owned(), Dtype::BF16, vec![rows, cols], data);
    }

    fn ones(&mut self, name: &str, len: usize) {
        self.put(name.to_owned(), Dtype::BF16, vec![len], half(1.0).repeat(len));
    }

    fn f32(&mut self, name: &str, shape: Vec<usize>) {
        let width = shape.last().copied().unwrap_or(1);
        let size = if shape.len() > 1 { 1.7 / (width as f32).sqrt() } else { 0.5 };
        let count = shape.iter().product();
        let data = (0usize..count).flat_map(|_| (self.uniform() * size).to_le_bytes()).collect();
        self.put(name.to_owned(), Dtype::F32, shape, data);
    }

    fn put(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, data: Vec<u8>) {
        self.tensors.insert(name, (dtype, shape, data));
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }

    /// In -1..1.
    fn uniform(&mut self) -> f32 {
        let bits = u16::from_le_bytes([self.next().to_le_bytes()[6], self.next().to_le_bytes()[7]]);
        f32::from(bits) / 32_768.0 - 1.0
    }

    /// xorshift64.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

fn half(x: f32) -> [u8; 2] {
    let [_, _, low, high] = x.to_le_bytes();
    [low, high]
}

/// The e8m0 byte of the power of two below `x`.
fn scale_near(x: f32) -> u8 {
    x.to_le_bytes()[3] << 1 | x.to_le_bytes()[2] >> 7
}
