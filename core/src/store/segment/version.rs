//! Raises the version that a segment's header requires from readers, before the first block that needs it is written.
//!
//! A segment file is prepared before its contents are known, so its header requires the first version of the format.
//! Before a block that readers of that version would not understand, the header's first sector is written again and
//! synced. An older reader then refuses the file because of its header, and never mistakes the block for a torn write.
//!
//! Invariant: only the versions and the checksum of a header change, and they share one sector: a crash
//! or a failed write leaves the old header or the new one.

use crate::disk::{DiskFile, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{HeaderFault, SegmentHeader};
use std::io::IoSlice;
use std::path::Path;

/// Makes the segment's header require at least this version. No sync of the file may be in progress. Blocks for the
/// device if the header requires less.
///
/// # Errors
/// `Corrupt`: the header is damaged. `Io`: the contents of the disk are unknown.
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
