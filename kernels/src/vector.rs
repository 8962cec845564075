//! Loops that the compiler turns into vector instructions.
//! In: slices. Out: sums, exponentials. Never: a branch per element, a call that cannot be inlined.
//! Everything here is `inline(always)`: it takes the instruction set of the `pulp::Arch::dispatch` around it. A sum keeps
//! [`LANES`] partial sums because floats may not be reordered by the compiler.

/// Partial sums of a reduction: one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;

/// Σ x².
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += value * value;
        }
    }
    let tail: f32 = rest.iter().map(|v| v * v).sum();
    sums.iter().sum::<f32>() + tail
}

/// e^x to 2 units in the last place; below -87 it stays at e^-87, which no sum here notices. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor-like minimax polynomial of Cephes' expf on |r| <= ln(2)/2.
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        p = p * r + c;
    }
    let p = p * (r * r) + r + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_library_to_two_units_in_the_last_place() {
        let mut x = -86.9f32;
        while x < 87.9 {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2.5e-7, "exp({x}) is off by {error:e}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn a_sum_of_squares_takes_every_element_once() {
        for n in [0, 1, 15, 16, 17, 100] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f32 = (0..n).map(|i| (i * i) as f32).sum();
            assert_eq!(sum_of_squares(&x), expected);
        }
    }
}
