//! Segment files, as the helper thread makes, seals, restores, reuses and removes them.

use super::Allocator;
use crate::disk::{Disk, DiskFile, is_no_space};
use crate::error::{Error, ErrorKind, Result};
use crate::store::background::{AHEAD, Outcome, PreparedSegment};
use crate::store::format::geometry::{
    FOOTER_BYTES, INDEX_ENTRY_BYTES, SEGMENT_HEADER_BYTES, data_limit, tail_reserve,
};
use crate::store::format::segment::{Footer, SegmentHeader, encode_index};
use crate::store::read::sorted_copies::sorted_name;
use crate::store::segment::{Segment, file_name};
use crate::types::SegmentId;
use std::io;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A new file is filled in pieces of this size; filling can stop after each.
const FILL_BYTES: u64 = 1 << 20;
/// How long files are filled on while an append waits for one. Each sync of a file that was not filled changes metadata, too: a growing
/// log with 128 appends in flight is a fifth slower then (docs/performance.md). On a slow disk the zeros would take longer than they save.
const FILL_PATIENCE: Duration = Duration::from_millis(100);

impl Allocator {
    /// Makes `number.seg` from an old file or a new one. The error includes the old file if it still exists.
    pub(super) fn prepare(
        &self,
        number: u64,
        spare: Option<String>,
    ) -> Result<PreparedSegment, (Error, Option<String>)> {
        let (tmp, name) = (format!("{number:020}.tmp"), file_name(number));
        let path = self.disk.path().join(&name);
        let make = || -> io::Result<PreparedSegment> {
            let file = match &spare {
                Some(old) => {
                    self.disk.rename(old, &tmp)?;
                    // The old name must be gone before the contents are overwritten: a file named *.seg has a valid
                    // header.
                    self.disk.sync_dir()?;
                    self.disk.open(&tmp, true)?
                }
                None => {
                    let file = match self.disk.create(&tmp) {
                        // Left by a failed attempt that could not clean up.
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                            self.disk.remove(&tmp)?;
                            self.disk.create(&tmp)?
                        }
                        other => other?,
                    };
                    self.fill(&*file, FILL_PATIENCE)?;
                    file
                }
            };
            let header = SegmentHeader {
                log: self.log,
                number,
                id: random_id(&*self.disk)?,
                bytes: self.segment_bytes,
                version: self.version.load(Ordering::Relaxed),
            };
            file.write_at(0, &[IoSlice::new(&header.encode())])?;
            file.sync()?;
            self.disk.rename(&tmp, &name)?;
            if !planted!(5) {
                self.disk.sync_dir()?;
            }
            Ok(PreparedSegment { number, id: header.id, bytes: header.bytes, file })
        };
        make().map_err(|e| {
            // Otherwise the file would keep the rest of a full disk occupied. If this fails, the next opening removes
            // it.
            let _ = self.disk.remove(&tmp);
            // A rename can take effect and still fail.
            let kept = spare.filter(|old| self.disk.open(old, false).is_ok());
            let error = if is_no_space(&e) {
                let what = format!(
                    "no space left for segment {}, which takes {} bytes: free disk space, or use smaller segments (option segment_bytes, of commands --segment-bytes)",
                    path.display(),
                    self.segment_bytes
                );
                Error::new(ErrorKind::Full, what)
            } else {
                Error::io("prepare segment", &path, e)
            };
            (error, kept)
        })
    }

    /// Restores a shortened segment file to its full size with zeros, durably. The lost blocks are then ordinary
    /// damage. Returns whether the file was too short.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn restore_length(&self, segment: &Segment) -> Result<bool> {
        let name = file_name(segment.number);
        let path = self.disk.path().join(&name);
        let io = |doing: &'static str| {
            let path = path.clone();
            move |e| Error::io(doing, &path, e)
        };
        let file = self.disk.open(&name, true).map_err(io("open"))?;
        let length = file.len().map_err(io("measure"))?;
        if length >= u64::from(segment.bytes) {
            return Ok(false);
        }
        tracing::error!(file = %path.display(), length, was = segment.bytes, "the file of a segment was shortened; its missing blocks are damaged");
        file.fill_with_zeros(length..segment.bytes.into()).map_err(io("lengthen"))?;
        if length < SEGMENT_HEADER_BYTES as u64 {
            let (number, id, bytes) = (segment.number, segment.id, segment.bytes);
            // The contents are not known: repair raises the version with the blocks that it restores.
            let version = self.version.load(Ordering::Relaxed);
            let header = SegmentHeader { log: self.log, number, id, bytes, version };
            file.write_at(0, &[IoSlice::new(&header.encode())]).map_err(io("repair"))?;
        }
        file.sync().map_err(io("sync"))?;
        Ok(true)
    }

    /// Allocates a new file for real, and fills it with zeros, so that writes into it change nothing but data. Stops
    /// filling if the log is closed, because the file is not needed then. Also stops once an append has waited for a
    /// file for longer than `patience`. Within a job of another log it fills nothing: that one's appends can wait as well.
    pub(super) fn fill(&self, file: &dyn DiskFile, patience: Duration) -> io::Result<()> {
        let bytes = u64::from(self.segment_bytes);
        let is_allocated = file.allocate(bytes)?;
        if is_allocated && self.is_within_another() {
            return Ok(());
        }
        for from in (0..bytes).step_by(FILL_BYTES as usize) {
            let (ending, since) = {
                let state = self.lock();
                (state.ending, state.awaited_since.filter(|_| state.awaited || state.blocked > 0))
            };
            if ending {
                return Err(io::Error::other("the log is being closed"));
            }
            if is_allocated && since.is_some_and(|since| since.elapsed() >= patience) {
                return Ok(());
            }
            file.fill_with_zeros(from..bytes.min(from + FILL_BYTES))?;
            self.give_way();
        }
        Ok(())
    }

    /// Writes the block index and the footer of a full segment.
    pub(super) fn write_footer(&self, segment: &Segment) -> Result<()> {
        let extent = segment.extent();
        let Some(entries) = extent.growing_index() else { return Ok(()) };
        let (index, index_crc) = encode_index(entries);
        let size = segment.bytes as usize;
        let index_offset = data_limit(size);
        assert!(index.len() + FOOTER_BYTES <= tail_reserve(size), "the index fits its reserve");
        let end = extent.end;
        let footer = Footer {
            number: segment.number,
            id: segment.id,
            base_raft: segment.base.raft,
            base_term: segment.base.term,
            first: segment.base.next,
            next: end.next,
            last_raft: end.raft,
            last_term: end.term,
            first_timestamp: segment.first_timestamp,
            last_timestamp: extent.last_timestamp,
            data_end: extent.data_end as u32,
            index_offset: index_offset as u32,
            index_count: (index.len() / INDEX_ENTRY_BYTES) as u32,
            index_crc,
        };
        let bytes = footer.encode();
        let path = self.disk.path().join(file_name(segment.number));
        let write = || -> io::Result<()> {
            let file = self.disk.open(&file_name(segment.number), true)?;
            // A crash can leave the footer without its index: the index's own checksum shows that.
            file.write_at(index_offset as u64, &[IoSlice::new(&index)])?;
            file.write_at((size - bytes.len()) as u64, &[IoSlice::new(&bytes)])?;
            file.sync()
        };
        write().map_err(|e| Error::io("seal segment", &path, e))?;
        segment.seal(&footer);
        Ok(())
    }

    /// Makes a dropped segment's file a spare if no reader has it, one is needed and its size is right.
    pub(super) fn reuse_or_remove(&self, segment: Arc<Segment>) -> Outcome {
        let number = segment.number;
        let (name, spare) = (file_name(number), format!("{number:020}.tmp"));
        let right_size = segment.bytes == self.segment_bytes;
        let own = segment.number >= self.own_from;
        let unread = Arc::try_unwrap(segment).is_ok();
        let wanted = {
            let state = self.lock();
            state.spare.len() < AHEAD
        };
        if self.has_copies.load(Ordering::Relaxed) {
            let _ = self.disk.remove(&sorted_name(number)); // it may have none
        }
        // Renamed at once, to leave the sequence of segments: otherwise a reader of the directory would miss those
        // after it.
        if right_size && own && unread && wanted && self.disk.rename(&name, &spare).is_ok() {
            return Outcome::Spare(spare);
        }
        let removed = self.disk.remove(&name).and_then(|()| self.disk.sync_dir());
        if let Err(error) = removed {
            tracing::warn!(%error, file = name, "a discarded segment could not be removed; the next opening removes it");
        }
        Outcome::Removed
    }
}

/// Returns a random id, a new salt; never 0.
pub(crate) fn random_id(disk: &dyn Disk) -> io::Result<SegmentId> {
    let mut bytes = [0; 8];
    disk.random(&mut bytes)?;
    Ok(SegmentId(u64::from_le_bytes(bytes) | 1))
}

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(crate::disk::SECTOR_BYTES));
