//! RMSNorm by its formula, in f64.

/// See [`super::rms_norm`].
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    x.chunks(weight.len())
        .flat_map(|row| {
            let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + f64::from(eps)).sqrt();
            row.iter().zip(weight).map(move |(v, w)| narrow(f64::from(*v) * scale * f64::from(*w)))
        })
        .collect()
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn narrow(x: f64) -> f32 {
    x as f32
}
