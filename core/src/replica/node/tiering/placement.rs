//! Placement: up to which entry the object store alone has the log, with the durability class `object`. An append is acknowledged only
//! then.
//!
//! ```text
//!   entries      | ... a | b | c | p1 | p2 | p3 | s | p4 | p5 |        p: payload that follows the payload before it; s: a session
//!   slices       | ........ ]                   |             |
//!                    ^ anchor   ^ sliced        ^ the store has the log up to here. With a slice of s, up to p5
//! ```
//!
//! An entry is in the object store if a slice of entries has it. That takes a while. But payload is there before its references are
//! proposed, in slices whose numbers and breaks say in which order it was in this leader's queue. So behind the entries that slices have,
//! payload alone says how the log goes on, as far as the log has all of it and nothing else: as far as entries are *placed*.
//!
//! An entry is placed if it refers to all batches of a block, if these begin in the payload slices where those of the entry with references
//! before it end, without a break, and if between these two entries are commands about objects alone, which no record depends on.
//! All others are not, such as a leader's first entry, sessions, changes of named logs, discards, options, blocks of small appends, and what comes behind
//! payload of which the log took nothing.
//!
//! Invariants:
//! - the log of the object store ends with the slices of entries, which have no gap (S3 of `slices`), or, if the last entry with references
//!   before that end is in one of them, with the last entry behind which the first one comes that is not placed (P6);
//! - the slice with that last entry with references, or with the first entry of the term if there is none, stays, and so do that one's
//!   payload slice and all later ones: they say where the payload goes on (P7). Behind a session, or a block without references, none
//!   goes on: then the slice with that entry is the first that stays. See `keeps_slices_from` and `keeps_payload_from`;
//! - the first entry of a leader's term is not placed. So payload of an earlier term counts only before there is an entry of a later one
//!   in the object store, and payload that a deposed leader stored is never taken for what its successor wrote.
//!
//! Must not know: the network, which object store it is.

use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId};
use crate::replica::queue::proposals::StoredAt;
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, Term};
use std::collections::VecDeque;

/// The most entries with references that are remembered: more wait only if no slice of entries can be stored for long.
const ANCHORS_MAX: usize = 1 << 16;

/// The placed entries of a leader's term.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// None: this replica does not lead, or the first entry of its term is not in its log yet.
    term: Option<Term>,
    /// The last entry that is accounted for. Those behind it count as not placed.
    upto: EntryIndex,
    /// Where the batches of the next placed entry begin.
    next: Option<(PayloadId, u32)>,
    /// Stretches of entries that are not placed, without the first of both numbers; ascending.
    others: VecDeque<(EntryIndex, EntryIndex)>,
    /// The first entry of the term, those with references, and others of the queue; ascending. Up to [`ANCHORS_MAX`]: later ones do not
    /// count as placed, and what stays for an earlier one stays for them.
    anchors: VecDeque<Anchor>,
}

/// An entry that says where payload goes on behind it, or that none does.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    raft: EntryIndex,
    /// The record behind it.
    next: Index,
    /// The payload slice to which it refers. None: the first entry of the term.
    slice: Option<PayloadId>,
    /// Whether payload goes on behind it. It does not behind an entry of the queue without references.
    leads_on: bool,
}

/// The entries behind the first of these positions, up to the second one, are in slices of entries in the object store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sliced {
    pub(super) behind: EntryIndex,
    pub(super) end: Base,
}

impl Placement {
    /// This replica leads in this term, or does not lead.
    pub(super) fn lead(&mut self, term: Option<Term>) {
        if self.term.is_some() && self.term != term {
            *self = Self::default();
        }
    }

    /// The first entry of the term in which this replica leads.
    pub(super) fn begin(&mut self, term: Term, first: EntryIndex) {
        if self.term == Some(term) {
            return;
        }
        *self = Self { term: Some(term), ..Self::default() };
        self.skip_to(first);
        self.next = Some((PayloadId { term, sequence: 1 }, PAYLOAD_HEADER_BYTES as u32));
        // It has no record: what is behind it does not matter.
        self.anchors.push_back(Anchor { raft: first, next: Index(0), slice: None, leads_on: true });
    }

    /// Entries up to this one are not placed, as far as they are not accounted for.
    fn skip_to(&mut self, upto: EntryIndex) {
        if upto <= self.upto {
            return;
        }
        match self.others.back_mut().filter(|(_, last)| *last == self.upto) {
            Some((_, last)) => *last = upto,
            None => self.others.push_back((self.upto, upto)),
        }
        self.upto = upto;
    }

    /// An entry was proposed on which no record depends.
    pub(super) fn pass(&mut self, raft: EntryIndex) {
        if self.term.is_some() && raft > self.upto {
            self.skip_to(EntryIndex(raft.0 - 1));
            self.upto = raft;
        }
    }

    /// A block was proposed whose batches are in a payload slice. `end`: the position behind its entry. None: it made no entry.
    /// `is_whole`: the entry has all of its batches.
    pub(super) fn proposed(&mut self, at: StoredAt, end: Option<Base>, is_whole: bool) {
        if self.term != Some(at.slice.term) {
            return;
        }
        let follows = !at.breaks && self.next == Some((at.slice, at.begin));
        let behind = match at.is_last {
            true => (PayloadId { sequence: at.slice.sequence + 1, ..at.slice }, PAYLOAD_HEADER_BYTES as u32),
            false => (at.slice, at.end),
        };
        // Behind batches that the log did not take nothing is where a reader of payload alone would expect it.
        self.next = Some(behind).filter(|_| end.is_some() && is_whole);
        let Some(end) = end else { return };
        self.skip_to(EntryIndex(end.raft.0 - 1));
        if self.anchors.len() >= ANCHORS_MAX {
            return self.skip_to(end.raft);
        }
        if (follows && is_whole) || planted!(133) {
            self.upto = end.raft;
        } else {
            self.skip_to(end.raft);
        }
        self.anchors.push_back(Anchor {
            raft: end.raft,
            next: end.next,
            slice: Some(at.slice),
            leads_on: true,
        });
    }

    /// An entry of the queue was proposed that refers to no payload: a block of appends, or a session.
    pub(super) fn other(&mut self, end: Base) {
        if self.term.is_none() || end.raft <= self.upto {
            return;
        }
        self.skip_to(end.raft);
        if self.anchors.len() < ANCHORS_MAX && !planted!(143) {
            self.anchors.push_back(Anchor { raft: end.raft, next: end.next, slice: None, leads_on: false });
        }
    }

    /// The last anchor up to an entry.
    fn anchor(&self, upto: EntryIndex) -> Option<&Anchor> {
        let behind = self.anchors.partition_point(|anchor| anchor.raft <= upto);
        self.anchors.get(behind.checked_sub(1)?)
    }

    /// Forgets what is not needed any more once slices have the entries up to this one.
    pub(super) fn forget(&mut self, sliced: EntryIndex) {
        while self.others.front().is_some_and(|(_, last)| *last <= sliced) {
            self.others.pop_front();
        }
        while self.anchors.get(1).is_some_and(|second| second.raft <= sliced) {
            self.anchors.pop_front();
        }
    }

    /// The last entry, and the last record, that the object store alone has. `committed`: the last committed entry.
    /// Forgets what is not needed any more.
    pub(super) fn stored(&mut self, sliced: Sliced, committed: EntryIndex) -> (EntryIndex, Index) {
        let end = sliced.end;
        self.forget(end.raft);
        let by_slices = (end.raft, end.next.previous());
        let is_anchored =
            self.anchor(end.raft).is_some_and(|anchor| anchor.leads_on && anchor.raft > sliced.behind);
        if !is_anchored && !planted!(134) {
            return by_slices;
        }
        let upto = self.others.front().map_or(self.upto, |(behind, _)| *behind).min(committed);
        match self.anchor(upto).filter(|last| last.raft > end.raft) {
            Some(last) => (upto, last.next.previous()),
            None => (by_slices.0.max(upto), by_slices.1),
        }
    }

    /// The first entry whose slice has to stay, if slices have all entries up to `sliced`. None: none of this term does yet, and those of
    /// earlier terms have to stay.
    pub(super) fn keeps_slices_from(&self, sliced: EntryIndex) -> Option<EntryIndex> {
        self.anchor(sliced).map(|anchor| anchor.raft)
    }

    /// The first payload slice that has to stay, in the same way. The inner None: the log has no payload of this term up to there.
    pub(super) fn keeps_payload_from(&self, sliced: EntryIndex) -> Option<Option<PayloadId>> {
        self.anchor(sliced).map(|anchor| anchor.slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term(3);

    fn base(raft: u64, next: u64) -> Base {
        Base { raft: EntryIndex(raft), term: TERM, next: Index(next) }
    }

    fn at(sequence: u64, begin: u32, end: u32, is_last: bool) -> StoredAt {
        StoredAt { slice: PayloadId { term: TERM, sequence }, begin, end, is_last, breaks: false }
    }

    fn stored(placement: &mut Placement, behind: u64, end: Base) -> (u64, u64) {
        let (raft, last) = placement.stored(Sliced { behind: EntryIndex(behind), end }, EntryIndex(99));
        (raft.0, last.0)
    }

    /// Entry 10 is the first one of the term; 11 and 12 are placed.
    fn begun() -> Placement {
        let mut placement = Placement::default();
        placement.lead(Some(TERM));
        placement.begin(TERM, EntryIndex(10));
        placement.proposed(at(1, 72, 200, false), Some(base(11, 101)), true);
        placement.proposed(at(1, 200, 300, true), Some(base(12, 102)), true);
        placement
    }

    #[test]
    fn payload_counts_once_the_first_entry_of_the_term_is_in_a_slice() {
        let mut placement = begun();
        assert_eq!(stored(&mut placement, 2, base(9, 100)), (9, 99));
        assert_eq!(stored(&mut placement, 2, base(10, 100)), (12, 101));
        // The slices do not reach back to it.
        assert_eq!(stored(&mut begun(), 10, base(10, 100)), (10, 99));
        assert_eq!(placement.keeps_slices_from(EntryIndex(9)), None);
        assert_eq!(placement.keeps_payload_from(EntryIndex(10)), Some(None));
        assert_eq!(placement.keeps_payload_from(EntryIndex(11)).unwrap().unwrap().sequence, 1);
    }

    #[test]
    fn nothing_counts_behind_an_entry_that_is_not_placed() {
        for what in ["another entry", "a break", "a gap", "a batch too many", "no entry"] {
            let mut placement = begun();
            match what {
                "another entry" => placement.proposed(at(2, 72, 90, true), Some(base(14, 110)), true),
                "a break" => {
                    let breaks = StoredAt { breaks: true, ..at(2, 72, 90, true) };
                    placement.proposed(breaks, Some(base(13, 110)), true);
                }
                "a gap" => placement.proposed(at(3, 72, 90, true), Some(base(13, 110)), true),
                "a batch too many" => placement.proposed(at(2, 72, 90, true), Some(base(13, 110)), false),
                _ => {
                    placement.proposed(at(2, 72, 90, true), None, true);
                    placement.proposed(at(3, 72, 90, true), Some(base(13, 110)), true);
                }
            }
            assert_eq!(stored(&mut placement, 2, base(10, 100)), (12, 101), "{what}");
            placement.proposed(at(4, 72, 90, true), Some(base(15, 111)), true);
            assert_eq!(stored(&mut placement, 2, base(11, 101)), (12, 101), "{what}");
            // A slice of it says where the payload goes on.
            placement.proposed(at(5, 72, 90, true), Some(base(16, 112)), true);
            assert_eq!(stored(&mut placement, 2, base(15, 111)), (16, 111), "{what}");
        }
    }

    #[test]
    fn commands_about_objects_hold_up_nothing() {
        let mut placement = begun();
        placement.pass(EntryIndex(13));
        placement.proposed(at(2, 72, 90, true), Some(base(14, 103)), true);
        assert_eq!(stored(&mut placement, 2, base(10, 100)), (14, 102));
        placement.pass(EntryIndex(16));
        assert_eq!(stored(&mut placement, 2, base(10, 100)), (14, 102));
    }

    /// Slices go although no payload is appended: behind a small block, or a session, none goes on.
    #[test]
    fn entries_without_references_let_slices_go() {
        let mut placement = begun();
        for raft in 13..=40 {
            placement.other(base(raft, 90 + raft));
        }
        assert_eq!(stored(&mut placement, 2, base(10, 100)), (12, 101));
        // Payload would begin with a break.
        assert_eq!(stored(&mut placement, 2, base(20, 110)), (20, 109));
        assert_eq!(placement.keeps_slices_from(EntryIndex(20)), Some(EntryIndex(20)));
        assert_eq!(placement.keeps_payload_from(EntryIndex(20)), Some(None));
        let breaks = StoredAt { breaks: true, ..at(2, 72, 90, false) };
        placement.proposed(breaks, Some(base(41, 131)), true);
        placement.proposed(at(2, 90, 95, true), Some(base(42, 132)), true);
        assert_eq!(stored(&mut placement, 2, base(40, 130)), (40, 129));
        assert_eq!(stored(&mut placement, 2, base(41, 131)), (42, 131));
        assert_eq!(placement.keeps_slices_from(EntryIndex(41)), Some(EntryIndex(41)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut placement = begun();
        for n in 0..2 * ANCHORS_MAX as u64 {
            placement.proposed(at(2 + n, 72, 90, true), Some(base(13 + n, 103 + n)), true);
        }
        assert!(placement.anchors.len() == ANCHORS_MAX && placement.others.len() == 2);
        let all = EntryIndex(u64::MAX);
        let sliced = |raft: u64| Sliced { behind: EntryIndex(2), end: base(raft, raft + 90) };
        let most = ANCHORS_MAX as u64 + 9;
        assert_eq!(placement.stored(sliced(10), all).0, EntryIndex(most));
        // They are not placed, and the last anchor keeps the slices that all of them need.
        assert_eq!(placement.stored(sliced(most + 100), all).0, EntryIndex(most + 100));
        assert_eq!(placement.keeps_slices_from(EntryIndex(most + 100)), Some(EntryIndex(most)));
        let last = 13 + 2 * ANCHORS_MAX as u64;
        placement.proposed(at(2 * ANCHORS_MAX as u64 + 2, 72, 90, true), Some(base(last, 103)), true);
        assert_eq!(placement.stored(sliced(last - 1), all).0, EntryIndex(last));
    }

    #[test]
    fn a_later_term_begins_anew() {
        let mut placement = begun();
        placement.lead(None);
        assert_eq!(stored(&mut placement, 2, base(12, 102)), (12, 101));
        placement.begin(Term(4), EntryIndex(20));
        placement.proposed(at(1, 72, 90, true), Some(base(21, 103)), true);
        assert_eq!(stored(&mut placement, 2, base(20, 103)), (20, 102), "a block of another term");
    }
}
