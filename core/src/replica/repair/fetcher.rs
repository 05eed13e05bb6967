//! Repair fetcher: collects the entries of a gap from the other replicas. Pure: given the time, it decides which
//! replica to ask for which entries.
//!
//! It asks one peer at a time. If the peer does not answer in time, the next one is asked; if it answers, it is asked
//! again.
//!
//! It holds all entries of the gap in memory until the last one has arrived. They take no more than the gap in the file, so no more than a
//! segment. One case is different: an opening is lost, and the segment before it is not the one that was there, but one of before a jump.
//! Then these are all entries from the end of that segment to the first sound block, of which the last ones have room. They are bounded by
//! what other replicas keep: the first entry that all of them have discarded, or have in the object store alone, ends the repair. A jump is
//! made because of such an entry, so there are many only if another replica keeps more than the leader did. They cannot be dropped as they
//! arrive, because not before the last one it is known which of them have room, and whether the opening follows from them.
//!
//! Must not know: files, raft.

use crate::replica::wire::repair_message::Fetch;
use crate::store::recovery::gap::{BlockCopy, Gap};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId};
use std::collections::BTreeSet;
use std::time::Duration;

/// A gap, and the entries received for it.
#[derive(Debug)]
pub(crate) struct Fetcher {
    pub(crate) gap: Gap,
    /// The entries, from the first missing one on.
    spares: Vec<BlockCopy>,
    /// The peer that is asked now, and until when it may answer.
    turn: usize,
    until: Option<Moment>,
    wait_limit: Duration,
    bytes_max: u32,
    /// Peers that have the next missing entry damaged as well.
    damaged: BTreeSet<NodeId>,
}

impl Fetcher {
    /// No entry was received yet. A peer has `wait_limit` to answer.
    pub(crate) fn new(gap: Gap, wait_limit: Duration, bytes_max: u32) -> Self {
        Self {
            gap,
            spares: Vec::new(),
            turn: 0,
            until: None,
            wait_limit,
            bytes_max,
            damaged: BTreeSet::new(),
        }
    }

    /// The next missing entry; None if there is none. If others have to confirm the entry before the gap, that one is
    /// requested first. If they have another one there, nothing can be restored.
    pub(crate) fn missing(&self) -> Option<EntryIndex> {
        if self.gap.presumed().is_some() || self.gap.is_refuted() {
            return self.gap.presumed();
        }
        let next = self.spares.last().map_or(self.gap.first(), |(h, _)| h.raft_index.next());
        (next <= self.gap.upto).then_some(next)
    }

    /// The received entries.
    pub(crate) fn spares(&self) -> &[BlockCopy] {
        &self.spares
    }

    /// When [`Self::next_request`] has to be called again.
    pub(crate) fn deadline(&self, now: Moment) -> Moment {
        self.until.unwrap_or(now)
    }

    /// The peer to ask now, and the request. None: it is too early, or there is nothing to ask.
    pub(crate) fn next_request(&mut self, now: Moment, peers: &[NodeId]) -> Option<(NodeId, Fetch)> {
        let first = self.missing()?;
        if self.until.is_some_and(|until| now < until) {
            return None;
        }
        if self.until.is_some() {
            self.turn = self.turn.wrapping_add(1); // no answer
        }
        self.until = Some(now.plus(self.wait_limit));
        let whole: Vec<_> = peers.iter().filter(|peer| !self.damaged.contains(peer)).collect();
        let peer = **whole.get(self.turn % whole.len().max(1))?;
        let (last, anchor, bytes_max) = (self.gap.upto, self.gap.anchor, self.bytes_max);
        Some((peer, Fetch { first, last, anchor, bytes_max }))
    }

    /// A peer has an entry damaged as well. The next peer is asked at once.
    pub(crate) fn mark_damaged_at(&mut self, peer: NodeId, entry: EntryIndex) {
        if self.missing() == Some(entry) && self.damaged.insert(peer) {
            self.until = None;
        }
    }

    /// Whether all of `peers` have reported the next entry as damaged. False if there are no peers.
    pub(crate) fn is_lost_to(&self, peers: &[NodeId]) -> bool {
        !peers.is_empty() && peers.iter().all(|peer| self.damaged.contains(peer))
    }

    /// Takes received entries, as far as they are missing. Their sender may be asked again at once.
    pub(crate) fn take(&mut self, spares: impl IntoIterator<Item = BlockCopy>) {
        for (header, body) in spares {
            if self.missing() != Some(header.raft_index) {
                continue;
            }
            match self.gap.presumed() {
                Some(_) => self.gap.compare(&header),
                None => self.spares.push((header, body)),
            }
            self.until = None;
            self.damaged.clear();
        }
    }
}

#[cfg(all(test, feature = "testing", not(loom)))]
mod tests {
    use super::*;
    use crate::store::format::block::{BlockHeader, Kind};
    use crate::types::{Index, Term, Timestamp};

    /// Entries 10 to 12 are missing. Segment 1 has entry 9 of term 2 before them, and entry 13 of term 3 follows.
    fn behind_segment(committed: u64) -> Fetcher {
        let mut gap = Gap::of_entries((EntryIndex(9), Term(2)), (EntryIndex(13), Term(3)));
        gap.begin_behind(1, EntryIndex(committed), false);
        fetcher(gap)
    }

    fn fetcher(gap: Gap) -> Fetcher {
        Fetcher::new(gap, Duration::from_secs(1), 1 << 20)
    }

    fn no_op(raft: u64, term: u64) -> BlockCopy {
        let header = BlockHeader::without_records(
            Kind::NoOp,
            (EntryIndex(raft), Term(term)),
            Index(7),
            Timestamp(5),
            &[],
        );
        (header, Vec::new())
    }

    /// The others' last entry of the segment before decides whether anything is restored after it.
    #[test]
    fn entry_before_an_opening_is_requested_unless_it_is_committed() {
        let mut fetcher = behind_segment(8);
        assert_eq!(fetcher.missing(), Some(EntryIndex(9)));
        fetcher.take([no_op(10, 2)]);
        assert_eq!(fetcher.missing(), Some(EntryIndex(9)), "only that entry can confirm it");
        fetcher.take([no_op(9, 2), no_op(10, 2)]);
        assert_eq!((fetcher.missing(), fetcher.spares().len()), (Some(EntryIndex(11)), 1));
        assert!(fetcher.gap.is_founded(&[]));

        let mut fetcher = behind_segment(8);
        fetcher.take([no_op(9, 3), no_op(10, 3)]);
        assert_eq!((fetcher.missing(), fetcher.spares().len()), (None, 0));
        assert!(fetcher.gap.fill(None, &[], None).unwrap_err().contains("remove this node"));
        let is_founded = |raft, term| fetcher.gap.is_founded(&[no_op(raft, term).0]);
        assert!(is_founded(9, 2) && !is_founded(9, 3) && !is_founded(10, 2));

        assert_eq!(behind_segment(9).missing(), Some(EntryIndex(10)));
    }

    /// The others may have discarded the entry before the gap. A replica that knew it to be committed failed
    /// needlessly.
    #[test]
    fn rivals_are_requested_from_the_first_entry_not_known_to_be_committed() {
        let question = |committed| fetcher(behind_segment(committed).gap.rivals());
        assert_eq!(question(8).missing(), Some(EntryIndex(9)));
        assert_eq!(question(9).missing(), Some(EntryIndex(10)));
        let mut empty = Gap::of_entries((EntryIndex(9), Term(2)), (EntryIndex(9), Term(2)));
        empty.begin_behind(1, EntryIndex(9), false);
        assert_eq!(
            fetcher(empty.rivals()).missing(),
            Some(EntryIndex(9)),
            "possibly no replica ever has an entry after it"
        );
        let entries_after_gap =
            |committed| behind_segment(committed).gap.entries_after_gap(&[no_op(10, 4)]).len();
        assert_eq!([entries_after_gap(8), entries_after_gap(9)], [0, 1]);
    }
}
