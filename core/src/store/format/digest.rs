//! Digest of a block's batches: over their checksums, in order. So the payload is summed once, by the producer.

use crate::record::crc::Crc;
use std::mem;

/// Computes the digest. It sums in larger pieces, because summing four bytes takes nearly as long as summing a few
/// hundred.
pub(super) struct Digest {
    crc: Crc,
    pending: [u8; 256],
    used: usize,
}

impl Digest {
    pub(super) fn new() -> Self {
        Self { crc: Crc::new(), pending: [0; 256], used: 0 }
    }

    pub(super) fn add(&mut self, crc: u32) {
        if self.used == self.pending.len() {
            self.crc = mem::replace(&mut self.crc, Crc::new()).add(&self.pending);
            self.used = 0;
        }
        self.pending[self.used..self.used + 4].copy_from_slice(&crc.to_le_bytes());
        self.used += 4;
    }

    pub(super) fn sum(self) -> u32 {
        self.crc.add(&self.pending[..self.used]).sum()
    }
}
