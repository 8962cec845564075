//! The dimensions of a DeepSeek V4 model, as its published `config.json` gives them.
//! In: the text of `config.json`. Out: a validated [`ModelShape`]; the published sizes by name.
//! Never: file access, parity rules about layers (the kind of a layer is read from `compress_ratios`).
//! Source: DeepSeek-V4-Flash and -Pro `config.json`.

use serde::{Deserialize, Serialize};

/// All dimensions the engine and the planner need; field names are those of the published `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width d of one residual stream.
    pub hidden_size: usize,
    /// Layers of the main stack; MTP layers are not counted.
    pub num_hidden_layers: usize,
    /// Query heads H.
    pub num_attention_heads: usize,
    /// Width D of a query head and of the one shared KV row.
    pub head_dim: usize,
    /// The last so many of `head_dim` (and of `index_head_dim`) are rotated.
    pub qk_rope_head_dim: usize,
    pub q_lora_rank: usize,
    pub o_groups: usize,
    pub o_lora_rank: usize,
    /// Raw keys a query sees, its own included.
    pub sliding_window: usize,
    /// Per layer 0, 4 or 128; entries after the main stack belong to MTP layers.
    pub compress_ratios: Vec<usize>,
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    /// Compressed entries a query of a ratio-4 layer attends to.
    pub index_topk: usize,
    pub rope_theta: f64,
    pub compress_rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub max_position_embeddings: usize,
    /// Residual streams of the hyper-connections.
    pub hc_mult: usize,
    pub hc_sinkhorn_iters: usize,
    pub hc_eps: f32,
    pub n_routed_experts: usize,
    pub num_experts_per_tok: usize,
    pub n_shared_experts: usize,
    pub moe_intermediate_size: usize,
    /// The first so many layers choose experts by token id.
    pub num_hash_layers: usize,
    pub routed_scaling_factor: f32,
    pub swiglu_limit: f32,
    pub rms_norm_eps: f32,
    #[serde(default)]
    pub num_nextn_predict_layers: usize,
    pub bos_token_id: u32,
    pub eos_token_id: u32,
}

/// YaRN parameters, used on compressed layers only and without an amplitude factor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeScaling {
    pub factor: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub original_max_position_embeddings: usize,
}

/// What a layer attends to besides its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerKind {
    /// Ratio 0: the window only.
    Window,
    /// Ratio 4, compressed sparse attention: the entries that the indexer selects.
    Csa,
    /// Ratio 128, heavily compressed attention: all visible entries.
    Hca,
}

impl LayerKind {
    /// Tokens per compressed entry; 0 where there are none.
    pub fn ratio(self) -> usize {
        match self {
            LayerKind::Window => 0,
            LayerKind::Csa => 4,
            LayerKind::Hca => 128,
        }
    }
}

/// Why a `config.json` is no DeepSeek V4 that this engine can run.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    #[error("config.json is not a model configuration: {0}")]
    Parse(String),
    #[error("config.json describes model_type {found:?}; expected \"deepseek_v4\"")]
    NotDeepSeekV4 { found: String },
    #[error("config.json: {field} is {found}; expected {expected}")]
    Invalid { field: &'static str, found: String, expected: String },
}

/// One field in which two shapes differ; `Display` is a clause for a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}, expected {expected}")]
pub struct ShapeDifference {
    pub field: String,
    pub found: String,
    pub expected: String,
}

impl ModelShape {
    /// Reads the text of a published `config.json`. Fields that do not change the shape are ignored.
    ///
    /// # Errors
    /// [`ShapeError`] when it is no JSON object, another model type, or has dimensions that cannot be computed.
    pub fn from_config_json(text: &str) -> Result<Self, ShapeError> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| ShapeError::Parse(e.to_string()))?;
        match value.get("model_type").and_then(|v| v.as_str()) {
            Some("deepseek_v4") => {}
            found => {
                return Err(ShapeError::NotDeepSeekV4 { found: found.unwrap_or("nothing").to_owned() });
            }
        }
        let shape: ModelShape =
            serde_json::from_value(value).map_err(|e| ShapeError::Parse(e.to_string()))?;
        shape.validate()?;
        Ok(shape)
    }

    fn validate(&self) -> Result<(), ShapeError> {
        let positive = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("q_lora_rank", self.q_lora_rank),
            ("o_groups", self.o_groups),
            ("o_lora_rank", self.o_lora_rank),
            ("sliding_window", self.sliding_window),
            ("index_n_heads", self.index_n_heads),
            ("index_topk", self.index_topk),
            ("max_position_embeddings", self.max_position_embeddings),
            ("hc_sinkhorn_iters", self.hc_sinkhorn_iters),
            ("n_routed_experts", self.n_routed_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        ];
        for (field, found) in positive {
            expect(found > 0, field, found, "a positive number")?;
        }
        expect(self.hc_mult == 4, "hc_mult", self.hc_mult, "4")?;
        expect(self.n_shared_experts == 1, "n_shared_experts", self.n_shared_experts, "1")?;
        expect(
            self.qk_rope_head_dim.is_multiple_of(2) && self.qk_rope_head_dim < self.head_dim,
            "qk_rope_head_dim",
            self.qk_rope_head_dim,
            "an even number below head_dim",
        )?;
        // FP8 tiles of the cached row are 64 wide.
        expect(
            self.nope_dim().is_multiple_of(64),
            "head_dim",
            self.head_dim,
            "qk_rope_head_dim plus a multiple of 64",
        )?;
        expect(
            self.index_head_dim.is_power_of_two() && self.index_head_dim >= self.qk_rope_head_dim.max(32),
            "index_head_dim",
            self.index_head_dim,
            "a power of two (Hadamard), at least 32 and qk_rope_head_dim",
        )?;
        expect(
            self.num_attention_heads.is_multiple_of(self.o_groups),
            "o_groups",
            self.o_groups,
            "a divisor of num_attention_heads",
        )?;
        // FP4 expert rows are packed in groups of 32 inputs.
        expect(self.hidden_size.is_multiple_of(32), "hidden_size", self.hidden_size, "a multiple of 32")?;
        expect(
            self.moe_intermediate_size > 0 && self.moe_intermediate_size.is_multiple_of(32),
            "moe_intermediate_size",
            self.moe_intermediate_size,
            "a positive multiple of 32",
        )?;
        expect(
            self.num_experts_per_tok <= self.n_routed_experts,
            "num_experts_per_tok",
            self.num_experts_per_tok,
            "at most n_routed_experts",
        )?;
        expect(
            self.compress_ratios.len() >= self.num_hidden_layers,
            "compress_ratios",
            format!("{} entries", self.compress_ratios.len()),
            "an entry for every layer",
        )?;
        for &ratio in &self.compress_ratios {
            expect(matches!(ratio, 0 | 4 | 128), "compress_ratios", ratio, "0, 4 or 128")?;
        }
        Ok(())
    }

    /// The kind of main-stack layer `layer`.
    ///
    /// # Panics
    /// When `layer` is not below `num_hidden_layers`; validation gave every layer an entry.
    pub fn layer_kind(&self, layer: usize) -> LayerKind {
        match self.compress_ratios[layer] {
            4 => LayerKind::Csa,
            128 => LayerKind::Hca,
            _ => LayerKind::Window,
        }
    }

    /// The kinds of the main stack, in order.
    pub fn layer_kinds(&self) -> impl Iterator<Item = LayerKind> + '_ {
        (0..self.num_hidden_layers).map(|layer| self.layer_kind(layer))
    }

    /// Dimensions of a KV row that are not rotated (448 of 512 in the published models).
    pub fn nope_dim(&self) -> usize {
        self.head_dim - self.qk_rope_head_dim
    }

    /// The first field in which this shape (found) differs from `expected`.
    pub fn difference(&self, expected: &ModelShape) -> Option<ShapeDifference> {
        let found = serde_json::to_value(self).ok()?;
        let expected = serde_json::to_value(expected).ok()?;
        let (found, expected) = (found.as_object()?, expected.as_object()?);
        found.iter().find(|(field, value)| expected.get(*field) != Some(value)).map(|(field, value)| {
            ShapeDifference {
                field: field.clone(),
                found: value.to_string(),
                expected: expected.get(field).map_or_else(|| "absent".to_owned(), ToString::to_string),
            }
        })
    }
}

fn expect(
    holds: bool,
    field: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
) -> Result<(), ShapeError> {
    if holds {
        return Ok(());
    }
    Err(ShapeError::Invalid { field, found: found.to_string(), expected: expected.into() })
}

/// Shapes known by name, so that a planner that cannot open the model's files can still size it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NamedShape {
    V4Flash,
    V4Pro,
    Needle,
}

impl NamedShape {
    pub const ALL: [NamedShape; 3] = [NamedShape::V4Flash, NamedShape::V4Pro, NamedShape::Needle];

    /// The shape that a published served-model name stands for.
    pub fn from_model_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().trim_start_matches("deepseek-ai/") {
            "deepseek-v4-flash" => Some(NamedShape::V4Flash),
            "deepseek-v4-pro" => Some(NamedShape::V4Pro),
            "needle" => Some(NamedShape::Needle),
            _ => None,
        }
    }

    pub fn shape(self) -> ModelShape {
        match self {
            NamedShape::V4Flash => flash(),
            NamedShape::V4Pro => pro(),
            NamedShape::Needle => needle(),
        }
    }
}

impl std::fmt::Display for NamedShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NamedShape::V4Flash => "V4Flash",
            NamedShape::V4Pro => "V4Pro",
            NamedShape::Needle => "Needle",
        })
    }
}

fn flash() -> ModelShape {
    let mut compress_ratios = vec![0, 0];
    compress_ratios.extend([4, 128].repeat(20));
    compress_ratios.extend([4, 0]);
    ModelShape {
        vocab_size: 129_280,
        hidden_size: 4096,
        num_hidden_layers: 43,
        num_attention_heads: 64,
        head_dim: 512,
        qk_rope_head_dim: 64,
        q_lora_rank: 1024,
        o_groups: 8,
        o_lora_rank: 1024,
        sliding_window: 128,
        compress_ratios,
        index_n_heads: 64,
        index_head_dim: 128,
        index_topk: 512,
        rope_theta: 10_000.0,
        compress_rope_theta: 160_000.0,
        rope_scaling: RopeScaling {
            factor: 16.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_position_embeddings: 65_536,
        },
        max_position_embeddings: 1_048_576,
        hc_mult: 4,
        hc_sinkhorn_iters: 20,
        hc_eps: 1e-6,
        n_routed_experts: 256,
        num_experts_per_tok: 6,
        n_shared_experts: 1,
        moe_intermediate_size: 2048,
        num_hash_layers: 3,
        routed_scaling_factor: 1.5,
        swiglu_limit: 10.0,
        rms_norm_eps: 1e-6,
        num_nextn_predict_layers: 1,
        bos_token_id: 0,
        eos_token_id: 1,
    }
}

fn pro() -> ModelShape {
    let mut compress_ratios = vec![128, 128];
    compress_ratios.extend([4, 128].repeat(29));
    compress_ratios.extend([4, 0]);
    ModelShape {
        hidden_size: 7168,
        num_hidden_layers: 61,
        num_attention_heads: 128,
        q_lora_rank: 1536,
        o_groups: 16,
        compress_ratios,
        index_topk: 1024,
        n_routed_experts: 384,
        moe_intermediate_size: 3072,
        routed_scaling_factor: 2.5,
        ..flash()
    }
}

/// The small trained model that the tests and the quickstart use.
fn needle() -> ModelShape {
    ModelShape {
        vocab_size: 896,
        hidden_size: 128,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        head_dim: 128,
        q_lora_rank: 128,
        o_groups: 2,
        o_lora_rank: 64,
        sliding_window: 32,
        compress_ratios: vec![0, 4, 128, 4, 0],
        index_n_heads: 4,
        index_topk: 64,
        rope_scaling: RopeScaling { original_max_position_embeddings: 2048, ..flash().rope_scaling },
        max_position_embeddings: 32_768,
        n_routed_experts: 4,
        num_experts_per_tok: 2,
        moe_intermediate_size: 128,
        num_hash_layers: 2,
        num_nextn_predict_layers: 0,
        ..flash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flash_has_21_csa_and_20_hca_layers() {
        let shape = flash();
        shape.validate().unwrap();
        assert_eq!(shape.layer_kinds().filter(|k| *k == LayerKind::Csa).count(), 21);
        assert_eq!(shape.layer_kinds().filter(|k| *k == LayerKind::Hca).count(), 20);
        assert_eq!(shape.compress_ratios.len(), 44);
    }

    #[test]
    fn pro_has_30_csa_and_31_hca_layers() {
        let shape = pro();
        shape.validate().unwrap();
        assert_eq!(shape.layer_kinds().filter(|k| *k == LayerKind::Csa).count(), 30);
        assert_eq!(shape.layer_kinds().filter(|k| *k == LayerKind::Hca).count(), 31);
    }

    #[test]
    fn another_model_type_is_refused_by_name() {
        let error = ModelShape::from_config_json(r#"{"model_type":"llama"}"#).unwrap_err().to_string();
        assert!(error.contains("llama") && error.contains("deepseek_v4"), "{error}");
    }

    #[test]
    fn a_difference_names_the_field() {
        let other = ModelShape { index_topk: 1024, ..flash() };
        let difference = other.difference(&flash()).unwrap();
        assert_eq!(difference.to_string(), "index_topk is 1024, expected 512");
        assert_eq!(flash().difference(&flash()), None);
    }

    #[test]
    fn a_zero_dimension_and_a_foreign_ratio_are_refused() {
        let mut shape = needle();
        shape.compress_ratios[1] = 8;
        assert!(shape.validate().unwrap_err().to_string().contains("compress_ratios is 8"));
        let shape = ModelShape { vocab_size: 0, ..needle() };
        assert!(shape.validate().unwrap_err().to_string().contains("vocab_size"));
    }
}
