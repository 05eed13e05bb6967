//! Kept: what a replica has on its disk, entry by entry, as far as it has to be known to judge an acknowledgement.
//!
//! Invariant: an entry counts by what it is, never by its place alone. A suffix that was cut off had the same indexes.
//!
//! Must not know: where it was learnt.

use crate::store::format::block::{BlockHeader, Kind};
use crate::types::{EntryIndex, Index, Term};

/// What tells one entry from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) term: Term,
    pub(super) kind: Kind,
    pub(super) first: Index,
    pub(super) records: u32,
    pub(super) digest: u32,
}

impl Seal {
    pub(super) fn of(header: &BlockHeader) -> Self {
        Self {
            term: header.term,
            kind: header.kind,
            first: header.first,
            records: header.record_count,
            digest: header.body_digest,
        }
    }
}

/// What a write under way, or a finished one, leaves on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The last record.
    pub(super) last: Index,
    pub(super) term: Term,
    pub(super) vote: u64,
    /// Up to here the replica knew its entries to be committed. The oracle holds those against what is committed.
    pub(super) sure: EntryIndex,
    /// The entries behind `sure`, in order.
    pub(super) tail: Vec<Seal>,
}

impl Kept {
    /// Whether it has this entry, and no other one in its place.
    pub(super) fn holds(&self, entry: EntryIndex, seal: &Seal) -> bool {
        match entry.0.checked_sub(self.sure.0 + 1) {
            None => true,
            Some(place) => self.tail.get(place as usize) == Some(seal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(term: u64, digest: u32) -> Seal {
        Seal { term: Term(term), kind: Kind::Data, first: Index(7), records: 1, digest }
    }

    /// Compared by index, a suffix that another leader had cut off counted as the acknowledged entry.
    #[test]
    fn entry_that_was_cut_off_does_not_count() {
        let kept = Kept { sure: EntryIndex(10), tail: vec![seal(2, 1), seal(2, 2)], ..Kept::default() };
        assert!(kept.holds(EntryIndex(9), &seal(1, 0)) && kept.holds(EntryIndex(10), &seal(1, 0)));
        assert!(kept.holds(EntryIndex(12), &seal(2, 2)));
        assert!(!kept.holds(EntryIndex(12), &seal(3, 2)), "of another term");
        assert!(!kept.holds(EntryIndex(12), &seal(2, 3)), "with another body");
        assert!(!kept.holds(EntryIndex(13), &seal(2, 2)), "not there");
        assert!(!Kept::default().holds(EntryIndex(1), &seal(1, 1)));
    }
}
