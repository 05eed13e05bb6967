//! The header and the opening of each segment file, as they are read before any block.
//!
//! Must not know: other segments.

use super::window::FileWindow;
use crate::disk::Disk;
use crate::error::Result;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::identity::newer;
use crate::store::format::segment::{FORMAT_VERSION, HeaderFault, Opening, SegmentHeader};
use crate::store::segment::file_name;
use crate::types::{Index, LogId, SegmentId};
use std::io;

/// A segment as the survey read it.
pub(super) struct Found {
    pub(super) number: u64,
    /// None if its header is lost; the walk reports why.
    pub(super) header: Option<SegmentHeader>,
    /// The header of its opening block, if it has begun.
    pub(super) opening: Option<BlockHeader>,
    /// The log's first index in that opening.
    pub(super) log_first: Option<Index>,
    /// Its first block was read and is no opening: nothing was written to it yet, or it is damaged.
    pub(super) unbegun: bool,
}

impl Found {
    /// Reads header and opening. None if the file does not exist.
    ///
    /// # Errors
    /// `Unsupported`: a newer version wrote the file.
    pub(super) fn read(disk: &dyn Disk, number: u64) -> Result<Option<Self>> {
        let unreadable =
            Ok(Some(Self { number, header: None, opening: None, log_first: None, unbegun: false }));
        let mut window = match disk.open(&file_name(number), false).and_then(FileWindow::new) {
            Ok(window) => window,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(_) => return unreadable,
        };
        let header = match read_header(&mut window, number) {
            Header::Sound(header) | Header::Guessed(header, _) => header,
            Header::Lost(_) => return unreadable,
            Header::Newer(version) => return Err(newer(&disk.path().join(file_name(number)), version)),
        };
        let first = window.get(SEGMENT_HEADER_BYTES as u64, BLOCK_HEADER_BYTES);
        let first = first.map(|bytes| BlockHeader::parse(bytes, header.id).ok());
        let unbegun = matches!(first, Ok(None));
        let opening = first.ok().flatten().filter(|h| h.kind == Kind::Opening);
        let log_first = opening.and_then(|h| {
            let block = window.get(SEGMENT_HEADER_BYTES as u64, h.length as usize).ok()?;
            check_body(&h, block, true).ok()?;
            Some(Opening::parse(&block[BLOCK_HEADER_BYTES..]).ok()?.log_first)
        });
        Ok(Some(Self { number, header: Some(header), opening, log_first, unbegun }))
    }

    /// Whether all records before this segment are discarded when those below `first` are: then no older segment has
    /// to lead to it.
    pub(super) fn follows_discard(&self, first: Index) -> bool {
        self.opening.is_some_and(|h| h.first <= first)
    }
}

/// The header of a file, as read.
pub(super) enum Header {
    Sound(SegmentHeader),
    /// It is damaged, but its id is known from elsewhere, so that the blocks can be read.
    Guessed(SegmentHeader, String),
    /// It is damaged, and its id is unknown.
    Lost(String),
    /// It needs a reader of this format version.
    Newer(u32),
}

pub(super) fn read_header(window: &mut FileWindow, number: u64) -> Header {
    let length = window.len().min(SEGMENT_HEADER_BYTES as u64) as usize;
    let (head, what) = match window.get(0, length) {
        Err(e) => (Vec::new(), format!("segment header cannot be read: {e}")),
        Ok(head) => match SegmentHeader::parse(head) {
            Ok(header) => return Header::Sound(header),
            Err(HeaderFault::Newer(version)) => return Header::Newer(version),
            Err(HeaderFault::Malformed(what)) => (head.to_vec(), what.to_string()),
        },
    };
    match guess(window, &head, number) {
        Some(header) => Header::Guessed(header, what),
        None => Header::Lost(what),
    }
}

/// Finds a damaged header's id: in its own bytes, if the damage is elsewhere, or in the footer. An id is right if the
/// first block's checksum matches under it.
fn guess(window: &mut FileWindow, head: &[u8], number: u64) -> Option<SegmentHeader> {
    let bytes = u32::try_from(window.len()).ok()?;
    let word =
        |bytes: &[u8], at: usize| bytes.get(at..at + 8)?.first_chunk().copied().map(u64::from_le_bytes);
    let own = word(head, 48);
    let footer = window.len().checked_sub(FOOTER_BYTES as u64);
    let sealed = footer.and_then(|at| word(window.get(at, FOOTER_BYTES).ok()?, 24));
    let block = window.get(SEGMENT_HEADER_BYTES as u64, BLOCK_HEADER_BYTES).ok()?;
    let id = [own, sealed]
        .into_iter()
        .flatten()
        .map(SegmentId)
        .find(|id| BlockHeader::parse(block, *id).is_ok())?;
    let log = head.get(24..40).and_then(|log| log.first_chunk()).map_or(0, |log| u128::from_le_bytes(*log));
    Some(SegmentHeader { log: LogId(log), number, id, bytes, version: FORMAT_VERSION })
}
