//! Archive: the log's blocks by raft index, from the files: all that is written, committed or not.
//!
//! Bytes that are written never change (a conflict is cut off by a roll, not overwritten), so what is handed out
//! stays as it is.
//!
//! Must not know: raft.

use super::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use super::cursor::Slice;
use super::layout::SEGMENT_HEADER_BYTES;
use super::segment::{Base, Segment, SegmentData, Segments, Source};
use super::walk::Learn;
use crate::batch::Malformed;
use crate::error::{Error, Result};
use crate::types::{RaftIndex, Term};
use bytes::Bytes;
use std::sync::Arc;

/// Reads blocks by raft index. Cheap to clone; `Send + Sync`; blocks on the device.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    segments: Arc<Segments>,
}

impl Archive {
    pub(crate) fn new(segments: Arc<Segments>) -> Self {
        Self { segments }
    }

    /// What comes just before the oldest entry.
    pub(crate) fn first(&self) -> Base {
        self.segments.first_base()
    }

    /// The term of an entry, or of the one before the oldest.
    pub(crate) fn term(&self, raft: RaftIndex) -> Result<Option<Term>> {
        let first = self.first();
        if raft == first.raft {
            return Ok(Some(first.term));
        }
        Ok(self.find(raft)?.map(|(_, header, _)| header.term))
    }

    /// Headers of the entries from `from` to before `to`: at least one if it is there, and no more than
    /// `bytes_max` of blocks.
    pub(crate) fn headers(&self, from: RaftIndex, to: RaftIndex, bytes_max: u64) -> Result<Vec<BlockHeader>> {
        let mut headers = Vec::new();
        let Some((mut data, first, mut at)) = self.find(from)? else { return Ok(headers) };
        let mut bytes = u64::from(first.length);
        at += first.stride();
        headers.push(first);
        while headers.last().is_some_and(|h| h.raft_index.next() < to) {
            let Some(header) = self.next_header(&data, at)? else {
                let Some(next) = self.segments.after(data.segment.number) else { break };
                data = self.segments.open(&next)?;
                at = SEGMENT_HEADER_BYTES;
                continue;
            };
            at += header.stride();
            if header.kind.is_entry() {
                bytes += u64::from(header.length);
                if bytes > bytes_max {
                    break;
                }
                headers.push(header);
            }
        }
        Ok(headers)
    }

    /// A block and its body, every byte checked.
    pub(crate) fn body(&self, raft: RaftIndex) -> Result<Option<(BlockHeader, Bytes)>> {
        let Some((data, header, at)) = self.find(raft)? else { return Ok(None) };
        Ok(Some((header, self.load(&data, &header, at)?)))
    }

    /// The opening block of the oldest segment.
    pub(crate) fn oldest_opening(&self) -> Result<(BlockHeader, Bytes)> {
        let Some(oldest) = self.segments.first() else {
            return Err(Error::new(crate::error::ErrorKind::NotFound, "the log has no segment"));
        };
        let data = self.segments.open(&oldest)?;
        self.opening(&data)
    }

    fn opening(&self, data: &Arc<SegmentData>) -> Result<(BlockHeader, Bytes)> {
        match self.next_header(data, SEGMENT_HEADER_BYTES)? {
            Some(header) if header.kind == Kind::Opening => {
                Ok((header, self.load(data, &header, SEGMENT_HEADER_BYTES)?))
            }
            _ => Err(corrupt(data, SEGMENT_HEADER_BYTES, "no opening block begins the segment")),
        }
    }

    /// Tells `learner` the blocks from the opening of the segment that holds `from` through the entry `to`, but no
    /// later openings: they say what is learnt already.
    pub(crate) fn replay(&self, from: RaftIndex, to: RaftIndex, learner: &mut dyn Learn) -> Result<()> {
        let Some(segment) = self.segments.based_at_most(from) else {
            return Err(Error::new(
                crate::error::ErrorKind::NotFound,
                format!("entry {from} is not in the log any more"),
            ));
        };
        let mut data = self.segments.open(&segment)?;
        let (opening, body) = self.opening(&data)?;
        let learn = |learner: &mut dyn Learn, data: &SegmentData, header: &BlockHeader, body: &[u8], at| {
            learner.learn(header, body).map_err(|why| corrupt(data, at, why))
        };
        let mut end = learn(learner, &data, &opening, &body, SEGMENT_HEADER_BYTES)?;
        let mut at = SEGMENT_HEADER_BYTES + opening.stride();
        while end.raft < to {
            let Some(header) = self.next_header(&data, at)? else {
                let Some(next) = self.segments.after(data.segment.number) else {
                    return Err(corrupt(&data, at, "the log ends before an entry that it should have"));
                };
                data = self.segments.open(&next)?;
                at = SEGMENT_HEADER_BYTES;
                continue;
            };
            if header.kind != Kind::Opening {
                let body = self.load(&data, &header, at)?;
                end = learn(learner, &data, &header, &body, at)?;
            }
            at += header.stride();
        }
        Ok(())
    }

    /// The entry `raft`: its segment, header and place.
    fn find(&self, raft: RaftIndex) -> Result<Option<(Arc<SegmentData>, BlockHeader, usize)>> {
        let Some(segment) = self.segments.holding_raft(raft) else { return Ok(None) };
        let data = self.segments.open(&segment)?;
        let mut at = data.seek(|e| e.raft_index < raft)?;
        while let Some(header) = self.next_header(&data, at)? {
            if header.kind.is_entry() && header.raft_index >= raft {
                return Ok((header.raft_index == raft).then_some((data, header, at)));
            }
            at += header.stride();
        }
        Ok(None)
    }

    fn next_header(&self, data: &Arc<SegmentData>, at: usize) -> Result<Option<BlockHeader>> {
        if at >= data.segment.data_end() {
            return Ok(None);
        }
        let head = self.bytes(data, at, BLOCK_HEADER_BYTES)?;
        BlockHeader::parse(&head, data.segment.id).map(Some).map_err(|why| corrupt(data, at, why))
    }

    fn load(&self, data: &Arc<SegmentData>, header: &BlockHeader, at: usize) -> Result<Bytes> {
        let block = self.bytes(data, at, header.length as usize)?;
        check_body(header, &block, true).map_err(|why| corrupt(data, at, why))?;
        let length = block.len();
        Ok(block.slice(BLOCK_HEADER_BYTES..length).into_bytes())
    }

    fn bytes(&self, data: &Arc<SegmentData>, at: usize, length: usize) -> Result<Slice> {
        match &data.source {
            Source::Map(map) if at + length <= map.len() => {
                Ok(Slice::Mapped { data: data.clone(), range: at..at + length })
            }
            Source::Map(_) => Err(corrupt(data, at, "the file ends before its last block")),
            Source::File(file) => {
                let mut bytes = vec![0; length];
                file.read_at(at as u64, &mut bytes).map_err(|e| Error::io("read", &data.path, e))?;
                Ok(Slice::Copied(bytes.into()))
            }
        }
    }
}

fn corrupt(data: &SegmentData, at: usize, why: Malformed) -> Error {
    Error::corrupt(&data.path, at as u64, why)
}
