//! Chain: follows the blocks of one segment from its opening block, as long as they are sound and consecutive. It
//! separates durable blocks from unproven ones, and knows which are committed.

use super::scanner::Scanner;
use super::segment_files::SegmentFile;
use crate::error::Result;
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{IndexEntry, SegmentHeader};
use crate::store::segment::{Base, Segment};
use crate::types::{EntryIndex, Index};
use std::collections::VecDeque;
use std::sync::Arc;

/// The entries that recovery keeps for objects that may have to be stored again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptForSuspects {
    /// The last entry before the first of them, and before the last one.
    pub(crate) from: EntryIndex,
    pub(crate) last: EntryIndex,
    /// The log's first record.
    pub(crate) first: Index,
}

impl KeptForSuspects {
    /// The files that are kept for either.
    pub(crate) fn both(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let Some((a, b)) = one.zip(other) else { return one.or(other) };
        let (from, last, first) = (a.from.min(b.from), a.last.max(b.last), a.first.min(b.first));
        Some(Self { from, last, first })
    }
}

/// Learns the blocks of the last segment, in order, and interprets them.
pub(crate) trait Learn {
    /// Learns the next block. Returns the position after it, or the reason why it cannot follow.
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed>;
    /// The log's first index according to the learned blocks that are known to be committed.
    fn first(&self) -> Index;
    /// The last entry before an object that has yet to be stored: its files are kept as long as they are there. Unless the log's first
    /// record is known to be committed, no record counts as discarded.
    fn kept_for_object(&self, _is_first_committed: bool) -> Option<EntryIndex> {
        None
    }
    /// The same of those that may have to be stored again.
    fn kept_for_suspects(&self) -> Option<KeptForSuspects> {
        None
    }
    /// Marks learned entries through `raft` as committed, because of information from elsewhere.
    fn commit_to(&mut self, raft: EntryIndex);
    /// The last entry known to be committed according to the learned blocks; for a log on its own, the last one.
    fn commit(&self) -> EntryIndex;
    /// Returns a fresh learner of the same kind, to examine the log's past.
    fn fresh_learner(&self) -> Box<dyn Learn + '_>;
}

/// Walks a segment's blocks from its opening block on.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) header: SegmentHeader,
    pub(crate) segment: Option<Arc<Segment>>,
    pub(crate) at: usize,
    pub(crate) end: Base,
    /// The state known to be durable and committed.
    pub(crate) proven: Proven,
    /// Blocks not known to be durable.
    pub(crate) unproven: VecDeque<Unproven>,
    /// Durable blocks not known to be committed.
    uncommitted: VecDeque<Unproven>,
    /// The last entry known to be committed.
    pub(crate) commit: EntryIndex,
    /// The log's first index after the opening block, and each later change with the entry that made it.
    firsts: Vec<(EntryIndex, Index)>,
}

/// The durable and committed state of a log, which may be shown to readers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proven {
    /// The position after the last block.
    pub(crate) end: Base,
    /// The log's first index as of that block.
    pub(crate) first: Index,
}

/// A block that no later block proves durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unproven {
    pub(crate) from: usize,
    to: usize,
    /// The state once this block is proven.
    then: Proven,
    records: u32,
    /// A marker needs no other marker. But it counts as unproven, because it must stay if blocks are to follow it.
    pub(crate) marker: bool,
}

impl Walk {
    pub(crate) fn new(file: &SegmentFile) -> Self {
        Self {
            header: file.header,
            segment: None,
            at: SEGMENT_HEADER_BYTES,
            end: Base::default(),
            proven: Proven::default(),
            unproven: VecDeque::new(),
            uncommitted: VecDeque::new(),
            commit: EntryIndex(0),
            firsts: Vec::new(),
        }
    }

    /// The start of the segment, once its opening block was walked.
    pub(crate) fn base(&self) -> Base {
        self.segment.as_ref().map_or(Base::default(), |s| s.base)
    }

    /// The log's first index as of entry `index`. `None`: that entry is before this segment.
    pub(crate) fn first_at(&self, index: EntryIndex) -> Option<Index> {
        self.firsts.iter().rev().find(|(at, _)| *at <= index).map(|(_, first)| *first)
    }

    /// Walks as far as blocks are sound and consecutive. Returns why it stopped; `None` at the limit.
    pub(crate) fn run(
        &mut self,
        scanner: &mut Scanner,
        learner: &mut dyn Learn,
    ) -> Result<Option<Malformed>> {
        while self.at + BLOCK_HEADER_BYTES <= scanner.limit() {
            let (header, body) = match scanner.block(self.at)? {
                Ok(block) => block,
                Err(why) => return Ok(Some(why)),
            };
            if (header.kind == Kind::Opening) != self.segment.is_none() {
                return Ok(Some("opening block out of place"));
            }
            let end = match learner.learn(&header, body) {
                Ok(end) => end,
                Err(why) => return Ok(Some(why)),
            };
            self.commit = self.commit.max(learner.commit());
            self.take(&header, Proven { end, first: learner.first() });
        }
        Ok(None)
    }

    /// Marks all walked blocks as durable, because the next segment has begun.
    pub(crate) fn prove_all(&mut self) {
        self.uncommitted.append(&mut self.unproven);
        self.settle();
    }

    /// Records in sound blocks that no later block proves durable.
    pub(crate) fn unproven_records(&self) -> u64 {
        self.unproven.iter().map(|u| u64::from(u.records)).sum()
    }

    fn take(&mut self, header: &BlockHeader, then: Proven) {
        let end = then.end;
        let SegmentHeader { number, id, bytes, .. } = self.header;
        let segment = self.segment.get_or_insert_with(|| {
            // Entries before this segment are durable, otherwise it would not have begun.
            if end.raft <= self.commit {
                self.proven = then;
            }
            Arc::new(Segment::growing(number, id, bytes, end, header.timestamp))
        });
        let entry = IndexEntry {
            first: header.first,
            raft_index: header.raft_index,
            timestamp: header.timestamp,
            offset: self.at as u32,
        };
        segment.grow(entry, header.stride(), end);
        if self.firsts.last().is_none_or(|(_, first)| *first != then.first) {
            // A discard takes effect once it is known to be committed, which a later block can show. An opening block's
            // first index holds from its own position: the discard that led to it may not have been committed.
            let opening = header.kind == Kind::Opening;
            self.firsts.push((
                if opening || planted!(20) { end.raft } else { end.raft.min(self.commit) },
                then.first,
            ));
        }
        while let Some(block) = self.unproven.front().filter(|u| u.to <= header.durable_upto as usize) {
            self.uncommitted.push_back(*block);
            self.unproven.pop_front();
        }
        self.settle();
        let from = self.at;
        self.at += header.stride();
        self.end = end;
        let marker = header.kind == Kind::Marker;
        let records = header.record_count;
        self.unproven.push_back(Unproven { from, to: self.at, then, records, marker });
    }

    /// Publishes blocks that are durable and committed.
    fn settle(&mut self) {
        while let Some(block) = self.uncommitted.front().filter(|u| u.then.end.raft <= self.commit) {
            self.proven = block.then;
            if let Some(segment) = &self.segment {
                segment.publish(block.to);
            }
            self.uncommitted.pop_front();
        }
    }
}
