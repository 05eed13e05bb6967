//! Requests about the files of a log's sealed segments, which servers pass on to those who make a backup from afar.

use super::Log;
use crate::error::Result;
use crate::store::read::sealed_file::SealedFile;
use crate::types::{EntryIndex, Index, Timestamp};

/// A segment of a log or a group that is written no more, and whose entries are all committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// Its number, which is in the name of its file. Numbers ascend; some can be missing.
    pub number: u64,
    /// Its first entry, and its last one. The next segment begins with the one behind that.
    pub first_entry: EntryIndex,
    /// See `first_entry`. It is the one before it if the segment has none.
    pub last_entry: EntryIndex,
    /// Its first record, and the record behind its last one. They are equal if it has none.
    pub first: Index,
    /// See `first`.
    pub next: Index,
    /// The time of its last entry.
    pub timestamp: Timestamp,
    /// The size of its file.
    pub bytes: u64,
}

impl Log {
    /// Whether all records of this log are in its own files: it has no object store here, no object of it is known to be stored, and its
    /// entries never referred to payload in one.
    #[doc(hidden)]
    pub fn is_without_objects(&self) -> bool {
        let objects = self.view.segments.objects();
        let has_objects = !objects.is_empty() || objects.has_ancestors();
        self.inner.options.vault.is_none() && !has_objects && self.payload_slices().is_none()
    }

    /// Up to `count` sealed segments with this number or a higher one, oldest first. One named log has none: ask its group.
    ///
    /// # Errors
    /// `Unavailable` while the log is being repaired; `Forked`.
    #[doc(hidden)]
    pub fn sealed_segments(&self, number: u64, count: usize) -> Result<Vec<SealedSegment>> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        if !self.view.log.is_none() {
            return Ok(Vec::new());
        }
        let sealed = self.view.segments.sealed().into_iter().filter(|(segment, ..)| segment.number >= number);
        let shown = sealed.take(count).map(|(segment, end, _)| SealedSegment {
            number: segment.number,
            first_entry: segment.base.raft.next(),
            last_entry: end.raft,
            first: segment.base.next,
            next: end.next,
            timestamp: segment.last_timestamp(),
            bytes: u64::from(segment.bytes),
        });
        Ok(shown.collect())
    }

    /// Opens the file of a sealed segment. None: the log has no such segment, or none any more. Blocks on the disk.
    ///
    /// # Errors
    /// `Unavailable` while the log is being repaired; `Forked`, `Io`.
    #[doc(hidden)]
    pub fn sealed_segment(&self, number: u64) -> Result<Option<SealedFile>> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        match self.view.log.is_none() {
            true => SealedFile::open(&self.view.segments, number),
            false => Ok(None),
        }
    }
}
