//! Gaps between slices of entries, in a log with the durability class `object`: payload leads over one if the slice behind it proves
//! that it does.
//!
//! ```text
//!   slices    | ... p1 ]                    [ p5 | p6 | ...     the first slice behind the gap says which record p5 begins with
//!   payload   [ p1 p2 ][ p3 p4 ][ p5 p6 ]                       p2, p3 and p4 are in the log if they have just the records before it
//! ```
//!
//! Between two batches of payload without a break nothing else was in their leader's queue, and records come from the queue alone. So
//! each record in the gap is of a batch between its ends, and a batch that the log did not take leaves fewer of them than the batches
//! have. Behind the gap each reference says which batch comes next.
//!
//! Invariant: a batch counts only if the log has it, at this place. In doubt it does not count.
//!
//! Must not know: the network, which object store it is.

use super::payloads::is_of_slice;
use super::slices::{AT_A_TIME, End, read};
use crate::error::Result;
use crate::record::batch::BatchHeader;
use crate::record::reference::PayloadId;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::references::references;
use crate::store::format::slices::Slice;
use crate::store::objects::slice_names::SliceName;
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, Term};
use crate::vault::Vault;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A batch of payload behind the last entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) slice: PayloadId,
    pub(super) offset: u32,
    pub(super) records: u32,
    pub(super) bytes: u32,
}

impl Placed {
    pub(super) fn of(slice: PayloadId, offset: u32, header: &BatchHeader) -> Self {
        Self { slice, offset, records: header.count, bytes: header.length }
    }
}

/// How far slices behind a gap agree with payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreement {
    /// The first batches that the log has, as these slices say.
    pub(super) batches: usize,
    /// Whether all slices were read to their end, and have no record that is not in these batches. So payload goes on behind them.
    pub(super) is_whole: bool,
}

/// Compares payload with the slices that lead on behind a gap. `end`: the last entry before it; `next`: the record behind that one.
///
/// # Errors
/// Those of [`Vault`], and `Unsupported`. Damage is none: the agreement ends before it.
pub(super) fn agree(
    vault: &dyn Vault,
    mut beyond: Vec<(SliceName, u64)>,
    end: End,
    next: Index,
    batches: &[Placed],
) -> Result<Agreement> {
    beyond.sort_unstable_by_key(|(name, _)| (name.first, Reverse(name.last)));
    let mut walk = Walk { raft: end.0, term: end.1, next, is_gap: true, batches, at: 0 };
    for piece in beyond.chunks(AT_A_TIME) {
        let (wanted, mut slices): (Vec<_>, _) = (piece.iter().enumerate().collect(), BTreeMap::new());
        let get = |(n, (name, bytes)): &(usize, &(SliceName, u64))| match read(vault, name, *bytes) {
            Err(error) if !is_of_slice(&error) => Err(error),
            slice => Ok((*n, slice.ok())),
        };
        in_parallel(AT_A_TIME, &wanted, get, |(n, slice)| _ = slices.insert(n, slice))?;
        for slice in slices.into_values() {
            if !slice.is_some_and(|slice| walk.follow(&slice)) {
                return Ok(Agreement { batches: walk.at, is_whole: false });
            }
        }
    }
    Ok(Agreement { batches: walk.at, is_whole: !walk.is_gap })
}

/// Whether an entry was in its leader's queue among appends.
pub(super) fn is_of_queue(kind: Kind, body: &[u8]) -> bool {
    let is_of_queue = |command: Command| command.is_of_queue();
    kind.has_records() || (kind == Kind::Command && parse_command(body).is_ok_and(is_of_queue))
}

/// A walk over slices and batches of payload, side by side.
struct Walk<'a> {
    /// The last entry that is known, and its term.
    raft: EntryIndex,
    term: Term,
    /// The record behind the last batch that the log is known to have.
    next: Index,
    /// Whether entries behind that one are unknown.
    is_gap: bool,
    batches: &'a [Placed],
    /// The number of batches that the log is known to have.
    at: usize,
}

impl Walk<'_> {
    /// Takes the next slice. False: the agreement ends in it, or before.
    fn follow(&mut self, slice: &Slice) -> bool {
        if slice.base.raft > self.raft {
            // Of one term all entries are of one leader: then those in the gap are, too.
            self.is_gap = true;
            if slice.base.term != self.term {
                return false;
            }
        }
        let behind = self.raft;
        let new = slice.entries.iter().filter(|(header, _)| header.raft_index > behind);
        { new }.all(|(header, body)| self.pass(header, body))
    }

    /// Takes the next entry.
    fn pass(&mut self, header: &BlockHeader, body: &[u8]) -> bool {
        if header.term != self.term {
            return false;
        }
        self.raft = header.raft_index;
        if !is_of_queue(header.kind, body) {
            return true;
        }
        // A block without references, a session, or a log: payload does not go on behind it.
        let Ok(references) = references(header, body).collect::<Result<Vec<_>, _>>() else { return false };
        if references.is_empty() || references.len() != header.batch_count as usize {
            return false;
        }
        for (n, reference) in references.iter().enumerate() {
            let is_there =
                |batch: &Placed| (batch.slice, batch.offset) == (reference.slice, reference.offset);
            if (n == 0 && !self.begins(header, is_there)) || !self.batches.get(self.at).is_some_and(is_there)
            {
                return false;
            }
            self.at += 1;
        }
        self.next = header.next_record();
        true
    }

    /// Goes to the first batch of an entry. False: it is not the one that has to follow.
    fn begins(&mut self, header: &BlockHeader, is_there: impl Fn(&Placed) -> bool) -> bool {
        if !self.is_gap {
            return header.first == self.next;
        }
        let Some(skipped) = self.batches[self.at..].iter().position(is_there) else { return false };
        let skipped = &self.batches[self.at..self.at + skipped];
        let records = skipped.iter().map(|batch| u64::from(batch.records)).sum();
        if self.next.plus(records) != header.first {
            return false;
        }
        (self.at, self.is_gap) = (self.at + skipped.len(), false);
        true
    }
}
