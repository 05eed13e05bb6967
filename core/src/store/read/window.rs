//! Window: the part of a file that was read last, by `pread`. Its users read ahead, and take small pieces from it.
//!
//! Must not know: blocks, segments.

use crate::disk::DiskFile;
use bytes::{Bytes, BytesMut};
use std::io;

/// Bytes of a file, and their offset.
#[derive(Debug, Default)]
pub(crate) struct Window {
    at: usize,
    bytes: Bytes,
}

impl Window {
    /// Whether it has these bytes.
    pub(crate) fn has(&self, at: usize, length: usize) -> bool {
        at >= self.at && at + length <= self.at + self.bytes.len()
    }

    /// Reads `length` bytes from `at`. Uses its memory again, unless a caller keeps bytes of it. Empty after an error.
    pub(crate) fn fill(&mut self, file: &dyn DiskFile, at: usize, length: usize) -> io::Result<()> {
        let free = self.take().try_into_mut().ok().filter(|free| free.capacity() >= length);
        let mut bytes = free.unwrap_or_else(|| BytesMut::zeroed(length));
        bytes.resize(length, 0);
        file.read_at(at as u64, &mut bytes)?;
        (self.at, self.bytes) = (at, bytes.freeze());
        Ok(())
    }

    /// The bytes from `at` on. Panics if it does not have `at`.
    pub(crate) fn from(&self, at: usize) -> &[u8] {
        &self.bytes[at - self.at..]
    }

    /// Bytes that the caller can keep. Panics if it does not have them.
    pub(crate) fn share(&self, at: usize, length: usize) -> Bytes {
        self.bytes.slice(at - self.at..at - self.at + length)
    }

    /// Returns all bytes, and is empty afterwards.
    pub(crate) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::sim::SimDisk;
    use std::io::IoSlice;

    #[test]
    fn bytes_that_are_kept_stay_when_the_window_moves() {
        let file = SimDisk::default().create("file").unwrap();
        file.write_at(0, &[IoSlice::new(b"abcdefgh")]).unwrap();
        let mut window = Window::default();
        window.fill(&*file, 0, 4).unwrap();
        let kept = window.share(1, 2);
        window.fill(&*file, 4, 4).unwrap();
        assert_eq!((&*kept, window.from(5)), (&b"bc"[..], &b"fgh"[..]));
        assert!(window.has(4, 4) && !window.has(3, 1) && !window.has(5, 4));
        window.fill(&*file, 2, 3).unwrap();
        assert_eq!((&*kept, window.from(2)), (&b"bc"[..], &b"cde"[..]));
        assert!(window.fill(&*file, 6, 4).is_err());
        assert!(!window.has(6, 1), "empty after an error");
    }
}
