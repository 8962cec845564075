//! Logits to a token.
//! In: one row of logits, [`Sampling`], and where in which answer the token stands. Out: [`Sampled`].
//! Never: a generator that carries state, a panic or a NaN whatever the logits are.
//! Randomness is a function of (seed, choice, position), so it does not matter where, or in which batch, a token
//! is computed. Log probabilities are those of the model: before temperature and filters.
//! Order of the filters: temperature, min_p, top_k, top_p over what is left; the order of vLLM.

use std::cmp::Ordering;

/// JSON has no infinity: an impossible token is reported with this, as other servers do.
pub const LEAST_LOGPROB: f32 = -9999.0;

/// How tokens of one request are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 = always the likeliest token.
    pub temperature: f32,
    /// Keeps the smallest set of likeliest tokens that has this share of the probability. 1 = off.
    pub top_p: f32,
    /// Keeps this many likeliest tokens. 0 = off.
    pub top_k: u32,
    /// Keeps tokens at least this likely, measured against the likeliest. 0 = off.
    pub min_p: f32,
    /// Chosen once per request when the client names none.
    pub seed: u64,
}

/// A drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub id: u32,
    pub logprob: f32,
    /// The likeliest tokens with their log probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Draws the token at `position` of answer `choice`, and tells the `top` likeliest beside it.
///
/// Equal logits are won by the lower id. NaN counts as impossible, infinity as very large. No logits give id 0.
pub fn sample(logits: &[f32], sampling: &Sampling, choice: u32, position: u64, top: u32) -> Sampled {
    let (best, most) = likeliest(logits);
    let id = if sampling.temperature > 0.0 && most > f32::NEG_INFINITY {
        draw(logits, most, sampling, uniform(sampling.seed, choice, position))
    } else {
        best
    };
    let normaliser = normaliser(logits, most);
    let logprob = |logit: f32| (logit - normaliser).max(LEAST_LOGPROB);
    let of_id = logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| clean(logit));
    let top = alternatives(logits, top).into_iter().map(|(id, logit)| (id, logprob(logit))).collect();
    Sampled { id, logprob: logprob(of_id), top }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    /// Probability relative to the likeliest token's.
    weight: f32,
}

/// Likeliest first; the lower id first among equals.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

fn draw(logits: &[f32], most: f32, sampling: &Sampling, uniform: f64) -> u32 {
    let mut candidates = candidates(logits, most, sampling);
    let top_k = sampling.top_k as usize;
    let cut = top_k > 0 && top_k < candidates.len();
    if cut {
        candidates.select_nth_unstable_by(top_k - 1, likelier);
        candidates.truncate(top_k);
    }
    if sampling.top_p < 1.0 {
        keep_nucleus(&mut candidates, sampling.top_p);
    } else if cut {
        candidates.sort_unstable_by(likelier);
    }
    let mut left = uniform * mass(&candidates);
    for candidate in &candidates {
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            return candidate.id;
        }
    }
    // Rounding can leave a crumb of mass after the last one.
    candidates.last().map_or(0, |candidate| candidate.id)
}

/// The tokens that temperature and min_p leave, in order of id. The likeliest is always among them.
fn candidates(logits: &[f32], most: f32, sampling: &Sampling) -> Vec<Candidate> {
    let min_p = sampling.min_p.clamp(0.0, 1.0);
    logits
        .iter()
        .zip(0u32..)
        .map(|(&logit, id)| Candidate { id, weight: ((clean(logit) - most) / sampling.temperature).exp() })
        .filter(|candidate| candidate.weight > 0.0 && candidate.weight >= min_p)
        .collect()
}

/// Cuts to the smallest set of likeliest tokens with at least `top_p` of the mass, likeliest first.
///
/// Sorts block by block: the nucleus is usually a few hundred tokens of a vocabulary of 129,280.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f32) {
    let target = f64::from(top_p) * mass(candidates);
    let (mut sorted, mut block, mut reached) = (0, 256, 0.0);
    while sorted < candidates.len() {
        let end = candidates.len().min(sorted + block);
        if end < candidates.len() {
            candidates[sorted..].select_nth_unstable_by(end - sorted - 1, likelier);
        }
        candidates[sorted..end].sort_unstable_by(likelier);
        for index in sorted..end {
            reached += f64::from(candidates[index].weight);
            if reached >= target {
                candidates.truncate(index + 1);
                return;
            }
        }
        sorted = end;
        block *= 4;
    }
}

fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

fn clean(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

/// The likeliest token and its logit.
fn likeliest(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (&logit, id) in logits.iter().zip(0u32..) {
        if clean(logit) > best.1 {
            best = (id, clean(logit));
        }
    }
    best
}

/// ln of the sum of exponentials: what turns a logit into a log probability.
#[expect(clippy::cast_possible_truncation, reason = "the sum is f64 for its order, the answer is a logit")]
fn normaliser(logits: &[f32], most: f32) -> f32 {
    if most == f32::NEG_INFINITY {
        return 0.0;
    }
    let sum: f64 = logits.iter().map(|&logit| f64::from((clean(logit) - most).exp())).sum();
    (f64::from(most) + sum.ln()).min(f64::from(f32::MAX)) as f32
}

/// The `top` largest logits, largest first, the lower id first among equals.
fn alternatives(logits: &[f32], top: u32) -> Vec<(u32, f32)> {
    let top = (top as usize).min(logits.len());
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(top);
    if top == 0 {
        return best;
    }
    for (&logit, id) in logits.iter().zip(0u32..) {
        let logit = clean(logit);
        if best.len() < top || best.last().is_some_and(|last| logit > last.1) {
            let place = best.partition_point(|other| other.1 >= logit);
            best.truncate(top - 1);
            best.insert(place, (id, logit));
        }
    }
    best
}

/// A number in [0, 1) that depends on nothing but its arguments.
fn uniform(seed: u64, choice: u32, position: u64) -> f64 {
    let bits = mix(mix(mix(seed) ^ u64::from(choice)) ^ position);
    // 53 bits: all that an f64 below 1 can tell apart.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// One step of SplitMix64 (Steele, Lea, Flood 2014): every input bit moves every output bit.
fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
