//! Window: reads a file in large pieces and returns small ones.
//!
//! Must not know: what the bytes mean.

use crate::disk::DiskFile;
use std::io;
use std::sync::Arc;

/// How many bytes are read at once: enough for a disk's full speed, and few compared to a segment.
const WINDOW_BYTES: usize = 1 << 20;

/// A file and the piece of it that was read last.
pub(super) struct Window {
    file: Arc<dyn DiskFile>,
    /// The file's length when it was opened.
    len: u64,
    start: u64,
    piece: Vec<u8>,
}

impl Window {
    pub(super) fn new(file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, len, start: 0, piece: Vec::new() })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Drops the bytes that were read, so that the next `get` sees the file as it is now.
    pub(super) fn refresh(&mut self) {
        self.piece.clear();
    }

    /// Returns the `bytes` bytes from `offset`. If the file cannot be read in large pieces, only these bytes are
    /// read, so that a bad sector affects no others.
    pub(super) fn get(&mut self, offset: u64, bytes: usize) -> io::Result<&[u8]> {
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= self.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if offset < self.start || end > self.start + self.piece.len() as u64 {
            let ahead = (self.len - offset).min(bytes.max(WINDOW_BYTES) as u64);
            self.fill(offset, ahead).or_else(|_| self.fill(offset, bytes as u64))?;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.piece[at..at + bytes])
    }

    fn fill(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        let size = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.piece.clear();
        self.piece.resize(size, 0);
        self.start = offset;
        let read = self.file.read_at(offset, &mut self.piece);
        if read.is_err() {
            self.piece.clear();
        }
        read
    }
}
