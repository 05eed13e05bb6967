//! Plan: the blocks to be written, in order, and their positions. A block is planned when it gets its position in the
//! log, and written when no earlier write or sync is in its way. So a new segment's opening holds the state at its
//! position, and a leader knows that there is room before it proposes anything.
//!
//! ```text
//! make_room ──> push ──> [ block | block | ready 7 | roll | block | ready 8 ] ──> the node writes it
//! ```
//!
//! Invariants:
//! - `at` is the store's end once all steps are carried out;
//! - files that were taken ahead are used in the order of their numbers, before any other;
//! - records use neither the last prepared file nor room in a segment that began with it: these are kept for discards,
//!   terms and votes;
//! - of that room, discards of single logs of a shared group leave a half to what removes files, terms and votes;
//! - while no file is ready after the growing segment, records do not use that segment's end either ([`reserve_of`]).
//!
//! Must not know: raft, who waits.

use crate::error::{Error, ErrorKind, Result};
use crate::replica::state::sequencer::Sequencer;
use crate::store::allocator::{Allocator, PreparedSegment, Purpose};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit, room_of};
use crate::store::truncate::Begins;
use crate::store::{NewBlock, PROOF_BYTES_MAX, Store, block_bytes};
use crate::types::{EntryIndex, Index};
use std::collections::VecDeque;
use std::sync::Arc;

/// One step of the plan.
#[derive(Debug)]
pub(crate) enum Step {
    Block(NewBlock),
    /// Continues in the file `into`, which begins with `opening`. If it begins elsewhere than at the end of the log, a
    /// conflicting suffix is truncated there, or a snapshot is installed.
    Roll {
        opening: NewBlock,
        into: PreparedSegment,
        begins: Begins,
    },
    /// Everything that raft's ready of this number wants on the disk comes before this step.
    Ready(u64),
    /// A block that records this commit index comes before this step.
    Commit(EntryIndex),
    /// A block that says that files need no record before this one comes before this step.
    Kept(Index),
    /// Another block that says so comes before this step, in a later sector. It was planned once the first one was durable.
    Repeated(Index),
}

/// Whether a block with a body of `body` bytes at `at` leaves `bytes` bytes free before `limit`.
fn leaves(bytes: usize, at: usize, body: usize, limit: usize) -> bool {
    at + block_bytes(body) + PROOF_BYTES_MAX + bytes <= limit
}

/// Bytes that records leave free at the end of a segment while no file is ready after it. A log that was just opened
/// has no such file, and its disk can fill up before it requests one.
fn reserve_of(limit: usize) -> usize {
    limit / 16
}

/// The steps that are not carried out yet.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: VecDeque<Step>,
    allocator: Arc<Allocator>,
    at: usize,
    limit: usize,
    /// The number of the segment in which the next block is planned.
    segment: u64,
    /// Files that were taken before they were needed.
    ahead: VecDeque<PreparedSegment>,
    /// The last segment began with the last available file.
    is_last_resort: bool,
    /// Set by [`Self::has_settled`], cleared by the next step that is planned.
    is_settled: bool,
}

/// How many of the coming blocks have room.
#[derive(Debug)]
pub(crate) struct Fit {
    /// The number of blocks that have room.
    pub(crate) blocks: usize,
    /// Why the next block has no room, if no file can be had for it.
    pub(crate) why: Option<Error>,
    /// A file that is needed is being prepared.
    pub(crate) is_coming: bool,
}

impl Plan {
    /// An empty plan, for a store with nothing left to write.
    pub(crate) fn new(store: &Store) -> Self {
        let (at, limit) = store.end();
        let allocator = store.allocator.clone();
        let (steps, ahead) = (VecDeque::new(), VecDeque::new());
        let segment = store.segments.newest().map_or(0, |newest| newest.number);
        Self { steps, allocator, at, limit, segment, ahead, is_last_resort: false, is_settled: true }
    }

    /// Makes room for a block with a body of `body` bytes and for the markers that prove it. Plans a roll if necessary.
    ///
    /// # Errors
    /// No file is available (`Full`, `Io`), or the block does not fit in an empty one (`TooLarge`). Nothing has changed
    /// then.
    pub(crate) fn make_room(
        &mut self,
        body: usize,
        purpose: Purpose,
        sequencer: &mut Sequencer,
    ) -> Result<Room> {
        let purpose = if planted!(64) { Purpose::Metadata } else { purpose };
        if self.fits(body) {
            self.allow_here(self.at, body, purpose)?;
            return Ok(Room::Here);
        }
        let opening = sequencer.opening();
        self.roll(opening, body, purpose)?;
        sequencer.begins_segment();
        Ok(Room::Rolled)
    }

    /// Whether [`Self::make_room`] would wait for a file that is being prepared. The helper thread notifies the node
    /// when the file is ready, or cannot be made.
    pub(crate) fn awaits_file(&self, body: usize, purpose: Purpose) -> bool {
        if self.fits(body) {
            self.awaits_here(self.at, body, purpose)
        } else {
            match self.ahead.len() {
                0 => self.allocator.is_coming(purpose),
                1 => purpose == Purpose::Data && self.allocator.is_one_coming(),
                _ => false,
            }
        }
    }

    /// Whether records of `body` bytes can be planned at once, here or behind an opening with a body of `opening` bytes. If a file is missing,
    /// has it prepared, without waiting.
    pub(crate) fn has_room(&self, body: usize, opening: usize) -> bool {
        self.allocator.want_in_time();
        if self.check_size(block_bytes(opening), body).is_err() || self.awaits_file(body, Purpose::Data) {
            return false;
        }
        if self.fits(body) {
            return !self.needs_file_behind(self.at, body) || self.allocator.has_one_ready();
        }
        match self.ahead.len() {
            0 => self.allocator.has_ready(Purpose::Data),
            // It may have been taken for another purpose, such as a commit record that was not needed in the end.
            1 => !planted!(88) && self.allocator.has_one_ready(),
            _ => true,
        }
    }

    /// Whether records of `body` bytes, written at `at` in this segment, need a file to be ready after the segment.
    fn needs_file_behind(&self, at: usize, body: usize) -> bool {
        let end = at + block_bytes(body) + PROOF_BYTES_MAX;
        self.ahead.is_empty() && (self.is_last_resort || end + reserve_of(self.limit) > self.limit)
    }

    fn awaits_here(&self, at: usize, body: usize, purpose: Purpose) -> bool {
        purpose != Purpose::Metadata && self.needs_file_behind(at, body) && self.allocator.is_one_coming()
    }

    /// Plans to continue in the next file, behind the last block that is planned.
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub(crate) fn roll(&mut self, opening: NewBlock, body: usize, purpose: Purpose) -> Result<()> {
        self.roll_to(Begins::AtTheEnd, opening, body, purpose)
    }

    /// Plans to continue in the next file, whose opening need not follow the last block: entries are truncated or skipped; see
    /// [`Step::Roll`].
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub(crate) fn roll_elsewhere(&mut self, opening: NewBlock) -> Result<()> {
        self.roll_to(Begins::Elsewhere, opening, 0, Purpose::Metadata)
    }

    fn roll_to(&mut self, begins: Begins, opening: NewBlock, body: usize, purpose: Purpose) -> Result<()> {
        let opening_bytes = opening.header.stride();
        self.check_size(opening_bytes, body)?;
        if purpose == Purpose::Data && self.ahead.len() == 1 {
            self.allocator.keep_one_ready()?; // records do not use the last file
        }
        let into = match self.ahead.pop_front() {
            Some(into) => into,
            None => self.allocator.take(purpose)?,
        };
        self.is_last_resort = self.ahead.is_empty() && !self.allocator.has_one_ready();
        self.at = SEGMENT_HEADER_BYTES + opening_bytes;
        self.limit = data_limit(into.bytes as usize);
        self.segment = into.number;
        self.add(Step::Roll { opening, into, begins });
        Ok(())
    }

    /// Checks that a new segment has room for an opening with a body of `body` bytes.
    ///
    /// # Errors
    /// `TooLarge`.
    pub(crate) fn check_opening(&self, body: usize) -> Result<()> {
        self.check_size(block_bytes(body), 0)
    }

    /// Fails if a new segment has no room for a block with a body of `body` bytes after its opening.
    fn check_size(&self, opening_bytes: usize, body: usize) -> Result<()> {
        let needed = opening_bytes + block_bytes(body) + PROOF_BYTES_MAX;
        let room = room_of(self.allocator.segment_bytes() as usize);
        if needed <= room {
            return Ok(());
        }
        let what = format!(
            "a new segment has room for {room} bytes; its opening block and this append need {needed}: \
             raise segment_bytes"
        );
        Err(Error::new(ErrorKind::TooLarge, what))
    }

    /// Records that would use the reserve at the end of this segment wait until a file is ready after it. Blocks
    /// while the helper thread prepares one.
    ///
    /// # Errors
    /// No file could be prepared (`Full`, `Io`), or the log is being closed (`Closed`).
    fn allow_here(&mut self, at: usize, body: usize, purpose: Purpose) -> Result<()> {
        if purpose == Purpose::Metadata || !self.needs_file_behind(at, body) {
            return Ok(());
        }
        let reserve = if self.is_last_resort { self.limit } else { reserve_of(self.limit) };
        match self.allocator.keep_one_ready() {
            Ok(()) => self.is_last_resort = false,
            Err(_) if purpose == Purpose::OneLog && leaves(reserve / 2, at, body, self.limit) => {}
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// As [`Self::allow_here`], in the last of `files` files that were taken ahead. False: the file after it is being prepared; this does not
    /// wait for it.
    fn allow_ahead(
        &self,
        files: usize,
        (at, limit): (usize, usize),
        body: usize,
        purpose: Purpose,
    ) -> Result<bool> {
        if purpose == Purpose::Metadata
            || self.ahead.len() > files
            || (purpose == Purpose::OneLog && leaves(limit / 2, at, body, limit))
            || self.allocator.has_one_ready()
        {
            return Ok(true);
        }
        if self.allocator.is_one_coming() {
            return Ok(false);
        }
        self.allocator.keep_one_ready().map(|()| true)
    }

    /// Makes room for the blocks to come, each with its purpose and the size of its body. Takes the files that they
    /// need, without waiting for any. If `truncates`, the blocks begin in a new file. `opening` is at least the size
    /// of an opening's body.
    pub(crate) fn make_room_ahead(
        &mut self,
        blocks: impl Iterator<Item = (Purpose, usize)>,
        opening: usize,
        truncates: bool,
    ) -> Fit {
        let opening_bytes = block_bytes(opening);
        let (mut at, mut limit) = if truncates { (0, 0) } else { (self.at, self.limit) };
        let mut files = 0;
        let mut fit = Fit { blocks: 0, why: None, is_coming: false };
        for (purpose, body) in blocks {
            let purpose = if planted!(64) { Purpose::Metadata } else { purpose };
            let room = if at + block_bytes(body) + PROOF_BYTES_MAX <= limit {
                if files > 0 {
                    self.allow_ahead(files, (at, limit), body, purpose)
                } else if self.awaits_here(at, body, purpose) {
                    Ok(false)
                } else {
                    self.allow_here(at, body, purpose).map(|()| true)
                }
            } else {
                files += 1;
                at = SEGMENT_HEADER_BYTES + opening_bytes;
                limit = data_limit(self.allocator.segment_bytes() as usize);
                self.check_size(opening_bytes, body).and_then(|()| self.take_ahead(files, purpose))
            };
            match room {
                Ok(true) => {}
                Ok(false) => {
                    fit.is_coming = true;
                    return fit;
                }
                Err(why) => {
                    fit.why = Some(why);
                    return fit;
                }
            }
            at += block_bytes(body);
            fit.blocks += 1;
        }
        fit
    }

    /// Takes files until `files` of them are ahead. False: one is being prepared; this does not wait for it.
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub(crate) fn take_ahead(&mut self, files: usize, purpose: Purpose) -> Result<bool> {
        if purpose == Purpose::Data && self.ahead.len() == files {
            // The file was taken for another purpose, and records do not use the last one.
            if self.allocator.is_one_coming() {
                return Ok(false);
            }
            self.allocator.keep_one_ready()?;
        }
        while self.ahead.len() < files {
            if self.allocator.is_coming(purpose) {
                return Ok(false);
            }
            self.ahead.push_back(self.allocator.take(purpose)?);
        }
        Ok(true)
    }

    /// Plans a block. There has to be room for it.
    pub(crate) fn push(&mut self, block: NewBlock) {
        self.at += block.header.stride();
        assert!(self.at <= self.limit, "a block was planned that does not fit in the segment");
        self.add(Step::Block(block));
    }

    /// Whether a block with a body of `body` bytes fits after the planned ones, with its proof.
    pub(crate) fn fits(&self, body: usize) -> bool {
        self.has_space(block_bytes(body))
    }

    /// Whether blocks of `bytes` bytes fit after the planned ones, with their proof.
    pub(crate) fn has_space(&self, bytes: usize) -> bool {
        self.at + bytes + PROOF_BYTES_MAX <= self.limit
    }

    /// The bytes of blocks, of any purpose, that fit after the planned ones, with their proof.
    pub(crate) fn space(&self) -> usize {
        self.limit.saturating_sub(self.at + PROOF_BYTES_MAX)
    }

    /// Whether blocks of `bytes` bytes, of any purpose, fit in this segment even if no file is ready after it.
    pub(crate) fn is_roomy(&self, bytes: usize) -> bool {
        self.at + bytes + PROOF_BYTES_MAX + reserve_of(self.limit) <= self.limit && !self.is_last_resort
    }

    /// Marks that everything that raft's ready `number` wants on the disk is planned before this point.
    pub(crate) fn ready(&mut self, number: u64) {
        self.add(Step::Ready(number));
    }

    /// Marks that a block planned before this point records the commit index `raft`.
    pub(crate) fn says_committed(&mut self, raft: EntryIndex) {
        self.add(Step::Commit(raft));
    }

    /// Marks that a block planned before this point says that files need no record before `first`.
    pub(crate) fn says_kept(&mut self, first: Index) {
        self.add(Step::Kept(first));
    }

    /// Marks that a block planned before this point says so again, in a later sector. The first one is durable.
    pub(crate) fn repeats_kept(&mut self, first: Index) {
        self.add(Step::Repeated(first));
    }

    /// The number of the segment in which the next block is planned.
    pub(crate) fn segment(&self) -> u64 {
        self.segment
    }

    fn add(&mut self, step: Step) {
        self.is_settled = false;
        self.steps.push_back(step);
    }

    /// All steps are carried out, and what they wrote is synced.
    pub(crate) fn has_settled(&mut self) {
        assert!(self.steps.is_empty(), "a settled plan has no steps left");
        self.is_settled = true;
    }

    /// Whether everything that was ever planned is known to be written and synced. False can mean that only a call of
    /// the writer's `settle` is missing.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn peek(&self) -> Option<&Step> {
        self.steps.front()
    }

    pub(crate) fn next(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }
}

/// The place of the room for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Here,
    /// In the next segment. Its opening holds everything that a position block would.
    Rolled,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::store::allocator::RETRY_DELAY;
    use crate::sync::clock::Moment;
    use crate::types::LogId;

    /// A failed search for room kept the last file, and the next search used it for records. Then there was no room for
    /// a vote, and the replica failed because its disk was full.
    #[test]
    fn failed_search_for_room_keeps_the_last_file_from_records() {
        let disk = Arc::new(SimDisk::default());
        let allocator = Arc::new(Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new()));
        allocator.go_unaided();
        disk.limit_space(Some(1 << 16));
        allocator.keep_one_ready().unwrap();
        let (steps, ahead) = (VecDeque::new(), VecDeque::new());
        let clock = allocator.clone();
        let mut plan = Plan {
            steps,
            allocator,
            at: 0,
            limit: 0,
            segment: 0,
            ahead,
            is_last_resort: false,
            is_settled: true,
        };
        let mut look = |purpose, blocks| {
            let fit = plan.make_room_ahead(std::iter::repeat_n((purpose, 40_000), blocks), 100, false);
            (fit.blocks, fit.why.is_some())
        };
        assert_eq!(look(Purpose::Metadata, 2), (1, true), "one file is available");
        assert_eq!(look(Purpose::Data, 1), (0, true), "it is the last one");
        assert_eq!(look(Purpose::Metadata, 1), (1, false));
        disk.limit_space(None);
        clock.set_time(Moment::START.plus(RETRY_DELAY));
        assert_eq!(look(Purpose::Data, 1), (1, false));
    }

    /// A log was opened, and its disk was full before a file was prepared ahead. Records filled its segment, and there
    /// was no room for the next vote: the replica failed.
    #[test]
    fn records_leave_room_for_votes_if_no_file_is_ready() {
        const LIMIT: usize = 60_000;
        let disk = Arc::new(SimDisk::default());
        let allocator = Arc::new(Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new()));
        allocator.go_unaided();
        disk.limit_space(Some(0));
        let (steps, ahead) = (VecDeque::new(), VecDeque::new());
        let clock = allocator.clone();
        let mut plan = Plan {
            steps,
            allocator,
            at: 4096,
            limit: LIMIT,
            segment: 1,
            ahead,
            is_last_resort: false,
            is_settled: true,
        };
        let mut look = |purpose| plan.make_room_ahead(std::iter::repeat_n((purpose, 100), 1_000), 100, false);
        let records = look(Purpose::Data);
        let (blocks, why) = (records.blocks, records.why.map(|e| e.kind()));
        assert_eq!(why, Some(crate::ErrorKind::Full));
        let votes = look(Purpose::Metadata).blocks - blocks;
        assert!(votes * block_bytes(100) >= LIMIT / 17, "{blocks} records, then {votes} votes");
        disk.limit_space(None);
        clock.set_time(Moment::START.plus(RETRY_DELAY));
        assert_eq!(look(Purpose::Data).blocks, 1_000);
    }
}
