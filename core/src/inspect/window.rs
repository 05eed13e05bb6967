//! Window: reads a file in large pieces and returns small ones.
//!
//! Must not know: what the bytes mean.

use crate::disk::DiskFile;
use crate::store::read::window::Window;
use std::io;
use std::sync::Arc;

/// How many bytes are read at once: enough for a disk's full speed, and few compared to a segment.
const WINDOW_BYTES: usize = 1 << 20;

/// A file and the piece of it that was read last.
pub(super) struct FileWindow {
    file: Arc<dyn DiskFile>,
    /// The file's length when it was opened.
    len: u64,
    window: Window,
}

impl FileWindow {
    pub(super) fn new(file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, len, window: Window::default() })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Drops the bytes that were read, so that the next `get` sees the file as it is now.
    pub(super) fn refresh(&mut self) {
        self.window.take();
    }

    /// Returns the `bytes` bytes from `offset`. If the file cannot be read in large pieces, only these bytes are
    /// read, so that a bad sector affects no others.
    pub(super) fn get(&mut self, offset: u64, bytes: usize) -> io::Result<&[u8]> {
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (Ok(at), Ok(left)) = (usize::try_from(offset), usize::try_from(self.len - offset)) else {
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        if !self.window.has(at, bytes) {
            let filled = self.window.fill(&*self.file, at, left.min(bytes.max(WINDOW_BYTES)));
            filled.or_else(|_| self.window.fill(&*self.file, at, bytes))?;
        }
        Ok(&self.window.from(at)[..bytes])
    }
}
