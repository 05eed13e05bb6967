//! Header: raises the version that a segment asks of its readers, before the first block that needs it is written.
//!
//! A segment file is prepared before it is known what will be in it, so its header asks for the first version of the
//! format. The first block that a reader of that version would not understand has the header's first sector written
//! again, and synced, before it is written itself. A reader of an earlier version then refuses the file by its header, and
//! never takes such a block for a torn write.
//!
//! Invariant: nothing of a header changes but the versions and the checksum, which share one sector: a crash leaves the
//! one header or the other.

use crate::disk::{DiskFile, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{HeaderFault, SegmentHeader};
use std::io::IoSlice;
use std::path::Path;

/// Sees to it that readers of this segment know at least this version. No sync of the file may be about. Blocks on the
/// device if the header asks for less.
///
/// # Errors
/// `Corrupt`: the header is damaged. `Io`: what is on the disk is unknown.
pub(crate) fn raise_version(file: &dyn DiskFile, path: &Path, version: u32) -> Result<()> {
    let mut head = vec![0; SEGMENT_HEADER_BYTES];
    file.read_at(0, &mut head).map_err(|e| Error::io("read", path, e))?;
    let header = match SegmentHeader::parse(&head) {
        Ok(header) if header.version < version => header,
        Ok(_) | Err(HeaderFault::Newer(_)) => return Ok(()),
        Err(HeaderFault::Malformed(why)) => return Err(Error::corrupt(path, 0, why)),
    };
    let raised = SegmentHeader { version, ..header }.encode();
    file.write_at(0, &[IoSlice::new(&raised[..SECTOR_BYTES])]).map_err(|e| Error::io("write", path, e))?;
    file.sync().map_err(|e| Error::io("sync", path, e))
}
