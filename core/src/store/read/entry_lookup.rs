//! Entry look-up: the log's past as raft sees it. Finds blocks by raft index among all written ones, committed or not, synced
//! or not. It checks every byte that it returns, so that local damage never spreads.
//!
//! Invariants:
//! - it never reads beyond the written part, so mapped bytes do not change;
//! - bytes that it returns from a mapping keep the segment's file.
//!
//! Must not know: its callers, or the meaning of blocks.

use super::block_reader::{Blocks, Located};
use super::chain::Learn;
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::IndexEntry;
use crate::store::objects::payloads::Payloads;
use crate::store::segment::{Base, Extent, Segment, Segments};
use crate::types::{EntryIndex, Index, Term};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;

/// Bytes read at a time without a mapping: a look-up passes 32 KiB of blocks, of which it needs the headers.
const WINDOW_BYTES: usize = 16 << 10;

/// The log's blocks by raft index. Cheap to clone; `Send + Sync`. Calls block only for the disk.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    segments: Arc<Segments>,
}

/// Whether a walk continues.
enum Step {
    On,
    Done,
}

impl Archive {
    pub(crate) fn new(segments: Arc<Segments>) -> Self {
        Self { segments }
    }

    /// The position just before the oldest entry that still exists here.
    pub(crate) fn first(&self) -> Base {
        self.segments.oldest().map_or(Base::default(), |s| s.base)
    }

    /// The header of entry `index`; `None` if it does not exist here any more or yet.
    ///
    /// # Errors
    /// `Corrupt` with file and offset; `Io`.
    pub(crate) fn header(&self, index: EntryIndex) -> Result<Option<BlockHeader>> {
        Ok(self.headers(index, index.next(), 0)?.pop())
    }

    /// The term of entry `index`, which may be the one just before the oldest.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn term(&self, index: EntryIndex) -> Result<Option<Term>> {
        if let Some(segment) = self.segments.beginning_before(index) {
            let known = [segment.base, segment.end()].into_iter().find(|b| b.raft == index);
            if let Some(base) = known {
                return Ok(Some(base.term));
            }
        }
        Ok(self.header(index)?.map(|h| h.term))
    }

    /// The position just before the entry that contains record `index`. `None`: that entry does not exist here any more or yet.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn before_record(&self, index: Index) -> Result<Option<Base>> {
        let holding = self.segments.undisturbed(|| {
            let Some(segment) = self.segments.holding(index)? else { return Ok(None) };
            let (_, upto) = segment.written();
            let mut blocks = self.seek(&segment, |e| e.first <= index)?;
            while let Some(found) = blocks.next(upto)? {
                if found.header.next_record() > index {
                    return Ok(Some(found.header));
                }
            }
            Ok(None)
        })?;
        let Some(BlockHeader { first, raft_index, .. }) = holding.filter(|block| block.first <= index) else {
            return Ok(None);
        };
        let raft = EntryIndex(raft_index.0 - 1);
        Ok(self.term(raft)?.map(|term| Base { raft, term, next: first }))
    }

    /// The headers of the entries from `from` on and below `to`, as many as have `bytes_max` bytes of bodies together;
    /// at least one. Empty if `from` does not exist here.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn headers(
        &self,
        from: EntryIndex,
        to: EntryIndex,
        bytes_max: u64,
    ) -> Result<Vec<BlockHeader>> {
        self.segments.undisturbed(|| {
            let mut headers = Vec::new();
            let mut bytes = 0;
            self.walk(from, to, &mut |_, found, _| {
                bytes += u64::from(found.header.length) - BLOCK_HEADER_BYTES as u64;
                if bytes > bytes_max && !headers.is_empty() {
                    return Ok(Step::Done);
                }
                headers.push(found.header);
                Ok(Step::On)
            })?;
            Ok(headers)
        })
    }

    /// Entry `index`, with every byte checked. Its body is not copied if the file is mapped.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn body(&self, index: EntryIndex) -> Result<Option<(BlockHeader, Bytes)>> {
        self.segments.undisturbed(|| {
            let mut body = None;
            self.walk(index, index.next(), &mut |blocks, found, upto| {
                body = Some((found.header, load(blocks, found, upto)?));
                Ok(Step::Done)
            })?;
            Ok(body)
        })
    }

    /// The entries from `from` through `to`, with every byte checked. Their bodies are not copied if the files are mapped.
    /// `None`: not all of them exist here.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn entries(
        &self,
        from: EntryIndex,
        to: EntryIndex,
    ) -> Result<Option<Vec<(BlockHeader, Bytes)>>> {
        self.segments.undisturbed(|| {
            let mut entries = Vec::new();
            self.walk(from, to.next(), &mut |blocks, found, upto| {
                entries.push((found.header, load(blocks, found, upto)?));
                Ok(Step::On)
            })?;
            let is_whole = entries.last().is_some_and(|(header, _)| header.raft_index == to);
            Ok(is_whole.then_some(entries))
        })
    }

    /// The batches that entries only refer to.
    ///
    /// # Errors
    /// `Unavailable`: the log was opened without an object store.
    pub(crate) fn payloads(&self) -> Result<Arc<Payloads>> {
        self.segments.objects().payloads()
    }

    /// The log's directory.
    pub(crate) fn path(&self) -> &Path {
        self.segments.disk().path()
    }

    /// The opening block of the oldest segment, from which a snapshot without records is made.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn oldest_opening(&self) -> Result<(BlockHeader, Bytes)> {
        self.segments.undisturbed(|| {
            let Some(segment) = self.segments.oldest() else {
                return Err(Error::new(ErrorKind::Closed, "the log has no segments"));
            };
            self.opening(&segment)
        })
    }

    /// The opening block of the newest segment that begins behind `upto` or an earlier entry, if all entries of the segment before it
    /// are behind `last`. `None`: there is no such segment.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn newest_opening(
        &self,
        upto: EntryIndex,
        last: EntryIndex,
    ) -> Result<Option<(BlockHeader, Bytes)>> {
        self.segments.undisturbed(|| {
            self.newest_beginning(upto, last).map(|segment| self.opening(&segment)).transpose()
        })
    }

    /// The bytes between `last` and that segment. `None`: there is none.
    pub(crate) fn can_skip(&self, upto: EntryIndex, last: EntryIndex) -> Option<u64> {
        let begin = self.newest_beginning(upto, last)?.base.raft;
        Some(self.segments.bytes_behind(last).saturating_sub(self.segments.bytes_behind(begin)))
    }

    fn newest_beginning(&self, upto: EntryIndex, last: EntryIndex) -> Option<Arc<Segment>> {
        let segment = self.segments.beginning_before(upto)?;
        let earlier = EntryIndex(segment.base.raft.0.checked_sub(1)?);
        self.segments.beginning_before(earlier).filter(|before| before.base.raft >= last)?;
        Some(segment)
    }

    fn opening(&self, segment: &Arc<Segment>) -> Result<(BlockHeader, Bytes)> {
        let mut blocks = self.blocks(segment)?;
        let upto = segment.data_end();
        match blocks.next(upto)?.filter(|found| found.header.kind == Kind::Opening) {
            Some(found) => Ok((found.header, load(&mut blocks, &found, upto)?)),
            None => Err(blocks.corrupt(SEGMENT_HEADER_BYTES, "the first block is not an opening block")),
        }
    }

    /// Teaches `learner` the log's state after entry `to`. It learns the last opening block at or before `from`, and
    /// all blocks from there through `to`. Later openings are skipped: they repeat what is known, and contain less
    /// about uncommitted entries. False if one of the two entries does not exist here.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn replay(&self, from: EntryIndex, to: EntryIndex, learner: &mut dyn Learn) -> Result<bool> {
        // The first opening block resets the learner, so it can start again.
        self.segments.undisturbed(|| {
            let Some(mut segment) = self.segments.beginning_before(from) else { return Ok(false) };
            let mut is_first = true;
            loop {
                let (end, upto) = segment.written();
                let mut blocks = self.blocks(&segment)?;
                while let Some(found) = blocks.next(upto)? {
                    if found.header.kind == Kind::Opening && !is_first {
                        continue;
                    }
                    is_first = false;
                    let body = load(&mut blocks, &found, upto)?;
                    let learnt = learner.learn(&found.header, &body);
                    if learnt.map_err(|why| blocks.corrupt(found.offset, why))?.raft >= to {
                        return Ok(true);
                    }
                }
                match self.segments.holding_entry(end.raft.next()) {
                    Some(next) if next.number != segment.number => segment = next,
                    _ => return Ok(false),
                }
            }
        })
    }

    /// The end of each block of `segment`, with the last entry up to there. Blocks through entry `above` may be
    /// combined.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn ends(&self, segment: &Arc<Segment>, above: EntryIndex) -> Result<Vec<(EntryIndex, usize)>> {
        let (end, upto) = segment.written();
        if end.raft <= above {
            return Ok(vec![(end.raft, upto)]);
        }
        let mut blocks = self.seek(segment, |e| e.raft_index <= above)?;
        let mut ends = Vec::new();
        while let Some(found) = blocks.next(upto)? {
            ends.push((found.header.raft_index, blocks.at()));
        }
        Ok(ends)
    }

    /// The extent of `segment` if the log ended at `base`, whose entry is in it: up to that entry and the blocks after
    /// it that are not entries.
    ///
    /// # Errors
    /// Those of [`Self::header`].
    pub(crate) fn cut(&self, segment: &Arc<Segment>, base: Base) -> Result<Extent> {
        let (_, upto) = segment.written();
        let mut blocks = self.seek(segment, |e| e.raft_index < base.raft)?;
        let offset = blocks.at();
        let mut last: Option<Located> = None;
        while let Some(found) = blocks.next(upto)?.filter(|b| b.header.raft_index <= base.raft) {
            last = Some(found);
        }
        let Some(last) = last.filter(|b| (b.header.raft_index, b.header.term) == (base.raft, base.term))
        else {
            return Err(blocks.corrupt(offset, "the entry is not at the offset in the block index"));
        };
        assert!(last.header.next_record() <= base.next, "a base that contradicts the entry before it");
        blocks.data().cut(base, last.offset + last.header.stride(), last.header.timestamp)
    }

    /// Walks the entries from `from` on and below `to`, as far as they exist here.
    fn walk(
        &self,
        from: EntryIndex,
        to: EntryIndex,
        visit: &mut dyn FnMut(&mut Blocks, &Located, usize) -> Result<Step>,
    ) -> Result<()> {
        let mut next = from;
        while next < to {
            let Some(segment) = self.segments.holding_entry(next) else { return Ok(()) };
            let (end, upto) = segment.written();
            if end.raft < next {
                return Ok(());
            }
            let mut blocks = self.seek(&segment, |e| e.raft_index < next)?;
            while next < to && next <= end.raft {
                let Some(found) = blocks.next(upto)? else {
                    return Err(blocks.corrupt(upto, "the segment ends before its last entry"));
                };
                if !found.header.kind.is_entry() || found.header.raft_index < next {
                    continue;
                }
                if found.header.raft_index > next {
                    return Err(blocks.corrupt(found.offset, "an entry is missing before this block"));
                }
                if let Step::Done = visit(&mut blocks, &found, upto)? {
                    return Ok(());
                }
                next = next.next();
            }
        }
        Ok(())
    }

    /// Whether the blocks before an entry lead to it. If they do and it cannot be read, the damage is its own, and not
    /// that of an earlier block, after which it could be intact.
    pub(crate) fn leads_to(&self, entry: EntryIndex) -> Result<bool> {
        let Some(segment) = self.segments.holding_entry(entry) else { return Ok(false) };
        let mut blocks = self.seek(&segment, |e| e.raft_index < entry)?;
        let mut before = None;
        let (_, upto) = segment.written();
        while let Ok(Some(found)) = blocks.next(upto) {
            let header = found.header;
            if header.kind.is_entry() && header.raft_index >= entry {
                return Ok(header.raft_index == entry);
            }
            before = Some(header.raft_index);
        }
        Ok(before.is_some_and(|before| before.next() == entry))
    }

    /// All blocks of a segment.
    fn blocks(&self, segment: &Arc<Segment>) -> Result<Blocks> {
        Ok(Blocks::new(self.segments.open(segment)?, SEGMENT_HEADER_BYTES, WINDOW_BYTES))
    }

    /// The blocks of a segment from the last indexed one on for which `before` holds, or from the first on.
    fn seek(&self, segment: &Arc<Segment>, before: impl Fn(&IndexEntry) -> bool) -> Result<Blocks> {
        let data = self.segments.open(segment)?;
        let offset = data.seek(before)?;
        Ok(Blocks::new(data, offset, WINDOW_BYTES))
    }
}

/// A found block's body, with every byte of the block checked.
fn load(blocks: &mut Blocks, found: &Located, upto: usize) -> Result<Bytes> {
    let block = blocks.load(found, upto)?;
    Ok(block.slice(BLOCK_HEADER_BYTES..block.len()).into_bytes())
}
