//! Kept: the entries on a replica's disk, as far as they are needed to judge an acknowledgement.
//!
//! Invariant: an entry is compared by term and digest, never by its index alone. A truncated suffix had the same
//! indexes.
//!
//! Must not know: where it was learnt.

use crate::store::format::block::{BlockHeader, Kind};
use crate::types::{EntryIndex, Index, Term};

/// The identity of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) term: Term,
    pub(super) kind: Kind,
    pub(super) first: Index,
    pub(super) records: u32,
    pub(super) digest: u32,
}

impl Seal {
    /// No entry's: says that an entry was discarded.
    pub(super) const DISCARDED: Self =
        Self { term: Term(0), kind: Kind::HardState, first: Index(0), records: 0, digest: 0 };

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

/// The state that a write leaves on the disk, when it is finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The last record.
    pub(super) last: Index,
    pub(super) term: Term,
    pub(super) vote: u64,
    /// The last entry that the replica knew to be committed. The oracle checks these entries against the committed
    /// ones.
    pub(super) sure: EntryIndex,
    /// The entries after `sure`, in order.
    pub(super) tail: Vec<Seal>,
}

impl Kept {
    /// Whether it has this entry, and not another one at its index.
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

    /// When entries were compared by index, a suffix that another leader had truncated counted as the acknowledged
    /// entry.
    #[test]
    fn truncated_entry_does_not_count() {
        let kept = Kept { sure: EntryIndex(10), tail: vec![seal(2, 1), seal(2, 2)], ..Kept::default() };
        assert!(kept.holds(EntryIndex(9), &seal(1, 0)) && kept.holds(EntryIndex(10), &seal(1, 0)));
        assert!(kept.holds(EntryIndex(12), &seal(2, 2)));
        assert!(!kept.holds(EntryIndex(12), &seal(3, 2)), "of another term");
        assert!(!kept.holds(EntryIndex(12), &seal(2, 3)), "with another body");
        assert!(!kept.holds(EntryIndex(13), &seal(2, 2)), "not there");
        assert!(!Kept::default().holds(EntryIndex(1), &seal(1, 1)));
    }
}
