//! The experts: a router per token, a few routed experts, one shared.
//! In: a lane's `x`. Out: its `y`. Never: a dense pass over experts that no row chose.
//! Rows are sorted by expert, so that each expert's matrices meet all of its rows at once. The routing weight is applied
//! before `w2`, where it decides the FP8 rounding at full precision.
//! Source: deepseek-ai/DeepSeek-V4 `inference/model.py` (Gate, Expert, MoE).

use engine_spec::ModelShape;
use fathom_kernels::linear::Product;
use fathom_kernels::{Ops, Scratch};

use crate::model::Step;
use crate::tap::Tap;
use crate::weights::{Activations, Linear, LoadError, Loader};
use crate::workspace::{Lane, Routed};

#[derive(Debug)]
pub(crate) struct Moe {
    gate: Linear,
    choice: Choice,
    experts: Vec<Expert>,
    shared: Expert,
}

/// How a token finds its experts.
#[derive(Debug)]
enum Choice {
    /// By the token's id: `[vocab, k]`.
    Hash(Vec<u32>),
    /// By score plus this bias.
    Learned(Vec<f32>),
}

#[derive(Debug)]
struct Expert {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Expert {
    fn load(loader: &mut Loader<'_>, prefix: &str, shape: &ModelShape) -> Result<Self, LoadError> {
        let (d, inner) = (shape.hidden_size, shape.moe_intermediate_size);
        Ok(Self {
            gate: loader.linear(&format!("{prefix}w1"), inner, d)?,
            up: loader.linear(&format!("{prefix}w3"), inner, d)?,
            down: loader.linear(&format!("{prefix}w2"), d, inner)?,
        })
    }
}

impl Moe {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        hashed: bool,
        shape: &ModelShape,
    ) -> Result<Self, LoadError> {
        let experts = shape.n_routed_experts;
        let choice = if hashed {
            let table = [shape.vocab_size, shape.num_experts_per_tok];
            Choice::Hash(loader.expert_ids(&format!("{prefix}gate.tid2eid"), table, experts)?)
        } else {
            Choice::Learned(loader.vector(&format!("{prefix}gate.bias"), experts)?)
        };
        Ok(Self {
            gate: loader.plain(&format!("{prefix}gate.weight"), experts, shape.hidden_size)?,
            choice,
            experts: (0..experts)
                .map(|e| Expert::load(loader, &format!("{prefix}experts.{e}."), shape))
                .collect::<Result<_, _>>()?,
            shared: Expert::load(loader, &format!("{prefix}shared_experts."), shape)?,
        })
    }

    pub(crate) fn forward<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, layer: usize, lane: &mut Lane) {
        let shape = step.shape;
        let Lane { tokens, x, y, routed, rounded, scratch, .. } = lane;
        let x = Activations::new(step.ops, step.precision, x, shape.hidden_size, rounded);
        step.ops.products(
            &mut [
                self.gate.product(&x, &mut routed.scores),
                self.shared.gate.product(&x, &mut routed.shared_gate),
                self.shared.up.product(&x, &mut routed.shared_up),
            ],
            scratch,
        );
        self.route(step, tokens, routed);
        step.tap.experts(layer, lane.rows.clone(), &routed.ids);
        self.enter_experts(step, &x, routed, scratch);
        self.leave_experts(step, routed, y, rounded, scratch);
        add_rows(&routed.tokens, &routed.out, shape.hidden_size, y);
    }

    /// Scores to experts and weights, and rows sorted by expert.
    fn route<O: Ops, T: Tap>(&self, step: &Step<'_, O, T>, tokens: &[u32], routed: &mut Routed) {
        let (ops, k, experts) = (step.ops, step.shape.num_experts_per_tok, step.shape.n_routed_experts);
        ops.gate_scores(&mut routed.scores);
        match &self.choice {
            Choice::Hash(table) => {
                for (token, ids) in tokens.iter().zip(routed.ids.chunks_exact_mut(k)) {
                    ids.copy_from_slice(&table[*token as usize * k..][..k]);
                }
            }
            Choice::Learned(bias) => ops.gate_select(&routed.scores, bias, k, &mut routed.ids),
        }
        let scaling = step.shape.routed_scaling_factor;
        ops.gate_weights(&routed.scores, experts, &routed.ids, k, scaling, &mut routed.weights);
        routed.sort_by_expert(k);
    }

    /// First projections of every chosen expert.
    fn enter_experts<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        x: &Activations<'_>,
        routed: &mut Routed,
        scratch: &mut Scratch,
    ) {
        let inner = step.shape.moe_intermediate_size;
        let (mut gate, mut up): (&mut [f32], &mut [f32]) = (&mut routed.gate, &mut routed.up);
        let mut products = Vec::with_capacity(2 * self.experts.len().min(routed.tokens.len()));
        for (expert, span) in self.experts.iter().zip(routed.starts.windows(2)) {
            let tokens = &routed.tokens[span[0]..span[1]];
            if tokens.is_empty() {
                continue;
            }
            let (gate_rows, up_rows);
            (gate_rows, gate) = gate.split_at_mut(tokens.len() * inner);
            (up_rows, up) = up.split_at_mut(tokens.len() * inner);
            products.push(expert.gate.gathered(x, tokens, gate_rows));
            products.push(expert.up.gathered(x, tokens, up_rows));
        }
        step.ops.products(&mut products, scratch);
        let limit = step.shape.swiglu_limit;
        step.ops.swiglu(&mut routed.gate, &routed.up, inner, limit, &routed.row_weights);
        step.ops.swiglu(&mut routed.shared_gate, &routed.shared_up, inner, limit, &[]);
    }

    /// Last projections: routed experts to `routed.out`, the shared one to `y`.
    fn leave_experts<O: Ops, T: Tap>(
        &self,
        step: &Step<'_, O, T>,
        routed: &mut Routed,
        y: &mut [f32],
        rounded: &mut Vec<f32>,
        scratch: &mut Scratch,
    ) {
        let (d, inner) = (step.shape.hidden_size, step.shape.moe_intermediate_size);
        let Routed { starts, gate, shared_gate, rounded_shared, out, .. } = routed;
        let hidden = Activations::new(step.ops, step.precision, gate, inner, rounded);
        let shared = Activations::new(step.ops, step.precision, shared_gate, inner, rounded_shared);
        let mut products: Vec<Product<'_>> = Vec::with_capacity(self.experts.len().min(out.len() / d) + 1);
        let mut out: &mut [f32] = out;
        for (expert, span) in self.experts.iter().zip(starts.windows(2)) {
            if span[0] == span[1] {
                continue;
            }
            let rows;
            (rows, out) = out.split_at_mut((span[1] - span[0]) * d);
            products.push(expert.down.product(&hidden.rows(span[0]..span[1], inner), rows));
        }
        products.push(self.shared.down.product(&shared, y));
        step.ops.products(&mut products, scratch);
    }
}

impl Routed {
    /// A counting sort of all (token, slot) pairs by expert; tokens stay ascending within one.
    fn sort_by_expert(&mut self, k: usize) {
        self.starts.fill(0);
        for id in &self.ids {
            self.starts[*id as usize + 1] += 1;
        }
        for e in 1..self.starts.len() {
            self.starts[e] += self.starts[e - 1];
        }
        for (at, (id, weight)) in self.ids.iter().zip(&self.weights).enumerate() {
            let row = self.starts[*id as usize];
            self.starts[*id as usize] += 1;
            self.tokens[row] = u32::try_from(at / k).unwrap_or(u32::MAX);
            self.row_weights[row] = *weight;
        }
        // Every start now is its expert's end: shift back.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }
}

/// `y[tokens[r], :] += out[r, :]`.
fn add_rows(tokens: &[u32], out: &[f32], width: usize, y: &mut [f32]) {
    for (token, out) in tokens.iter().zip(out.chunks_exact(width)) {
        let y = &mut y[*token as usize * width..][..width];
        for (y, out) in y.iter_mut().zip(out) {
            *y += out;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_expert_and_a_repeated_expert_keeps_both_rows() {
        let mut routed = Routed {
            ids: vec![2, 0, 2, 2, 1, 0],
            weights: vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            starts: vec![0; 5],
            tokens: vec![0; 6],
            row_weights: vec![0.0; 6],
            ..Routed::default()
        };
        routed.sort_by_expert(2);
        assert_eq!(routed.starts, [0, 2, 3, 6, 6]);
        assert_eq!(routed.tokens, [0, 2, 2, 0, 1, 1]);
        assert_eq!(routed.row_weights, [0.2, 0.6, 0.5, 0.1, 0.3, 0.4]);
    }

    #[test]
    fn outputs_of_one_token_add_up() {
        let mut y = [1.0, 1.0, 1.0, 1.0];
        add_rows(&[1, 1], &[1.0, 2.0, 10.0, 20.0], 2, &mut y);
        assert_eq!(y, [1.0, 1.0, 12.0, 23.0]);
    }
}
