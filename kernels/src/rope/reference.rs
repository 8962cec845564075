//! The rotation as multiplication of complex numbers, in f64.

use super::Turn;

/// Rotates one row of `x.len() / 2` pairs at `position`.
pub fn rope(x: &[f32], frequencies: &[f32], position: usize, turn: Turn) -> Vec<f64> {
    let sign = if turn == Turn::Forward { 1.0 } else { -1.0 };
    x.chunks(2)
        .zip(frequencies)
        .flat_map(|(pair, frequency)| {
            let (sin, cos) = (sign * position as f64 * f64::from(*frequency)).sin_cos();
            let (re, im) = (f64::from(pair[0]), f64::from(pair[1]));
            [re * cos - im * sin, re * sin + im * cos]
        })
        .collect()
}
