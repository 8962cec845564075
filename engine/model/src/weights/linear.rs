//! A linear layer: a matrix, and whether its input is rounded at full precision.
//! In: activations. Out: a product for the backend. Never: a bias (no linear of the model has one).
//! FP8 and FP4 matrices were trained with inputs rounded to FP8; matrices stored in bf16 or f32 were not, and `wo_a` is
//! the exception that is stored in FP8 and takes its input unrounded.

use engine_spec::Precision;
use fathom_kernels::Ops;
use fathom_kernels::linear::{Input, Product, Weight, WeightError, WeightFormat};
use safetensors::tensor::Dtype;

use super::{Entry, LoadError, Loader, WeightStorage, wrong};

/// Channels that share an FP8 scale in a linear's input.
const INPUT_TILE: usize = 128;

/// One matrix `[out, in]`.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Weight,
    rounds_input: bool,
}

impl Linear {
    pub(crate) fn from_weight(weight: Weight) -> Self {
        Self { weight, rounds_input: false }
    }

    /// `y = x · Wᵀ`, y without gaps.
    pub(crate) fn product<'a>(&'a self, x: &Activations<'a>, y: &'a mut [f32]) -> Product<'a> {
        Product::new(Input::new(self.input(x), self.weight.cols()), &self.weight, y)
    }

    /// The same for the rows of x that `tokens` names.
    pub(crate) fn gathered<'a>(
        &'a self,
        x: &Activations<'a>,
        tokens: &'a [u32],
        y: &'a mut [f32],
    ) -> Product<'a> {
        Product::new(Input::gathered(self.input(x), self.weight.cols(), tokens), &self.weight, y)
    }

    fn input<'a>(&self, x: &Activations<'a>) -> &'a [f32] {
        if self.rounds_input { x.rounded } else { x.plain }
    }
}

/// A linear's input: as computed, and as FP8 and FP4 matrices see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activations<'a> {
    plain: &'a [f32],
    rounded: &'a [f32],
}

impl<'a> Activations<'a> {
    /// `x` in rows of `width`; at full precision the rounded copy goes to `buffer`.
    pub(crate) fn new<O: Ops>(
        ops: &O,
        precision: Precision,
        x: &'a [f32],
        width: usize,
        buffer: &'a mut Vec<f32>,
    ) -> Self {
        match precision {
            Precision::Exact | Precision::Sim => Self { plain: x, rounded: x },
            Precision::Full => {
                buffer.clear();
                buffer.extend_from_slice(x);
                ops.round_fp8(buffer, width, INPUT_TILE);
                Self { plain: x, rounded: buffer }
            }
        }
    }
}

impl<'a> Activations<'a> {
    /// How many rows of `width` there are.
    pub(crate) fn count(&self, width: usize) -> usize {
        self.plain.len() / width
    }

    /// Some of its rows.
    pub(crate) fn rows(&self, rows: std::ops::Range<usize>, width: usize) -> Self {
        let values = rows.start * width..rows.end * width;
        Self { plain: &self.plain[values.clone()], rounded: &self.rounded[values] }
    }
}

impl Loader<'_> {
    /// `<stem>.weight` `[rows, cols]` in any format, with `<stem>.scale` where the format has one.
    pub(crate) fn linear(&mut self, stem: &str, rows: usize, cols: usize) -> Result<Linear, LoadError> {
        let (weight, rounds_input) = self.matrix(stem, rows, cols)?;
        Ok(Linear { weight, rounds_input })
    }

    /// The same for a matrix whose input is never rounded.
    pub(crate) fn unrounded(&mut self, stem: &str, rows: usize, cols: usize) -> Result<Linear, LoadError> {
        Ok(Linear::from_weight(self.matrix(stem, rows, cols)?.0))
    }

    /// `<name>` `[rows, cols]` in bf16 or f32 only: gates, compressors, embedding, head, hyper-connections.
    pub(crate) fn plain(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear, LoadError> {
        let expected = || format!("BF16 or F32 [{rows}, {cols}]");
        let entry = self.take(name, expected)?;
        match format_of(&entry) {
            Some(format @ (WeightFormat::Bf16 | WeightFormat::F32)) if entry.shape == [rows, cols] => {
                let weight = Weight::new(format, rows, cols, entry.data, bytes::Bytes::new());
                Ok(Linear::from_weight(self.stored(name, weight)?))
            }
            _ => Err(wrong(name, &entry, expected())),
        }
    }

    fn matrix(&mut self, stem: &str, rows: usize, cols: usize) -> Result<(Weight, bool), LoadError> {
        let name = format!("{stem}.weight");
        let expected =
            || format!("F8_E4M3, BF16 or F32 [{rows}, {cols}], or FP4 in I8 [{rows}, {}]", cols / 2);
        let entry = self.take(&name, expected)?;
        let format = format_of(&entry).filter(|format| {
            let packed = if *format == WeightFormat::Fp4 { cols / 2 } else { cols };
            entry.shape == [rows, packed]
        });
        let Some(format) = format else {
            return Err(wrong(&name, &entry, expected()));
        };
        let scales = match format {
            WeightFormat::F32 | WeightFormat::Bf16 => bytes::Bytes::new(),
            WeightFormat::Fp8 => self.scales(stem, [rows.div_ceil(128), cols.div_ceil(128)])?,
            WeightFormat::Fp4 => self.scales(stem, [rows, cols / 32])?,
        };
        let rounds_input = matches!(format, WeightFormat::Fp8 | WeightFormat::Fp4);
        let weight = Weight::new(format, rows, cols, entry.data, scales);
        Ok((self.stored(&name, weight)?, rounds_input))
    }

    fn scales(&mut self, stem: &str, shape: [usize; 2]) -> Result<bytes::Bytes, LoadError> {
        let name = format!("{stem}.scale");
        let expected = || format!("F8_E8M0 {shape:?}");
        let entry = self.take(&name, expected)?;
        if entry.dtype != Dtype::F8_E8M0 || entry.shape != shape {
            return Err(wrong(&name, &entry, expected()));
        }
        Ok(entry.data)
    }

    fn stored(&self, name: &str, weight: Result<Weight, WeightError>) -> Result<Weight, LoadError> {
        let weight =
            weight.map_err(|e| LoadError::WrongValue { name: name.to_owned(), reason: e.to_string() })?;
        Ok(if self.storage == WeightStorage::F32 { weight.expand() } else { weight })
    }
}

fn format_of(entry: &Entry) -> Option<WeightFormat> {
    match entry.dtype {
        Dtype::F32 => Some(WeightFormat::F32),
        Dtype::BF16 => Some(WeightFormat::Bf16),
        Dtype::F8_E4M3 => Some(WeightFormat::Fp8),
        Dtype::I8 => Some(WeightFormat::Fp4),
        _ => None,
    }
}
