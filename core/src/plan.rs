//! Plan: what is to be written, in order, and where it will stand. Blocks are planned when they are ordered and
//! written when the file is free for it; so that a new segment's opening holds the state as of its place, and a
//! leader knows that there is room before it orders anything.
//!
//! ```text
//! make_room ──> push ──> [ block | block | ready 7 | roll | block | ready 8 ] ──> the node writes it
//! ```
//!
//! Invariant: `at` is where the store will stand once all steps are carried out.
//!
//! Must not know: raft, who waits.

use crate::error::{Error, ErrorKind, Result};
use crate::sequence::Sequencer;
use crate::store::layout::{SEGMENT_HEADER_BYTES, data_limit};
use crate::store::prepared::{Prepared, Preparer, Purpose};
use crate::store::{NewBlock, PROOF_BYTES_MAX, Store, block_bytes};
use crate::types::RaftIndex;
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
        into: Prepared,
    },
    /// All that raft's ready of this number wants on the disk stands before.
    Ready(u64),
    /// A block that says how far the log is committed stands before.
    Commit(RaftIndex),
}

/// Steps not carried out yet.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: VecDeque<Step>,
    preparer: Arc<Preparer>,
    at: usize,
    limit: usize,
}

impl Plan {
    /// Nothing planned, on a store where nothing waits.
    pub(crate) fn new(store: &Store) -> Self {
        let (at, limit) = store.end();
        Self { steps: VecDeque::new(), preparer: store.preparer.clone(), at, limit }
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
        if self.at + block_bytes(body) + PROOF_BYTES_MAX <= self.limit {
            return Ok(Room::Here);
        }
        let opening = sequencer.opening();
        self.roll(opening, body, purpose)?;
        Ok(Room::Rolled)
    }

    /// Plans to go on in the next file, whose opening block need not follow what is there; see [`Step::Roll`].
    ///
    /// # Errors
    /// As [`Self::make_room`].
    pub(crate) fn roll(&mut self, opening: NewBlock, body: usize, purpose: Purpose) -> Result<()> {
        let opening_bytes = block_bytes(opening.body.iter().map(Bytes::len).sum());
        let needed = opening_bytes + block_bytes(body) + PROOF_BYTES_MAX;
        let room = data_limit(self.preparer.segment_bytes() as usize) - SEGMENT_HEADER_BYTES;
        if needed > room {
            let what = format!(
                "a new segment has room for {room} bytes; its opening block and this append need {needed}: \
                 raise segment_bytes"
            );
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        let into = self.preparer.take(purpose)?;
        self.at = SEGMENT_HEADER_BYTES + opening_bytes;
        self.limit = data_limit(into.bytes as usize);
        self.steps.push_back(Step::Roll { opening, into });
        Ok(())
    }

    /// Plans a block, for which there is room.
    pub(crate) fn push(&mut self, block: NewBlock) {
        self.at += block_bytes(block.body.iter().map(Bytes::len).sum());
        assert!(self.at <= self.limit, "a block that does not fit was planned");
        self.steps.push_back(Step::Block(block));
    }

    /// Whether a block with such a body fits behind what is planned, with its proof.
    pub(crate) fn fits(&self, body: usize) -> bool {
        self.at + block_bytes(body) + PROOF_BYTES_MAX <= self.limit
    }

    /// What stands before is all that raft's ready `number` wants on the disk.
    pub(crate) fn ready(&mut self, number: u64) {
        self.steps.push_back(Step::Ready(number));
    }

    /// What stands before says that the log is committed up to `raft`.
    pub(crate) fn says_committed(&mut self, raft: RaftIndex) {
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
