//! Puts the frames of a hand-over together again and checks that they are all there.
//! In: frames, then the commit. Out: whole pages and the slot, in order.
//! Never: a buffer longer than one part; a frame out of order, of the wrong length or beyond the end.

use bytes::{Bytes, BytesMut};
use engine_proto::MAX_FRAME_BYTES;
use engine_proto::v1::{Commit, Frame, Pool};

use crate::sequence::Part;

/// Why a hand-over is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    #[error(
        "frame at part {index}, offset {offset} of {pool:?} came where part {expected_index}, offset {expected_offset} was due"
    )]
    OutOfOrder { pool: Pool, index: u32, offset: u64, expected_index: usize, expected_offset: usize },
    #[error("frame of {bytes} bytes does not fit")]
    Length { bytes: usize },
    #[error("{what}: commit says {said}, received {received}")]
    Commit { what: &'static str, said: u64, received: u64 },
}

/// One hand-over.
#[derive(Debug)]
pub struct Assembly {
    pages: usize,
    page_bytes: usize,
    slot_bytes: usize,
    /// The part that is coming in: pages, then the slot.
    part: usize,
    offset: usize,
    buffer: BytesMut,
    checksum: crc32fast::Hasher,
    bytes: u64,
}

impl Assembly {
    pub fn new(pages: usize, page_bytes: usize, slot_bytes: usize) -> Self {
        let checksum = crc32fast::Hasher::new();
        Self {
            pages,
            page_bytes,
            slot_bytes,
            part: 0,
            offset: 0,
            buffer: BytesMut::new(),
            checksum,
            bytes: 0,
        }
    }

    /// Takes a frame; gives the part that it completes.
    ///
    /// # Errors
    /// [`AssemblyError`]: the hand-over is over.
    pub fn push(&mut self, frame: &Frame) -> Result<Option<(Part, Bytes)>, AssemblyError> {
        let slot = self.part == self.pages;
        let (pool, index, whole) =
            if slot { (Pool::Slot, 0, self.slot_bytes) } else { (Pool::Page, self.part, self.page_bytes) };
        let due = self.part <= self.pages
            && frame.pool() == pool
            && frame.index as usize == index
            && frame.offset == self.offset as u64;
        if !due {
            return Err(AssemblyError::OutOfOrder {
                pool: frame.pool(),
                index: frame.index,
                offset: frame.offset,
                expected_index: index,
                expected_offset: self.offset,
            });
        }
        let bytes = frame.data.len();
        if bytes == 0 || bytes > MAX_FRAME_BYTES || self.offset + bytes > whole {
            return Err(AssemblyError::Length { bytes });
        }
        self.checksum.update(&frame.data);
        self.bytes += bytes as u64;
        Ok(self.complete(frame, slot, whole))
    }

    fn complete(&mut self, frame: &Frame, slot: bool, whole: usize) -> Option<(Part, Bytes)> {
        // A part of one frame is passed on as it came.
        let data = if frame.data.len() == whole {
            frame.data.clone()
        } else {
            self.buffer.reserve(whole - self.offset);
            self.buffer.extend_from_slice(&frame.data);
            self.offset += frame.data.len();
            if self.offset < whole {
                return None;
            }
            self.buffer.split().freeze()
        };
        let part = if slot { Part::Slot } else { Part::Page(self.part) };
        self.part += 1;
        self.offset = 0;
        Some((part, data))
    }

    /// Everything is there, and it is what prefill sent for this very attempt.
    ///
    /// # Errors
    /// [`AssemblyError::Commit`], naming what differs.
    pub fn finish(&self, commit: &Commit, epoch: u64) -> Result<(), AssemblyError> {
        let checks = [
            ("epoch", commit.epoch, epoch),
            ("pages and slot", u64::from(commit.pages) + 1, self.part as u64),
            ("pages", u64::from(commit.pages), self.pages as u64),
            ("bytes", commit.bytes, self.bytes),
            ("checksum", u64::from(commit.crc32), u64::from(self.checksum.clone().finalize())),
        ];
        for (what, said, received) in checks {
            if said != received {
                return Err(AssemblyError::Commit { what, said, received });
            }
        }
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(data: &[Vec<u8>], cut: usize) -> (Vec<Frame>, Commit) {
        let pages = data.len() - 1;
        let mut frames = Vec::new();
        let mut checksum = crc32fast::Hasher::new();
        for (at, part) in data.iter().enumerate() {
            let (pool, index) = if at == pages { (Pool::Slot, 0) } else { (Pool::Page, at) };
            for (n, chunk) in part.chunks(cut).enumerate() {
                checksum.update(chunk);
                frames.push(Frame {
                    pool: pool.into(),
                    index: u32::try_from(index).unwrap(),
                    offset: (n * cut) as u64,
                    data: Bytes::copy_from_slice(chunk),
                });
            }
        }
        let bytes = data.iter().map(|d| d.len() as u64).sum();
        let pages = u32::try_from(pages).unwrap();
        (frames, Commit { epoch: 9, pages, bytes, crc32: checksum.finalize(), first: None })
    }

    fn parts(pages: usize) -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = (0..pages).map(|p| vec![u8::try_from(p).unwrap(); 100]).collect();
        parts.push(vec![200; 33]);
        parts
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_parts_back(pages in 0_usize..6, cut in 1_usize..120) {
            let data = parts(pages);
            let (frames, commit) = frames(&data, cut);
            let mut assembly = Assembly::new(pages, 100, 33);
            let mut out = Vec::new();
            for frame in &frames {
                out.extend(assembly.push(frame).unwrap());
            }
            let bytes: Vec<Vec<u8>> = out.iter().map(|(_, b)| b.to_vec()).collect();
            prop_assert_eq!(bytes, data);
            prop_assert_eq!(out.last().map(|(part, _)| *part), Some(Part::Slot));
            prop_assert_eq!(assembly.finish(&commit, 9), Ok(()));
        }

        #[test]
        fn a_changed_hand_over_is_never_believed(pages in 1_usize..5, cut in 1_usize..120, at in 0_usize..1000, what in 0_u8..4) {
            let data = parts(pages);
            let (mut frames, commit) = frames(&data, cut);
            let at = at % frames.len();
            match what {
                0 => { frames.remove(at); }
                1 => { let frame = frames[at].clone(); frames.insert(at, frame); }
                2 => {
                    let mut changed = frames[at].data.to_vec();
                    changed[0] ^= 1;
                    frames[at].data = changed.into();
                }
                _ => frames[at].index += 1,
            }
            let mut assembly = Assembly::new(pages, 100, 33);
            let pushed: Result<Vec<_>, _> = frames.iter().map(|frame| assembly.push(frame)).collect();
            prop_assert!(pushed.is_err() || assembly.finish(&commit, 9).is_err());
        }
    }

    #[test]
    fn another_attempts_commit_is_refused() {
        let (frames, commit) = frames(&parts(1), 64);
        let mut assembly = Assembly::new(1, 100, 33);
        for frame in &frames {
            assembly.push(frame).unwrap();
        }
        let refused = AssemblyError::Commit { what: "epoch", said: 9, received: 10 };
        assert_eq!(assembly.finish(&commit, 10), Err(refused));
    }
}
