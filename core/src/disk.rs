//! The interface to storage: one directory of files, with only those calls whose crash behaviour is known.
//!
//! Two implementations: `linux` (rustix) and `sim` (in memory: sectors, crashes, faults; feature `testing`). The code above
//! is the same over both.
//!
//! Every implementation guarantees the following, and the log relies on nothing else after a crash:
//!
//! - Until `sync` of a file has returned `Ok`, a write to it may be lost, or any subset of its 512-byte sectors may
//!   arrive. A single sector arrives whole or not at all.
//! - A name that was made, moved or removed may be lost, each independently, until `sync_dir` has returned `Ok`.
//! - After `sync` has failed, nothing is known about the writes since the last successful one, and a further `sync` may
//!   succeed without them.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) mod linux;
pub(crate) mod mmap;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
pub(crate) mod spare_files;

pub use linux::device_writes_zeroes;
pub use mmap::Map;

/// The unit that a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Bytes of zeros written at a time.
const ZERO_PIECE_BYTES: usize = 1 << 20;

/// Whether an error means that the disk, the quota or the file size limit is exhausted.
pub(crate) fn is_no_space(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// One flat directory of files. `Send + Sync`; calls may block on the device.
pub trait Disk: Debug + Send + Sync {
    /// The directory's path, for messages.
    fn path(&self) -> &Path;

    /// The names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file. `AlreadyExists` if the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading, and for writing too if `write`.
    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, replacing the file that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name. Open handles and mappings still work.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names made, moved and removed so far durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// The disk that the directory is on. `None`: it is not known.
    fn space(&self) -> io::Result<Option<Space>> {
        Ok(None)
    }

    /// Makes the names of the directory itself and of its parents durable. Needed once, when the first file is stored
    /// in it.
    fn sync_ancestors(&self) -> io::Result<()> {
        Ok(())
    }

    /// Locks a file exclusively until the guard is dropped or the process ends; makes the file if it is missing.
    /// `WouldBlock` if any process, including this one, holds the lock.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>>;

    /// Fills `bytes` with random bytes, for the ids of logs, directories and segments. They come from the operating
    /// system, unless a run has to be reproducible.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(())
    }
}

/// The disk that a directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// A number of its own.
    pub device: u64,
    /// The bytes that are free for this process.
    pub free: u64,
}

/// A held lock. Dropping it releases the lock.
pub trait Lock: Debug + Send + Sync {}

#[expect(clippy::len_without_is_empty, reason = "no caller needs to know whether a file is empty")]
/// An open file. `Send + Sync`: reads may run beside a write to other offsets.
pub trait DiskFile: Debug + Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bufs`, one after the other, from `offset` on; grows the file if needed. After an error any part
    /// may have been written.
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()>;

    /// Makes the file at least `bytes` long, with space for all of it, where the system supports that: fails at once if
    /// there is not enough. False: it does not, and the file is as before.
    fn allocate(&self, bytes: u64) -> io::Result<bool> {
        let _ = bytes;
        Ok(false)
    }

    /// Writes zeros over a range, so that later writes inside it need not change the file's layout on the disk. Not
    /// durable before `sync`.
    fn fill_with_zeros(&self, range: Range<u64>) -> io::Result<()> {
        let zeros = vec![0; ZERO_PIECE_BYTES];
        let mut at = range.start;
        while at < range.end {
            let n = usize::try_from(range.end - at).map_or(zeros.len(), |left| left.min(zeros.len()));
            self.write_at(at, &[IoSlice::new(&zeros[..n])])?;
            at += n as u64;
        }
        Ok(())
    }

    /// Requests read-ahead of a range. Advice only.
    fn will_need(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Drops a synced range from the page cache, except for mapped pages: the next read gets the bytes from the device.
    /// Advice only.
    fn forget(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Gives a range back to the file system: it takes no space from then on, and reads as zeros. The length stays. Not durable
    /// before `sync`: after a crash any part of it may have its old bytes. False: the file system cannot do that, and the file is as
    /// before.
    fn punch_hole(&self, range: Range<u64>) -> io::Result<bool> {
        let _ = range;
        Ok(false)
    }

    /// The bytes that it takes on the disk: fewer than its length if it has holes.
    fn allocated(&self) -> io::Result<u64> {
        self.len()
    }

    /// Makes the file's contents and length durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;

    /// Maps the whole file for reading; `Unsupported` if the implementation has no mappings.
    fn map(&self) -> io::Result<Map> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
