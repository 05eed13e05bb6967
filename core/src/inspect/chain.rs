//! Chain: what the blocks read so far require of the next one.
//!
//! Must not know: files.

use crate::record::batch::Malformed;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::segment::Footer;
use crate::types::{EntryIndex, Index, Term, Timestamp};

/// The requirements of the blocks so far for the next one. Empty at the start and after an unknown block.
#[derive(Clone, Copy, Default)]
pub(super) struct Chain {
    /// The last entry's raft index and term.
    raft: Option<(EntryIndex, Term)>,
    /// The next record's index; with `false`, at least this (a command that cannot be read may have moved it).
    pub(super) next: Option<(Index, bool)>,
    timestamp: Timestamp,
}

impl Chain {
    /// Checks that `header` can be the next one.
    pub(super) fn check(&self, header: &BlockHeader) -> Result<(), Malformed> {
        if let Some((raft, term)) = self.raft {
            let expected = if header.kind.is_entry() { raft.next() } else { raft };
            if header.raft_index != expected {
                return Err("block's raft index does not follow the one before");
            }
            if header.term < term && header.kind.is_entry() {
                return Err("block's term is older than the one before");
            }
        }
        match self.next {
            Some((next, true)) if header.first != next => {
                Err("block's first record does not follow the one before")
            }
            Some((next, false)) if header.first < next => Err("block's first record is below the one before"),
            _ if header.kind.has_records() && header.timestamp < self.timestamp => {
                Err("block's timestamp is older than the one before")
            }
            _ => Ok(()),
        }
    }

    /// The requirements after bytes that cannot be read: only time goes on.
    pub(super) fn broken(&self) -> Self {
        Self { timestamp: self.timestamp, ..Self::default() }
    }

    /// Advances past a block. `body` is its body, if that is sound.
    pub(super) fn advance(&mut self, header: &BlockHeader, body: Option<&[u8]>) {
        self.raft = Some((header.raft_index, header.term));
        let next = header.next_record();
        self.next = match (header.kind, body.map(parse_command)) {
            (Kind::Command, Some(Ok(Command::Discard { first }))) => Some((next.max(first), true)),
            (Kind::Command, None | Some(Err(_))) => Some((next, false)),
            _ => Some((next, true)),
        };
        if header.kind.has_records() {
            self.timestamp = header.timestamp;
        }
    }

    /// Whether an opening block can be the next one.
    pub(super) fn leads_to(&self, opening: Option<&BlockHeader>) -> bool {
        let here = opening.is_some_and(|o| self.raft == Some((o.raft_index, o.term)));
        here && self.gap_to(opening) == (None, None)
    }

    /// The raft entries and records between here and `after`.
    #[expect(clippy::type_complexity, reason = "two optional ranges, named where they are used")]
    pub(super) fn gap_to(
        &self,
        after: Option<&BlockHeader>,
    ) -> (Option<(EntryIndex, EntryIndex)>, Option<(Index, Index)>) {
        let Some(after) = after else { return (None, None) };
        let raft_last =
            if after.kind.is_entry() { after.raft_index.0.saturating_sub(1) } else { after.raft_index.0 };
        let raft = self.raft.map(|(raft, _)| (raft.next(), EntryIndex(raft_last)));
        let records = self.next.map(|(next, _)| (next, after.first.previous()));
        (raft.filter(|(a, b)| a <= b), records.filter(|(a, b)| a <= b))
    }
}

/// The block that a footer implies would be next, as far as [`Chain::gap_to`] reads it.
pub(super) fn after_footer(footer: &Footer) -> BlockHeader {
    BlockHeader {
        length: BLOCK_HEADER_BYTES as u32,
        batch_count: 0,
        raft_index: footer.last_raft,
        term: footer.last_term,
        first: footer.next,
        timestamp: footer.last_timestamp,
        record_count: 0,
        durable_upto: 0,
        body_digest: 0,
        kind: Kind::Opening,
    }
}
