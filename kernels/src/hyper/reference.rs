//! The hyper-connection's coefficients by their formulas, in f64.

use super::{Mixing, STREAMS};

/// pre, post and C of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Coefficients {
    pub pre: [f64; STREAMS],
    pub post: [f64; STREAMS],
    pub matrix: [[f64; STREAMS]; STREAMS],
}

/// Coefficients of one token's streams (`[4, d]`) and their 24 products with `fn`.
pub fn coefficients(streams: &[f32], products: &[f32], mixing: &Mixing<'_>) -> Coefficients {
    let mean = streams.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / streams.len() as f64;
    let rho = 1.0 / (mean + f64::from(mixing.norm_eps)).sqrt();
    let logit = |i: usize, scale: usize| {
        f64::from(products[i]) * rho * f64::from(mixing.scale[scale]) + f64::from(mixing.base[i])
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let eps = f64::from(mixing.eps);
    Coefficients {
        pre: std::array::from_fn(|j| sigmoid(logit(j, 0)) + eps),
        post: std::array::from_fn(|j| 2.0 * sigmoid(logit(STREAMS + j, 1))),
        matrix: sinkhorn(
            std::array::from_fn(|j| std::array::from_fn(|k| logit(2 * STREAMS + STREAMS * j + k, 2))),
            eps,
            mixing.iterations,
        ),
    }
}

/// Softmax over rows plus eps, columns, then `iterations − 1` rounds of rows and columns.
pub fn sinkhorn(a: [[f64; STREAMS]; STREAMS], eps: f64, iterations: usize) -> [[f64; STREAMS]; STREAMS] {
    let mut c = a.map(|row| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        row.map(|x| (x - max).exp() / sum + eps)
    });
    columns(&mut c, eps);
    for _ in 1..iterations {
        c = c.map(|row| {
            let sum: f64 = row.iter().sum();
            row.map(|x| x / (sum + eps))
        });
        columns(&mut c, eps);
    }
    c
}

fn columns(c: &mut [[f64; STREAMS]; STREAMS], eps: f64) {
    for k in 0..STREAMS {
        let sum: f64 = c.iter().map(|row| row[k]).sum();
        for row in c.iter_mut() {
            row[k] /= sum + eps;
        }
    }
}
