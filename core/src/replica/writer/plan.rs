//! Plan: what is to be written, in order, and where it will stand. Blocks are planned when they are ordered and
//! written when the file is free for it; so that a new segment's opening holds the state as of its place, and a
//! leader knows that there is room before it orders anything.
//!
//! ```text
//! make_room ──> push ──> [ block | block | ready 7 | roll | block | ready 8 ] ──> the node writes it
//! ```
//!
//! Invariants:
//! - `at` is where the store will stand once all steps are carried out;
//! - files that were taken ahead are used in the order of their numbers, before any other;
//! - records take neither the last prepared file nor room in a segment that began with it: that is kept for discards,
//!   and for terms and votes;
//! - while no file is ready behind the segment that grows, records leave its end alone as well ([`reserve_of`]).
//!
//! Must not know: raft, who waits.

use crate::error::{Error, ErrorKind, Result};
use crate::replica::state::sequencer::Sequencer;
use crate::store::allocator::{Allocator, PreparedSegment, Purpose};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit, room_of};
use crate::store::{NewBlock, PROOF_BYTES_MAX, Store, block_bytes};
use crate::types::EntryIndex;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// One thing to be written.
#[derive(Debug)]
pub(crate) enum Step {
    Block(NewBlock),
    /// Goes on in the file `into`, which begins with `opening`: where the log stands, or, when its base is
    /// elsewhere, where a conflicting suffix is cut off or a jump leads.
    Roll {
        opening: NewBlock,
        into: PreparedSegment,
    },
    /// All that raft's ready of this number wants on the disk stands before.
    Ready(u64),
    /// A block that says how far the log is committed stands before.
    Commit(EntryIndex),
}

/// Bytes that records leave free at the end of a segment while no file is ready behind it. A log that has just been opened has
/// none: its disk can fill up before it asks for one.
fn reserve_of(limit: usize) -> usize {
    limit / 16
}

/// Steps not carried out yet.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: VecDeque<Step>,
    allocator: Arc<Allocator>,
    at: usize,
    limit: usize,
    /// Files that were taken ahead of need.
    ahead: VecDeque<PreparedSegment>,
    /// The segment at the end began with the last file there was.
    is_last_resort: bool,
}

/// How much of what is to come has room.
#[derive(Debug)]
pub(crate) struct Fit {
    /// So many blocks.
    pub(crate) blocks: usize,
    /// Why not more, if none is to be had.
    pub(crate) why: Option<Error>,
    /// A file that is needed is being made.
    pub(crate) is_coming: bool,
}

impl Plan {
    /// Nothing planned, on a store where nothing waits.
    pub(crate) fn new(store: &Store) -> Self {
        let (at, limit) = store.end();
        let allocator = store.allocator.clone();
        Self { steps: VecDeque::new(), allocator, at, limit, ahead: VecDeque::new(), is_last_resort: false }
    }

    /// Makes sure that a block with a body of so many bytes can follow, and the markers that prove it: plans a
    /// roll if need be.
    ///
    /// # Errors
    /// No file is to be had (`Full`, `Io`), or none would have the room (`TooLarge`). Nothing has changed then.
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
        Ok(Room::Rolled)
    }

    /// Whether [`Self::make_room`] would wait for a file that is being made. Who asked is told when it is there.
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

    /// Whether records of that many bytes can follow at once. Has a file begun if none is ready, and waits for none.
    pub(crate) fn has_room(&self, body: usize) -> bool {
        if self.fits(body) {
            !self.awaits_here(self.at, body, Purpose::Data)
                && (!self.needs_file_behind(self.at, body) || self.allocator.has_one_ready())
        } else {
            self.ahead.is_empty()
                && !self.allocator.is_coming(Purpose::Data)
                && self.allocator.has_ready(Purpose::Data)
        }
    }

    /// Whether records of that many bytes, written at `at` in this segment, need a file to be ready behind it.
    fn needs_file_behind(&self, at: usize, body: usize) -> bool {
        let end = at + block_bytes(body) + PROOF_BYTES_MAX;
        self.ahead.is_empty() && (self.is_last_resort || end + reserve_of(self.limit) > self.limit)
    }

    fn awaits_here(&self, at: usize, body: usize, purpose: Purpose) -> bool {
        purpose == Purpose::Data && self.needs_file_behind(at, body) && self.allocator.is_one_coming()
    }

    /// Plans to go on in the next file, whose opening block need not follow what is there; see [`Step::Roll`].
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub(crate) fn roll(&mut self, opening: NewBlock, body: usize, purpose: Purpose) -> Result<()> {
        let opening_bytes = block_bytes(opening.body.iter().map(Bytes::len).sum());
        self.check_size(opening_bytes, body)?;
        if purpose == Purpose::Data && self.ahead.len() == 1 {
            self.allocator.keep_one_ready()?; // records leave the last one alone
        }
        let into = match self.ahead.pop_front() {
            Some(into) => into,
            None => self.allocator.take(purpose)?,
        };
        self.is_last_resort = self.ahead.is_empty() && !self.allocator.has_one_ready();
        self.at = SEGMENT_HEADER_BYTES + opening_bytes;
        self.limit = data_limit(into.bytes as usize);
        self.steps.push_back(Step::Roll { opening, into });
        Ok(())
    }

    /// Whether a new segment has room for such a block behind its opening.
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

    /// Records wait until there is a file behind this segment, once they would take what is kept for all else.
    fn allow_here(&mut self, at: usize, body: usize, purpose: Purpose) -> Result<()> {
        if purpose == Purpose::Data && self.needs_file_behind(at, body) {
            self.allocator.keep_one_ready()?;
            self.is_last_resort = false;
        }
        Ok(())
    }

    /// Sees to the room for blocks that are to come, each with what it is for and the size of its body: takes the files
    /// that they need, and waits for none. What stands before is planned; `turns`: they begin a file of their own. `opening`: the size of
    /// an opening's body, or more.
    pub(crate) fn make_room_ahead(
        &mut self,
        blocks: impl Iterator<Item = (Purpose, usize)>,
        opening: usize,
        turns: bool,
    ) -> Fit {
        let opening_bytes = block_bytes(opening);
        let (mut at, mut limit) = if turns { (0, 0) } else { (self.at, self.limit) };
        let mut files = 0;
        let mut fit = Fit { blocks: 0, why: None, is_coming: false };
        for (purpose, body) in blocks {
            let purpose = if planted!(64) { Purpose::Metadata } else { purpose };
            let room = if at + block_bytes(body) + PROOF_BYTES_MAX <= limit {
                if files > 0 {
                    Ok(true)
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

    /// Takes files until there are so many ahead. False: one is being made, and is not waited for.
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub(crate) fn take_ahead(&mut self, files: usize, purpose: Purpose) -> Result<bool> {
        if purpose == Purpose::Data && self.ahead.len() == files {
            // It was taken for something else, and records leave the last one alone.
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

    /// Plans a block, for which there is room.
    pub(crate) fn push(&mut self, block: NewBlock) {
        self.at += block_bytes(block.body.iter().map(Bytes::len).sum());
        assert!(self.at <= self.limit, "a block that does not fit was planned");
        self.steps.push_back(Step::Block(block));
    }

    /// Whether a block with such a body fits behind what is planned, with its proof.
    pub(crate) fn fits(&self, body: usize) -> bool {
        self.has_space(block_bytes(body))
    }

    /// Whether so many bytes of blocks fit behind what is planned, with their proof.
    pub(crate) fn has_space(&self, bytes: usize) -> bool {
        self.at + bytes + PROOF_BYTES_MAX <= self.limit
    }

    /// Whether there is room here for so many bytes of blocks, whatever they are, without a file behind this segment.
    pub(crate) fn is_roomy(&self, bytes: usize) -> bool {
        self.at + bytes + PROOF_BYTES_MAX + reserve_of(self.limit) <= self.limit && !self.is_last_resort
    }

    /// What stands before is all that raft's ready `number` wants on the disk.
    pub(crate) fn ready(&mut self, number: u64) {
        self.steps.push_back(Step::Ready(number));
    }

    /// What stands before says that the log is committed up to `raft`.
    pub(crate) fn says_committed(&mut self, raft: EntryIndex) {
        self.steps.push_back(Step::Commit(raft));
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

/// Where there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Here,
    /// In the next segment, whose opening says all that a position block would.
    Rolled,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::store::allocator::RETRY_DELAY;
    use crate::sync::clock::Moment;
    use crate::types::LogId;

    /// A look for room that failed kept the last file, and the next look gave it to records: then there was no place for a
    /// vote, and the replica died of its full disk.
    #[test]
    fn failed_look_for_room_keeps_the_last_file_from_records() {
        let disk = Arc::new(SimDisk::default());
        let allocator = Arc::new(Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new()));
        allocator.go_unaided();
        disk.limit_space(Some(1 << 16));
        allocator.keep_one_ready().unwrap();
        let (steps, ahead) = (VecDeque::new(), VecDeque::new());
        let clock = allocator.clone();
        let mut plan = Plan { steps, allocator, at: 0, limit: 0, ahead, is_last_resort: false };
        let mut look = |purpose, blocks| {
            let fit = plan.make_room_ahead(std::iter::repeat_n((purpose, 40_000), blocks), 100, false);
            (fit.blocks, fit.why.is_some())
        };
        assert_eq!(look(Purpose::Metadata, 2), (1, true), "there is one file");
        assert_eq!(look(Purpose::Data, 1), (0, true), "which is the last one");
        assert_eq!(look(Purpose::Metadata, 1), (1, false));
        disk.limit_space(None);
        clock.pass(Moment::START.plus(RETRY_DELAY));
        assert_eq!(look(Purpose::Data, 1), (1, false));
    }

    /// A log was opened and its disk was full before it had a file ahead. Records took all of its segment, and the next
    /// vote had no place: the replica died.
    #[test]
    fn records_leave_room_for_votes_where_no_file_is_ready() {
        const LIMIT: usize = 60_000;
        let disk = Arc::new(SimDisk::default());
        let allocator = Arc::new(Allocator::new(disk.clone(), LogId(1), 1 << 16, 1, Vec::new()));
        allocator.go_unaided();
        disk.limit_space(Some(0));
        let (steps, ahead) = (VecDeque::new(), VecDeque::new());
        let clock = allocator.clone();
        let mut plan = Plan { steps, allocator, at: 4096, limit: LIMIT, ahead, is_last_resort: false };
        let mut look = |purpose| plan.make_room_ahead(std::iter::repeat_n((purpose, 100), 1_000), 100, false);
        let records = look(Purpose::Data);
        let (blocks, why) = (records.blocks, records.why.map(|e| e.kind()));
        assert_eq!(why, Some(crate::ErrorKind::Full));
        let votes = look(Purpose::Metadata).blocks - blocks;
        assert!(votes * block_bytes(100) >= LIMIT / 17, "{blocks} records, then {votes} votes");
        disk.limit_space(None);
        clock.pass(Moment::START.plus(RETRY_DELAY));
        assert_eq!(look(Purpose::Data).blocks, 1_000);
    }
}
