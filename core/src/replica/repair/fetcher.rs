//! Mender: gathers the entries that belong into a wound, from whoever has them. Pure: told the time, it says whom to
//! ask for what.
//!
//! One peer is asked at a time; who does not answer in time loses its turn, and who answers is asked on.
//!
//! Must not know: files, raft.

use crate::replica::wire::repair_message::Fetch;
use crate::store::recovery::gap::{Spare, Wound};
use crate::sync::clock::Moment;
use crate::types::{NodeId, RaftIndex};
use std::collections::BTreeSet;
use std::time::Duration;

/// A wound, and what has come for it.
#[derive(Debug)]
pub(crate) struct Mender {
    pub(crate) wound: Wound,
    /// The entries from the first that is missing on.
    spares: Vec<Spare>,
    /// Whose turn it is, and until when.
    turn: usize,
    until: Option<Moment>,
    patience: Duration,
    bytes_max: u32,
    /// Peers that have the entry that is missing next damaged as well.
    damaged: BTreeSet<NodeId>,
}

impl Mender {
    /// Nothing is there yet. A peer has `patience` to answer.
    pub(crate) fn new(wound: Wound, patience: Duration, bytes_max: u32) -> Self {
        Self {
            wound,
            spares: Vec::new(),
            turn: 0,
            until: None,
            patience,
            bytes_max,
            damaged: BTreeSet::new(),
        }
    }

    /// The next entry that is missing; None when all are there. Before them the one before the hole is asked for, if others
    /// have to say that it is that one. If it is another one, nothing can be put back.
    pub(crate) fn missing(&self) -> Option<RaftIndex> {
        if self.wound.presumed().is_some() || self.wound.is_refuted() {
            return self.wound.presumed();
        }
        let next = self.spares.last().map_or(self.wound.first(), |(h, _)| h.raft_index.next());
        (next <= self.wound.upto).then_some(next)
    }

    /// The entries, when all are there.
    pub(crate) fn spares(&self) -> &[Spare] {
        &self.spares
    }

    /// When [`Self::ask`] wants to be called again.
    pub(crate) fn deadline(&self, now: Moment) -> Moment {
        self.until.unwrap_or(now)
    }

    /// Whom to ask for what, if it is time to.
    pub(crate) fn ask(&mut self, now: Moment, peers: &[NodeId]) -> Option<(NodeId, Fetch)> {
        let first = self.missing()?;
        if self.until.is_some_and(|until| now < until) {
            return None;
        }
        if self.until.is_some() {
            self.turn = self.turn.wrapping_add(1); // no answer
        }
        self.until = Some(now.plus(self.patience));
        let whole: Vec<_> = peers.iter().filter(|peer| !self.damaged.contains(peer)).collect();
        let peer = **whole.get(self.turn % whole.len().max(1))?;
        let (last, anchor, bytes_max) = (self.wound.upto, self.wound.anchor, self.bytes_max);
        Some((peer, Fetch { first, last, anchor, bytes_max }))
    }

    /// A peer says that it has an entry damaged as well. The next one is asked at once.
    pub(crate) fn has_it_damaged(&mut self, peer: NodeId, entry: RaftIndex) {
        if self.missing() == Some(entry) && self.damaged.insert(peer) {
            self.until = None;
        }
    }

    /// Whether all of `peers` have said that they have the next entry damaged; of nobody: false.
    pub(crate) fn is_lost_to(&self, peers: &[NodeId]) -> bool {
        !peers.is_empty() && peers.iter().all(|peer| self.damaged.contains(peer))
    }

    /// Takes what came, as far as it is missing. The peer that sent it may be asked on at once.
    pub(crate) fn take(&mut self, spares: impl IntoIterator<Item = Spare>) {
        for (header, body) in spares {
            if self.missing() != Some(header.raft_index) {
                continue;
            }
            match self.wound.presumed() {
                Some(_) => self.wound.compare(&header),
                None => self.spares.push((header, body)),
            }
            self.until = None;
            self.damaged.clear();
        }
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
    use crate::store::format::segment::digest_of_bytes;
    use crate::types::{Index, Term, Timestamp};

    /// Entries 10 to 12 are missing behind entry 9 of term 2, which segment 1 says they follow, and before entry 13 of term 3.
    fn behind_segment(committed: u64) -> Mender {
        let mut wound = Wound::of_entries((RaftIndex(9), Term(2)), (RaftIndex(13), Term(3)));
        wound.begin_behind(1, RaftIndex(committed), false);
        mender(wound)
    }

    fn mender(wound: Wound) -> Mender {
        Mender::new(wound, Duration::from_secs(1), 1 << 20)
    }

    fn no_op(raft: u64, term: u64) -> Spare {
        let header = BlockHeader {
            length: BLOCK_HEADER_BYTES as u32,
            batch_count: 0,
            raft_index: RaftIndex(raft),
            term: Term(term),
            first: Index(7),
            timestamp: Timestamp(5),
            record_count: 0,
            durable_upto: 0,
            body_digest: digest_of_bytes(&[]),
            kind: Kind::NoOp,
        };
        (header, Vec::new())
    }

    /// The entry that others have at the end of the segment before decides whether anything is put back behind it.
    #[test]
    fn entry_before_an_opening_is_asked_for_unless_it_is_committed() {
        let mut mender = behind_segment(8);
        assert_eq!(mender.missing(), Some(RaftIndex(9)));
        mender.take([no_op(10, 2)]);
        assert_eq!(mender.missing(), Some(RaftIndex(9)), "only its own entry tells");
        mender.take([no_op(9, 2), no_op(10, 2)]);
        assert_eq!((mender.missing(), mender.spares().len()), (Some(RaftIndex(11)), 1));
        assert!(mender.wound.is_founded(&[]));

        let mut mender = behind_segment(8);
        mender.take([no_op(9, 3), no_op(10, 3)]);
        assert_eq!((mender.missing(), mender.spares().len()), (None, 0));
        assert!(mender.wound.fill(None, &[], None).unwrap_err().contains("remove this node"));
        let is_founded = |raft, term| mender.wound.is_founded(&[no_op(raft, term).0]);
        assert!(is_founded(9, 2) && !is_founded(9, 3) && !is_founded(10, 2));

        assert_eq!(behind_segment(9).missing(), Some(RaftIndex(10)));
    }

    /// The others may have discarded the entry before the hole: then a replica that knew it committed ended for nothing.
    #[test]
    fn rivals_are_asked_for_from_the_first_entry_that_is_not_known_committed() {
        let question = |committed| mender(behind_segment(committed).wound.rivals());
        assert_eq!(question(8).missing(), Some(RaftIndex(9)));
        assert_eq!(question(9).missing(), Some(RaftIndex(10)));
        let mut empty = Wound::of_entries((RaftIndex(9), Term(2)), (RaftIndex(9), Term(2)));
        empty.begin_behind(1, RaftIndex(9), false);
        assert_eq!(
            mender(empty.rivals()).missing(),
            Some(RaftIndex(9)),
            "no entry behind it need ever be there"
        );
        let following = |committed| behind_segment(committed).wound.following(&[no_op(10, 4)]).len();
        assert_eq!([following(8), following(9)], [0, 1]);
    }
}
