//! A weight matrix `[rows, cols]` in its stored format.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use pulp::bytemuck;

use crate::format::unpack::FP4_GROUP;
use crate::format::{bf16, e8m0, fp4, fp8};

/// Values along each side of the block that one FP8 scale covers.
pub(crate) const FP8_BLOCK: usize = 128;

const _: () =
    assert!(cfg!(target_endian = "little"), "weights are read in place, and files are little-endian");

/// How the values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightFormat {
    F32,
    Bf16,
    /// e4m3 with one e8m0 scale per 128 x 128 block.
    Fp8,
    /// e2m1, two a byte, the even column in the low half, with one e8m0 scale per row and 32 columns.
    Fp4,
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WeightFormat::F32 => "F32",
            WeightFormat::Bf16 => "BF16",
            WeightFormat::Fp8 => "FP8",
            WeightFormat::Fp4 => "FP4",
        })
    }
}

/// Why bytes are no weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    #[error("{part} of a {format} weight [{rows}, {cols}]: expected {expected} bytes, found {found}")]
    Length {
        part: &'static str,
        format: WeightFormat,
        rows: usize,
        cols: usize,
        expected: usize,
        found: usize,
    },
    #[error(
        "an FP4 weight [{rows}, {cols}]: each scale covers 32 columns, so the columns must be a multiple of 32"
    )]
    Columns { rows: usize, cols: usize },
    #[error("a weight [{rows}, {cols}] is larger than memory can be")]
    TooLarge { rows: usize, cols: usize },
    #[error(
        "{part} of a {format} weight [{rows}, {cols}]: byte {at} is {byte:#04x}, which stands for NaN; the file is damaged"
    )]
    NotANumber { part: &'static str, format: WeightFormat, rows: usize, cols: usize, at: usize, byte: u8 },
}

/// A matrix `[rows, cols]`, used as `y = x . W^T`. The bytes are shared, usually with a memory-mapped file.
#[derive(Clone)]
pub struct Weight {
    rows: usize,
    cols: usize,
    format: WeightFormat,
    data: Bytes,
    scales: Bytes,
    /// The scales fit the way that unpacks in registers.
    streamable: bool,
}

impl Weight {
    /// A weight from stored bytes; `scales` is empty for F32 and BF16. Checks every length, and that no FP8 code and no
    /// scale is NaN (infinite or NaN values of F32 and BF16 are the checkpoint's own business).
    pub fn new(
        format: WeightFormat,
        rows: usize,
        cols: usize,
        data: Bytes,
        scales: Bytes,
    ) -> Result<Self, WeightError> {
        let count = rows.checked_mul(cols).filter(|count| *count <= usize::MAX / 8);
        let count = count.ok_or(WeightError::TooLarge { rows, cols })?;
        let (data_bytes, scale_bytes) = match format {
            WeightFormat::F32 => (4 * count, 0),
            WeightFormat::Bf16 => (2 * count, 0),
            WeightFormat::Fp8 => (count, rows.div_ceil(FP8_BLOCK) * cols.div_ceil(FP8_BLOCK)),
            WeightFormat::Fp4 if cols.is_multiple_of(FP4_GROUP) => (count / 2, count / FP4_GROUP),
            WeightFormat::Fp4 => return Err(WeightError::Columns { rows, cols }),
        };
        for (part, expected, found) in
            [("values", data_bytes, data.len()), ("scales", scale_bytes, scales.len())]
        {
            if expected != found {
                return Err(WeightError::Length { part, format, rows, cols, expected, found });
            }
        }
        let not_a_number = |part, at, byte| WeightError::NotANumber { part, format, rows, cols, at, byte };
        if let Some(at) = scales.iter().position(|scale| *scale == e8m0::NAN) {
            return Err(not_a_number("scales", at, e8m0::NAN));
        }
        if format == WeightFormat::Fp8
            && let Some(at) = data.iter().position(|code| code & 0x7F == 0x7F)
        {
            return Err(not_a_number("values", at, data[at]));
        }
        let align = if format == WeightFormat::F32 { align_of::<f32>() } else { align_of::<u16>() };
        let data = if data.as_ptr().addr().is_multiple_of(align) { data } else { aligned_copy(&data) };
        let streamable = scales_fit(format, &scales);
        Ok(Self { rows, cols, format, data, scales, streamable })
    }

    /// A weight of f32 values.
    pub fn from_f32(rows: usize, cols: usize, values: Vec<f32>) -> Result<Self, WeightError> {
        Self::new(WeightFormat::F32, rows, cols, Bytes::from_owner(Values(values)), Bytes::new())
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// The stored values.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The stored scales.
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    pub(super) fn is_streamable(&self) -> bool {
        self.streamable
    }

    /// Rows of an F32 weight, one after another.
    #[inline(always)]
    pub(super) fn f32_rows(&self, rows: Range<usize>) -> &[f32] {
        let bytes = 4 * self.cols;
        bytemuck::cast_slice(&self.data[rows.start * bytes..rows.end * bytes])
    }

    /// Bytes that are stored, and read by every product.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales.len()
    }

    /// The same matrix in F32, every value exact. An F32 weight is shared, not copied.
    pub fn expand(&self) -> Weight {
        if self.format == WeightFormat::F32 {
            return self.clone();
        }
        let mut values = vec![0.0; self.rows * self.cols];
        super::expand::rows(self, 0..self.rows, &mut values);
        let data = Bytes::from_owner(Values(values));
        Weight { format: WeightFormat::F32, data, scales: Bytes::new(), streamable: true, ..*self }
    }

    /// Row `o` in f32: an embedding, or what a test compares with.
    ///
    /// # Panics
    /// When there is no such row or `out` is not `cols` long.
    pub fn read_row(&self, o: usize, out: &mut [f32]) {
        assert!(o < self.rows && out.len() == self.cols, "row {o} of [{}, {}]", self.rows, self.cols);
        super::expand::rows(self, o..o + 1, out);
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weight({} [{}, {}])", self.format, self.rows, self.cols)
    }
}

/// f32 values as the owner of their bytes.
struct Values(Vec<f32>);

impl AsRef<[u8]> for Values {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[cfg(target_arch = "x86_64")]
fn scales_fit(format: WeightFormat, scales: &[u8]) -> bool {
    super::stream::fits(format, scales)
}

#[cfg(not(target_arch = "x86_64"))]
fn scales_fit(_: WeightFormat, _: &[u8]) -> bool {
    false
}

/// A copy that starts at a multiple of 4: a file may put a tensor anywhere.
fn aligned_copy(data: &[u8]) -> Bytes {
    let mut values = vec![0.0_f32; data.len().div_ceil(4)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
    bytes[..data.len()].copy_from_slice(data);
    Bytes::from_owner(Values(values)).slice(..data.len())
}

/// Quantises f32 values as the published checkpoints are: for tests, benchmarks and converters.
impl Weight {
    /// BF16, rounded to nearest.
    pub fn quantise_bf16(rows: usize, cols: usize, values: &[f32]) -> Result<Self, WeightError> {
        let data: Vec<u8> = values.iter().flat_map(|value| bf16::encode(*value).to_le_bytes()).collect();
        Self::new(WeightFormat::Bf16, rows, cols, data.into(), Bytes::new())
    }

    /// FP8 with the smallest sufficient power-of-two scale per 128 x 128 block.
    pub fn quantise_fp8(rows: usize, cols: usize, values: &[f32]) -> Result<Self, WeightError> {
        let blocks = cols.div_ceil(FP8_BLOCK);
        let mut largest = vec![1e-30_f32; rows.div_ceil(FP8_BLOCK) * blocks];
        let block = |at: usize| at / cols / FP8_BLOCK * blocks + at % cols / FP8_BLOCK;
        for (at, value) in values.iter().enumerate() {
            let largest = &mut largest[block(at)];
            *largest = largest.max(value.abs());
        }
        let scales: Vec<u8> = largest.iter().map(|largest| e8m0::at_least(largest / fp8::MAX)).collect();
        let codes = values.iter().enumerate();
        let codes: Vec<u8> = codes.map(|(at, v)| fp8::encode(v / e8m0::decode(scales[block(at)]))).collect();
        Self::new(WeightFormat::Fp8, rows, cols, codes.into(), scales.into())
    }

    /// FP4 with the smallest sufficient power-of-two scale per row and 32 columns.
    pub fn quantise_fp4(rows: usize, cols: usize, values: &[f32]) -> Result<Self, WeightError> {
        let mut codes = Vec::with_capacity(values.len() / 2);
        let mut scales = Vec::with_capacity(values.len() / FP4_GROUP);
        for group in values.chunks(FP4_GROUP) {
            let largest = group.iter().fold(1e-30_f32, |largest, value| largest.max(value.abs()));
            let scale = e8m0::at_least(largest / fp4::MAX);
            scales.push(scale);
            let scale = e8m0::decode(scale);
            codes.extend(
                group
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|pair| fp4::encode(pair[0] / scale) | fp4::encode(pair[1] / scale) << 4),
            );
        }
        Self::new(WeightFormat::Fp4, rows, cols, codes.into(), scales.into())
    }
}
