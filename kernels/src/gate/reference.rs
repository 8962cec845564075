//! Routing and activation by their formulas, in f64.

/// `sqrt(softplus(x))`.
pub fn score(logit: f64) -> f64 {
    (logit.max(0.0) + (-logit.abs()).exp().ln_1p()).sqrt()
}

/// Ids by descending key, equal keys by ascending id.
pub fn select(keys: &[f32], k: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..).take(keys.len()).collect();
    ids.sort_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]).then(a.cmp(b)));
    ids.truncate(k);
    ids
}

/// One element of the expert's activation.
pub fn swiglu(gate: f64, up: f64, limit: f64, weight: f64) -> f64 {
    let a = gate.min(limit);
    weight * a / (1.0 + (-a).exp()) * up.clamp(-limit, limit)
}
