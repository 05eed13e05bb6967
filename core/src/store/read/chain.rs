//! Walk: goes along the blocks of one segment, from its opening block, as far as they are sound and follow each
//! other; keeps apart what is proven durable and what is not, and what is known committed.

use super::scanner::{Found, Scanner};
use super::segment_files::Opened;
use crate::error::Result;
use crate::record::batch::Malformed;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{IndexEntry, SegmentHeader};
use crate::store::segment::{Base, Segment};
use crate::types::{EntryIndex, Index};
use std::collections::VecDeque;
use std::sync::Arc;

/// Who learns the blocks of the last segment, in order, and knows what they mean.
pub(crate) trait Learn {
    /// Takes the next block; says what comes after it, or why it cannot follow.
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed>;
    /// The log's first index as of what is known committed of the blocks learnt.
    fn first(&self) -> Index;
    /// So much of what was learnt is known committed, by what stands elsewhere.
    fn commit_to(&mut self, raft: EntryIndex);
    /// The last entry known committed as of the blocks learnt: of a log on its own, the last one.
    fn commit(&self) -> EntryIndex;
    /// Another one like it that has learnt nothing, to look at the log's past with.
    fn again(&self) -> Box<dyn Learn + '_>;
}

/// Walks a segment's blocks from its opening block on.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) header: SegmentHeader,
    pub(crate) segment: Option<Arc<Segment>>,
    pub(crate) at: usize,
    pub(crate) end: Base,
    /// What is known durable and committed.
    pub(crate) proven: Proven,
    /// Blocks not known durable.
    pub(crate) unproven: VecDeque<Unproven>,
    /// Durable blocks not known committed.
    uncommitted: VecDeque<Unproven>,
    /// The last entry known committed.
    pub(crate) commit: EntryIndex,
    /// The log's first index after the opening block, and wherever it moved, with the entry it moved at.
    firsts: Vec<(EntryIndex, Index)>,
}

/// What is known durable and committed of a log: what may be shown of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proven {
    /// What comes after the last block.
    pub(crate) end: Base,
    /// The log's first index as of that block.
    pub(crate) first: Index,
}

/// A block that nothing behind it says was durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unproven {
    pub(crate) from: usize,
    to: usize,
    /// What is known once it is.
    then: Proven,
    records: u32,
    /// A marker needs no marker. But it has to stay if blocks are to follow it, so it is no less unproven.
    pub(crate) marker: bool,
}

impl Walk {
    pub(crate) fn new(opened: &Opened) -> Self {
        Self {
            header: opened.header,
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

    /// Where the segment begins, once its opening block was walked.
    pub(crate) fn base(&self) -> Base {
        self.segment.as_ref().map_or(Base::default(), |s| s.base)
    }

    /// The log's first index as of entry `index`. `None`: that entry lies before this segment.
    pub(crate) fn first_at(&self, index: EntryIndex) -> Option<Index> {
        self.firsts.iter().rev().find(|(at, _)| *at <= index).map(|(_, first)| *first)
    }

    /// Goes as far as blocks are sound and follow each other. Returns why it stopped; `None` at the limit.
    pub(crate) fn run(
        &mut self,
        scanner: &mut Scanner,
        learner: &mut dyn Learn,
    ) -> Result<Option<Malformed>> {
        loop {
            let (header, then) = match scanner.block(self.at)? {
                Found::Block(header, _) if (header.kind == Kind::Opening) != self.segment.is_none() => {
                    return Ok(Some("opening block out of place"));
                }
                Found::Block(header, body) => match learner.learn(&header, body) {
                    Ok(end) => {
                        self.commit = self.commit.max(learner.commit());
                        (header, Proven { end, first: learner.first() })
                    }
                    Err(why) => return Ok(Some(why)),
                },
                Found::Nothing(why) => return Ok(Some(why)),
                Found::Limit => return Ok(None),
            };
            self.take(&header, then);
        }
    }

    /// All that was walked is durable, as the next segment's beginning says.
    pub(crate) fn prove_all(&mut self) {
        self.uncommitted.append(&mut self.unproven);
        self.settle();
    }

    /// Records in sound blocks that nothing behind them says were durable.
    pub(crate) fn unproven_records(&self) -> u64 {
        self.unproven.iter().map(|u| u64::from(u.records)).sum()
    }

    fn take(&mut self, header: &BlockHeader, then: Proven) {
        let end = then.end;
        let SegmentHeader { number, id, bytes, .. } = self.header;
        let segment = self.segment.get_or_insert_with(|| {
            // What lies before this segment is durable, or it would not have begun.
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
            // A discard is in force as of what is known committed, which a later block can say. An opening block's
            // holds as of where it stands: what led to it may not have been committed.
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

    /// What is durable and committed may be shown.
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
