//! Packed weight rows to f32, exactly, into memory next to the core that multiplies them.

use std::ops::Range;

use super::weight::{FP8_BLOCK, Weight, WeightFormat};
use crate::format::unpack::{self, FP4_GROUP, Unpacker};

/// The rows `rows` of `weight`, one after another.
pub(super) fn rows(weight: &Weight, rows: Range<usize>, out: &mut [f32]) {
    let unpacker = Unpacker::new();
    pulp::Arch::new().dispatch(|| {
        for (o, out) in rows.zip(out.chunks_exact_mut(weight.cols().max(1))) {
            part_of_row(unpacker, weight, o, 0, out);
        }
    });
}

/// Writes `weight[o, from .. from + out.len()]` to `out`; `from` is a multiple of 128. Called inside a dispatch.
#[inline(always)]
pub(super) fn part_of_row(unpacker: Unpacker, weight: &Weight, o: usize, from: usize, out: &mut [f32]) {
    let at = o * weight.cols() + from;
    match weight.format() {
        WeightFormat::F32 => out.copy_from_slice(&weight.f32_rows(o..o + 1)[from..][..out.len()]),
        WeightFormat::Bf16 => unpack::bf16(&weight.data()[2 * at..], out),
        WeightFormat::Fp8 => {
            let scales = o / FP8_BLOCK * weight.cols().div_ceil(FP8_BLOCK) + from / FP8_BLOCK;
            let blocks = out.chunks_mut(FP8_BLOCK).zip(weight.data()[at..].chunks(FP8_BLOCK));
            for ((out, codes), scale) in blocks.zip(&weight.scales()[scales..]) {
                unpack::fp8(codes, *scale, out);
            }
        }
        WeightFormat::Fp4 => {
            let codes = &weight.data()[at / 2..][..out.len() / 2];
            let scales = &weight.scales()[at / FP4_GROUP..][..out.len() / FP4_GROUP];
            unpacker.fp4(codes, scales, out);
        }
    }
}
