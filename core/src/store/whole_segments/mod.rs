//! Restores whole segment files for a replica that does not open: a lost header, a lost length, and a new segment that
//! continues at an earlier entry. A replaced file is kept under another name until the log opens.
//!
//! Invariant: a file gets its name `*.seg` only once all of it is durable.
//!
//! Must not know: which entries are missing in a file.

use super::allocator::random_id;
use super::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use super::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use super::format::segment::{FORMAT_VERSION_FIRST, Footer, SegmentHeader, version_of, version_of_blocks};
use super::read::scanner::Scanner;
use super::recovery::gap::{BlockCopy, write_differing};
use super::segment::file_name;
use crate::disk::{Disk, DiskFile, is_no_space};
use crate::error::{self, Error, Result};
use crate::record::batch::{u32_at, u64_at};
use crate::store::format::geometry::SEGMENT_BYTES_MIN;
use crate::types::{LogId, SegmentId};
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;

/// Restores the header of a segment file if its salt is still known: the footer contains the salt as well, and the
/// blocks prove it.
///
/// # Errors
/// `Corrupt`: the salt is not known; `Io`.
pub(crate) fn restore_header(disk: &dyn Disk, log: LogId, number: u64) -> Result<()> {
    let name = file_name(number);
    let path = disk.path().join(&name);
    let io = |e| Error::io("read", &path, e);
    let file = disk.open(&name, false).map_err(io)?;
    let bytes = file.len().map_err(io)?;
    let lost = || {
        Error::corrupt(
            &path,
            0,
            "the segment's header is lost, and its salt is not known from its footer or blocks",
        )
    };
    let bytes = u32::try_from(bytes).map_err(|_| lost())?;
    let mut head = vec![0; SEGMENT_HEADER_BYTES];
    let mut tail = [0; FOOTER_BYTES];
    if (bytes as usize) < SEGMENT_HEADER_BYTES + FOOTER_BYTES {
        return Err(lost());
    }
    file.read_at(0, &mut head).map_err(io)?;
    file.read_at(u64::from(bytes) - FOOTER_BYTES as u64, &mut tail).map_err(io)?;
    if SegmentHeader::parse(&head).is_ok() {
        return Err(lost()); // something else is wrong
    }
    // The salt at its position in the header, and at its position in a footer.
    for id in [u64_at(&head, 48), u64_at(&tail, 24)].map(SegmentId) {
        let mut scanner = Scanner::new(file.clone(), path.clone(), id, bytes as usize);
        // Either of them shows that the file has its whole length.
        let whole = u32_at(&head, 20) == bytes || Footer::parse(&tail, number, id).is_ok();
        if whole && scanner.seek(SEGMENT_HEADER_BYTES, scanner.limit())?.is_some() {
            // Readers must support the highest version of all its sound blocks.
            let mut version = FORMAT_VERSION_FIRST;
            let kinds = [Kind::Opening, Kind::Command];
            scanner.each_sound(&kinds, |block, body| version = version.max(version_of(block.kind, body)))?;
            let header = SegmentHeader { log, number, id, bytes, version };
            return write_differing(disk, number, 0, &header.encode());
        }
    }
    Err(lost())
}

/// Makes a missing or shortened segment file its whole length, so that the lost part is an ordinary gap. Existing bytes
/// do not change. A file that is missing or has lost its header gets `bytes` bytes and a new salt. False: the file
/// exists and is not too short.
///
/// # Errors
/// `Full`, `Io`.
pub(crate) fn make_whole(disk: &dyn Disk, log: LogId, number: u64, bytes: u32) -> Result<bool> {
    let name = file_name(number);
    let path = disk.path().join(&name);
    let io = |e| Error::io("restore", &path, e);
    let old = match disk.open(&name, false) {
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        opened => Some(opened.map_err(io)?),
    };
    let length = old.as_ref().map_or(Ok(0), |file| file.len()).map_err(io)?;
    let mut head = vec![0; SEGMENT_HEADER_BYTES];
    let mut header = None;
    if let Some(file) = old.as_ref().filter(|_| length >= SEGMENT_HEADER_BYTES as u64) {
        file.read_at(0, &mut head).map_err(io)?;
        header = SegmentHeader::parse(&head).ok().filter(|h| (h.log, h.number) == (log, number));
    }
    let header = match header {
        Some(header) if length < u64::from(header.bytes) => header,
        None if length < u64::from(SEGMENT_BYTES_MIN) => {
            let id = random_id(disk).map_err(io)?;
            SegmentHeader { log, number, id, bytes, version: FORMAT_VERSION_FIRST }
        }
        _ => return Ok(false),
    };
    let keep = |file: &dyn DiskFile| {
        let mut at = SEGMENT_HEADER_BYTES as u64;
        while let Some(old) = old.as_ref().filter(|_| at < length) {
            let mut piece = vec![0; (length - at).min(1 << 20) as usize];
            old.read_at(at, &mut piece)?;
            file.write_at(at, &[IoSlice::new(&piece)])?;
            at += piece.len() as u64;
        }
        Ok(())
    };
    put_in_place(disk, &header, keep).map_err(|e| not_made("restore", &path, bytes, e))?;
    Ok(true)
}

/// The suffix of the name of a segment file that was replaced.
const ASIDE: &str = ".aside";

/// Renames a segment file if it exists, so that another one can replace it. The new name is durable afterwards: names
/// become durable one by one, and a crash could keep the new file's name and lose this one.
///
/// # Errors
/// `Io`.
pub(crate) fn set_aside(disk: &dyn Disk, number: u64) -> Result<()> {
    let (name, aside) = (file_name(number), format!("{number:020}{ASIDE}"));
    let found = |what: io::Result<()>| match what {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("set aside", &disk.path().join(&name), e)),
    };
    // If a file is aside already, it was there first: the file in its place was made by a repair.
    let is_aside = found(disk.open(&aside, false).map(drop))?;
    found(if is_aside { disk.remove(&name) } else { disk.rename(&name, &aside) })?;
    found(disk.sync_dir())?; // also for a file that was moved by a program killed before this line
    Ok(())
}

/// Whether a file was renamed by [`set_aside`].
pub(crate) fn is_aside(name: &str) -> bool {
    let number = name.strip_suffix(ASIDE).and_then(|n| n.parse().ok());
    number.is_some_and(|number: u64| name == format!("{number:020}{ASIDE}"))
}

/// Makes a segment file that begins with `blocks`, the first of which is its opening. The file gets its name only once
/// all of it is durable.
///
/// # Errors
/// `Io`.
pub(crate) fn begin_segment(
    disk: &dyn Disk,
    log: LogId,
    number: u64,
    bytes: u32,
    blocks: &[BlockCopy],
) -> Result<()> {
    let path = disk.path().join(file_name(number));
    let io = |e| Error::io("make", &path, e);
    let id = random_id(disk).map_err(io)?;
    let mut out = Vec::new();
    for (header, body) in blocks {
        let header = BlockHeader { durable_upto: 0, ..*header };
        out.extend_from_slice(&header.encode(id));
        body.iter().for_each(|piece| out.extend_from_slice(piece));
        out.resize(out.len().next_multiple_of(BLOCK_HEADER_BYTES), 0);
    }
    let version = version_of_blocks(&out, id);
    let header = SegmentHeader { log, number, id, bytes, version };
    put_in_place(disk, &header, |file| file.write_at(SEGMENT_HEADER_BYTES as u64, &[IoSlice::new(&out)]))
        .map_err(|e| not_made("make", &path, bytes, e))
}

/// The error of a segment file that could not be made.
fn not_made(doing: &str, path: &Path, bytes: u32, why: io::Error) -> Error {
    if !is_no_space(&why) {
        return Error::io(doing, path, why);
    }
    let what = format!(
        "no space left to {doing} segment {}, which takes {bytes} bytes: free disk space, and open the log again",
        path.display()
    );
    Error::new(error::ErrorKind::Full, what)
}

/// Makes a segment file under another name: its header, zeros, and the bytes that `fill` writes. Then renames it.
fn put_in_place(
    disk: &dyn Disk,
    header: &SegmentHeader,
    fill: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
) -> io::Result<()> {
    let (name, tmp) = (file_name(header.number), format!("{:020}.tmp", header.number));
    match disk.remove(&tmp) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.create(&tmp)?;
    file.allocate(header.bytes.into())?;
    file.fill_with_zeros(0..header.bytes.into())?;
    file.write_at(0, &[IoSlice::new(&header.encode())])?;
    fill(&*file)?;
    file.sync()?;
    disk.rename(&tmp, &name)?;
    disk.sync_dir()
}

#[cfg(all(test, feature = "testing", not(loom)))]
mod tests;
