//! Log turns: which block the next batch of a log of a shared group may go into. A block is a turn of the writer. In each
//! block a log may use a share of the room that is kept for logs with little queued. While such logs come beside a backlog,
//! turns are short: a quiet log waits for the turn before its own.
//!
//! Invariants, of which the callers keep the first two (`admit.rs`, `block_for` and `push_together`):
//! - no batch of a log goes before the log's last block, so the batches of a log, and of a session, keep their order;
//! - no batch goes before a block that the writer has taken, or before a command of its log or of the group;
//! - blocks keep their numbers, so a batch is taken after as many turns as there were blocks before its own when it came;
//! - a log is here exactly as long as the queue holds something of it.
//!
//! Must not know: what is in a batch, who waits for room.

use super::block_builder::BlockBuilder;
use crate::types::LogNumber;
use std::collections::HashMap;

/// The part of a block, and of the queue, that is kept for logs of a shared group with little in the queue: an eighth.
pub(super) const KEPT_FOR_QUIET_LOGS: usize = 8;
/// The part of a block that one log may use of what is kept. At least eight such logs have a turn in each block.
const SHARE: usize = KEPT_FOR_QUIET_LOGS * 8;

/// The bytes that logs with more than their share have in a turn, while logs with little wait beside them.
const SHORT_TURN_BYTES: usize = 256 << 10;
/// The blocks for which turns stay short after a log with little came beside a backlog.
const SHORT_TURNS: u64 = 1024;

/// The batches and commands of one log that are in the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    /// The number of the last block that holds something of it.
    last: u64,
    /// The bytes of its batches in that block.
    in_last: usize,
    /// The bytes of its batches in all blocks.
    bytes: usize,
    commands: usize,
}

/// The logs of a shared group that have something in the queue.
#[derive(Debug, Default)]
pub(super) struct LogTurns {
    logs: HashMap<LogNumber, Queued>,
    /// The bytes of the batches of all of them.
    bytes: usize,
    /// Turns are short in blocks before this number.
    short_until: u64,
}

impl LogTurns {
    pub(super) fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// The first block that the next batch of a log may go into.
    pub(super) fn first_block(&self, log: LogNumber) -> u64 {
        self.logs.get(&log).map_or(0, |queued| queued.last)
    }

    /// Whether the log may use the room of the queue that is kept: it has nothing there, or no more than a share of a
    /// block with this batch.
    pub(super) fn has_little(&self, log: LogNumber, length: usize, block_bytes: usize) -> bool {
        self.logs.get(&log).is_none_or(|queued| queued.bytes + length <= block_bytes / SHARE)
    }

    /// The bytes that a block may have with this batch in it. The block is not before [`Self::first_block`].
    pub(super) fn block_bytes(&self, log: LogNumber, length: usize, block: u64, block_bytes: usize) -> usize {
        let has_turn = self.logs.get(&log).is_none_or(|queued| {
            let in_block = if queued.last == block { queued.in_last } else { 0 };
            in_block + length <= block_bytes / SHARE
        });
        let more = block_bytes - block_bytes / KEPT_FOR_QUIET_LOGS;
        if has_turn { block_bytes } else { more.min(self.turn_bytes(block, block_bytes)) }
    }

    /// The bytes that the writer takes at a time, unless the first block has more.
    pub(super) fn turn_bytes(&self, block: u64, block_bytes: usize) -> usize {
        if block < self.short_until { block_bytes.min(SHORT_TURN_BYTES) } else { block_bytes }
    }

    /// A command of a log went to the end of the queue, as number `at`.
    pub(super) fn add_command(&mut self, log: LogNumber, at: u64) {
        let queued = self.logs.entry(log).or_default();
        (queued.last, queued.in_last) = (at, 0);
        queued.commands += 1;
    }

    /// The writer takes a command of a log.
    pub(super) fn take_command(&mut self, log: LogNumber) {
        self.taken(log, |queued| queued.commands -= 1);
    }

    /// A batch of `length` bytes went into a block, which is not before [`Self::first_block`].
    pub(super) fn add(&mut self, log: LogNumber, length: usize, block: u64, block_bytes: usize) {
        if self.bytes > SHORT_TURN_BYTES && self.has_little(log, length, block_bytes) {
            self.short_until = block + SHORT_TURNS;
        }
        self.bytes += length;
        let queued = self.logs.entry(log).or_default();
        debug_assert!(queued.last <= block, "a batch overtook one of its own log");
        if queued.last != block {
            (queued.last, queued.in_last) = (block, 0);
        }
        queued.in_last += length;
        queued.bytes += length;
    }

    /// The writer takes a block.
    pub(super) fn take(&mut self, block: &BlockBuilder) {
        for (log, bytes) in block.bytes_by_log() {
            if !log.is_none() {
                self.bytes -= bytes;
                self.taken(log, |queued| queued.bytes -= bytes);
            }
        }
    }

    fn taken(&mut self, log: LogNumber, change: impl FnOnce(&mut Queued)) {
        if let Some(queued) = self.logs.get_mut(&log) {
            change(queued);
            if queued.bytes == 0 && queued.commands == 0 {
                self.logs.remove(&log);
            }
        }
    }
}
