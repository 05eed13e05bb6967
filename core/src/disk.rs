//! The seam to storage: one directory of files, with just the calls whose crash behaviour is known.
//!
//! Two implementations: `real` (rustix on Linux) and `sim` (in memory: sectors, crashes, faults; feature `sim`).
//! The engine above is the same over both.
//!
//! What holds for every implementation, and all that the engine relies on after a crash:
//!
//! - A write may be lost, or any subset of its 512-byte sectors may arrive, until `sync` of that file has
//!   returned `Ok`. A single sector arrives whole or not at all.
//! - A name made, moved or removed may be lost, each independently, until `sync_dir` has returned `Ok`.
//! - After `sync` has failed nothing is known of what was written since the last good one, and a further
//!   `sync` may succeed without it.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) mod linux;
pub(crate) mod mmap;
#[cfg(any(test, feature = "sim"))]
pub mod sim;

pub use linux::device_writes_zeroes;
pub use mmap::Map;

/// The unit that a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Zeros written at a time.
const ZERO_PIECE_BYTES: usize = 1 << 20;

/// One flat directory of files. `Send + Sync`; calls may block on the device.
pub trait Disk: Debug + Send + Sync {
    /// The directory's path, for messages.
    fn path(&self) -> &Path;

    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file; `AlreadyExists` when there is one of that name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading, and for writing too if `write`.
    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, replacing what has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name; open handles and mappings go on working.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names made, moved and removed so far durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// Makes the directory's own name durable, and those of the directories it is in. Needed once, when
    /// something is first kept in it.
    fn sync_ancestors(&self) -> io::Result<()> {
        Ok(())
    }

    /// Takes the exclusive lock on a file, made if need be, until the guard is dropped or the process
    /// ends. `WouldBlock` when it is held by anybody, this process included.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>>;

    /// Fills `bytes` with chance, for the names of logs, directories and segments: from the operating system,
    /// except where a run has to be the same twice.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(())
    }
}

/// A held lock. Dropping it lets go.
pub trait Lock: Debug + Send + Sync {}

#[expect(clippy::len_without_is_empty, reason = "nobody asks a file whether it is empty")]
/// An open file. `Send + Sync`: reads may run beside a write to other places.
pub trait DiskFile: Debug + Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`; `UnexpectedEof` when the file ends before.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bufs`, one after the other, from `offset` on; grows the file if need be. On an error
    /// any part may have been written.
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()>;

    /// Takes the space for `bytes` bytes, where that can be asked for: fails at once if there is not enough.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Writes zeros over a range, so that no later write inside has to change where the file lies on the disk.
    /// Not durable before `sync`.
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

    /// Asks for a range to be read ahead. Advice only.
    fn will_need(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Lets go of what memory holds of a range that was synced, as far as nobody has it mapped: what is read next
    /// comes from the device. Advice only.
    fn forget(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Makes the file's contents and length durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;

    /// Maps the whole file for reading; `Unsupported` where there are no mappings.
    fn map(&self) -> io::Result<Map> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
