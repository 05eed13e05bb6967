//! Makes the segment file of an object: sealed, in canonical form, of its opening and its entries.
//!
//! ```text
//! header | opening | the entries of the stretch, back to back | zeros | block index | footer
//! ```
//!
//! Canonical: the bytes follow from the entries, and from nothing else. No block that is no entry is in it, no block says what
//! was durable, and the salt follows from the log's id and the object's number. So all replicas make the same bytes, and so does
//! any later build.
//!
//! The bodies are those of the files, not copied: only the header of each block is another one.
//!
//! Must not know: what the entries mean, where the file goes.

use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::record::crc::Crc;
use crate::store::PROOF_BYTES_MAX;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::{
    FOOTER_BYTES, INDEX_STRIDE_BYTES, SEGMENT_BYTES_MAX, SEGMENT_HEADER_BYTES, data_limit, segment_bytes_for,
};
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::{Footer, IndexEntry, SegmentHeader, encode_index, version_of};
use crate::store::objects::names::salt;
use crate::store::segment::Base;
use crate::types::{LogId, SegmentId, Timestamp};
use bytes::Bytes;

/// The file of an object, in pieces.
#[derive(Debug)]
pub(crate) struct MadeObject {
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) object: StoredObject,
}

impl MadeObject {
    /// The offset of the first byte that differs in another file.
    pub(crate) fn first_difference(&self, other: &Bytes) -> Option<usize> {
        first_difference(&self.pieces, other, 0).or_else(|| {
            let bytes = self.pieces.iter().map(Bytes::len).sum();
            (bytes != other.len()).then_some(bytes)
        })
    }
}

/// The offset of the first byte of a file that differs from these pieces, which begin at this offset of it.
fn first_difference(pieces: &[impl AsRef<[u8]>], file: &[u8], mut at: usize) -> Option<usize> {
    for piece in pieces.iter().map(AsRef::as_ref) {
        let there = file.get(at..at + piece.len()).unwrap_or_default();
        if there != piece {
            return Some(at + there.iter().zip(piece).take_while(|(is, was)| is == was).count());
        }
        at += piece.len();
    }
    None
}

/// A block: its header and its body.
pub(crate) type Entry = (BlockHeader, Bytes);

/// The stretch of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) log: LogId,
    pub(crate) number: u64,
    pub(crate) begin: Base,
    pub(crate) end: Base,
}

/// Makes the segment file of a stretch: its opening, and its entries.
///
/// # Errors
/// `TooLarge`: no segment file is that large.
pub(crate) fn segment_file(stretch: &Stretch, entries: &[Entry]) -> Result<MadeObject> {
    let mut file = File::new(salt(stretch.log, stretch.number));
    for (header, body) in entries {
        file.push(*header, body.clone());
    }
    file.seal(stretch)
}

/// The first byte of the segment file of an object which is another one than when the file was made, if its blocks and its footer are
/// sound: no record depends on it, and the object's checksum does.
///
/// # Errors
/// Its blocks or its footer are damaged.
pub(crate) fn changed_byte(log: LogId, number: u64, file: &Bytes) -> Result<Option<usize>, Malformed> {
    let id = salt(log, number);
    let footer_at = file.len().checked_sub(FOOTER_BYTES).ok_or("segment file is cut off")?;
    let footer = file[footer_at..].first_chunk().ok_or("segment file is cut off")?;
    let footer = Footer::parse(footer, number + 1, id)?;
    let mut right = File::new(id);
    while right.end < footer.data_end as usize {
        let at = right.end;
        let ((header, body), _) = block_at(file, at, id)?;
        right.place(&header, &body);
        let own = BlockHeader { durable_upto: 0, ..header }.encode(id);
        let behind = at + header.length as usize;
        let changed = first_difference(&[own], file, at)
            .or_else(|| first_difference(&[&ZEROS[..right.end - behind]], file, behind));
        if changed.is_some() {
            return Ok(changed);
        }
    }
    let begin = Base { raft: footer.base_raft, term: footer.base_term, next: footer.first };
    let end = Base { raft: footer.last_raft, term: footer.last_term, next: footer.next };
    let Ok(Frame { header, behind, bytes, .. }) = right.frame(&Stretch { log, number, begin, end }) else {
        return Ok(Some(footer_at));
    };
    let changed = first_difference(&[header], file, 0).or_else(|| first_difference(&behind, file, right.end));
    Ok(changed.or_else(|| (bytes != file.len()).then_some(bytes)))
}

/// The block at an offset, with every byte checked, and where it ends.
pub(crate) fn block_at(bytes: &Bytes, at: usize, id: SegmentId) -> Result<(Entry, usize), Malformed> {
    let head = bytes.get(at..at + BLOCK_HEADER_BYTES).ok_or("block is cut off")?;
    let header = BlockHeader::parse(head, id)?;
    let end = at + header.length as usize;
    let block = bytes.get(at..end).ok_or("block is cut off")?;
    check_body(&header, block, true)?;
    Ok(((header, bytes.slice(at + BLOCK_HEADER_BYTES..end)), at + header.stride()))
}

/// The parts of a file around its blocks.
struct Frame {
    header: Bytes,
    /// From the end of the blocks to that of the file.
    behind: Vec<Bytes>,
    bytes: usize,
    index_crc: u32,
}

/// A file that is being made.
struct File {
    id: SegmentId,
    /// The pieces behind the header.
    pieces: Vec<Bytes>,
    /// Where its blocks end.
    end: usize,
    index: Vec<IndexEntry>,
    first_timestamp: Timestamp,
    last_timestamp: Timestamp,
    version: u32,
}

/// The padding behind a block.
static ZEROS: [u8; BLOCK_HEADER_BYTES] = [0; BLOCK_HEADER_BYTES];

impl File {
    fn new(id: SegmentId) -> Self {
        Self {
            id,
            pieces: Vec::new(),
            end: SEGMENT_HEADER_BYTES,
            index: Vec::new(),
            first_timestamp: Timestamp(0),
            last_timestamp: Timestamp(0),
            version: 1,
        }
    }

    fn push(&mut self, header: BlockHeader, body: Bytes) {
        let length = (BLOCK_HEADER_BYTES + body.len()) as u32;
        let header = BlockHeader { length, durable_upto: 0, ..header };
        self.place(&header, &body);
        let padding = header.stride() - header.length as usize;
        self.pieces.push(Bytes::copy_from_slice(&header.encode(self.id)));
        self.pieces.push(body);
        self.pieces.push(Bytes::from_static(&ZEROS[..padding]));
    }

    /// Counts the next block, without its bytes.
    fn place(&mut self, header: &BlockHeader, body: &[u8]) {
        if header.kind == Kind::Opening {
            self.first_timestamp = header.timestamp;
        }
        self.version = self.version.max(version_of(header.kind, body));
        self.last_timestamp = header.timestamp;
        let offset = self.end as u32;
        if self.index.last().is_none_or(|last| offset - last.offset >= INDEX_STRIDE_BYTES as u32) {
            let BlockHeader { first, raft_index, timestamp, .. } = *header;
            self.index.push(IndexEntry { first, raft_index, timestamp, offset });
        }
        self.end += header.stride();
    }

    fn seal(self, stretch: &Stretch) -> Result<MadeObject> {
        let Frame { header, behind, bytes, index_crc } = self.frame(stretch)?;
        let of_blocks = self.pieces.into_iter().filter(|piece| !piece.is_empty());
        let pieces: Vec<Bytes> = std::iter::once(header).chain(of_blocks).chain(behind).collect();
        let crc = pieces.iter().fold(Crc::new(), |crc, piece| crc.add(piece)).sum();
        let object = StoredObject {
            bytes: bytes as u32,
            data_end: self.end as u32,
            index_count: self.index.len() as u32,
            index_crc,
            crc,
        };
        debug_assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), bytes, "the pieces fill the file");
        Ok(MadeObject { pieces, object })
    }

    /// The parts around its blocks.
    ///
    /// # Errors
    /// `TooLarge`: no segment file is that large.
    fn frame(&self, stretch: &Stretch) -> Result<Frame> {
        let Stretch { log, number, begin, end } = *stretch;
        let bytes = segment_bytes_for(self.end + PROOF_BYTES_MAX);
        if bytes > SEGMENT_BYTES_MAX as usize {
            let what =
                format!("object {number} has {bytes} bytes, which is more than a segment file can have");
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        let (index, index_crc) = encode_index(&self.index);
        let index_offset = data_limit(bytes);
        let number_of_file = number + 1; // segments are numbered from 1
        let footer = Footer {
            number: number_of_file,
            id: self.id,
            base_raft: begin.raft,
            base_term: begin.term,
            first: begin.next,
            next: end.next,
            last_raft: end.raft,
            last_term: end.term,
            first_timestamp: self.first_timestamp,
            last_timestamp: self.last_timestamp,
            data_end: self.end as u32,
            index_offset: index_offset as u32,
            index_count: self.index.len() as u32,
            index_crc,
        };
        let header = SegmentHeader {
            log,
            number: number_of_file,
            id: self.id,
            bytes: bytes as u32,
            version: self.version,
        };
        let spare = bytes - FOOTER_BYTES - index_offset - index.len();
        let behind = vec![
            Bytes::from(vec![0; index_offset - self.end]),
            Bytes::from(index),
            Bytes::from(vec![0; spare]),
            Bytes::copy_from_slice(&footer.encode()),
        ];
        Ok(Frame { header: Bytes::from(header.encode()), behind, bytes, index_crc })
    }
}
