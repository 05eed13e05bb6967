//! At a leader: the replicas that are sent an opening instead of entries that are stored, and how far each of them skips these.
//!
//! ```text
//! request ──> undecided ──decide──> decided ──sent──> under way ──acknowledged──> (gone)
//!                 ^                    │ not sent in time  │ lost
//!                 └────────────────────┴───────────────────┘  after three attempts: all entries
//! ```
//!
//! Raft's own flag, which has it send an opening, is set while an opening is decided and not sent; for a replica without any entry also
//! while none is decided. `skipping.rs` sets it together with this state.

use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// How often an opening is sent to a replica. Then it is sent all entries: it may refuse the opening.
const ATTEMPTS_MAX: u8 = 3;

/// The entries that a replica is not sent.
#[derive(Clone, Copy, Debug)]
struct Skip {
    /// Those behind this one, the last that it has.
    last: EntryIndex,
    /// Up to this one. None: this is not decided yet.
    upto: Option<EntryIndex>,
    /// When it is decided at the latest, or once more. None: an opening is under way.
    due: Option<Moment>,
    /// The opening that was sent last.
    sent: Option<EntryIndex>,
    /// How often one is still sent. 0: it is sent all entries, whatever it asks.
    attempts: u8,
}

impl Skip {
    fn is_undecided(&self) -> bool {
        self.upto.is_none() && self.attempts > 0
    }
}

/// The state of all replicas.
#[derive(Debug, Default)]
pub(super) struct Openings {
    of: BTreeMap<u64, Skip>,
    /// Replicas for which there was no opening, although raft wanted one. They need the first entries.
    missing: RefCell<BTreeSet<u64>>,
}

impl Openings {
    /// A replica is not sent what is stored behind `last`. How far that is has to be decided until `due`.
    pub(super) fn request(&mut self, node: NodeId, last: EntryIndex, due: Moment) {
        let new = Skip { last, upto: None, due: None, sent: None, attempts: ATTEMPTS_MAX };
        let skip = self.of.entry(node.0).or_insert(new);
        if skip.attempts > 0 {
            (skip.last, skip.upto, skip.due) = (last, None, Some(due));
        }
    }

    /// Whether openings were lost, or refused, too often.
    pub(super) fn gave_up(&self, node: NodeId) -> bool {
        self.of.get(&node.0).is_some_and(|skip| skip.attempts == 0)
    }

    /// The replicas for which it is to be decided how far they skip entries.
    pub(super) fn undecided(&self) -> Vec<NodeId> {
        self.of.iter().filter(|(_, skip)| skip.is_undecided()).map(|(node, _)| NodeId(*node)).collect()
    }

    /// When the first of them has waited for long.
    pub(super) fn decide_until(&self) -> Option<Moment> {
        self.of.values().filter(|skip| skip.is_undecided()).filter_map(|skip| skip.due).min()
    }

    /// A replica whose last entry is `last` is not sent entries up to `upto`, which are committed and in objects. That counts until `due`.
    pub(super) fn decide(&mut self, node: NodeId, last: EntryIndex, upto: EntryIndex, due: Moment) {
        if let Some(skip) = self.of.get_mut(&node.0) {
            (skip.last, skip.upto, skip.due) = (last, Some(upto), Some(due));
        }
    }

    /// The last entry that a replica has, and the one up to which it is sent none. None: it is sent all, or nothing is decided.
    pub(super) fn decided(&self, node: u64) -> Option<(EntryIndex, EntryIndex)> {
        self.of.get(&node).and_then(|skip| Some((skip.last, skip.upto?)))
    }

    /// The last entry that a replica had when it asked. None: it is sent all entries.
    pub(super) fn last_of(&self, node: NodeId) -> Option<EntryIndex> {
        self.of.get(&node.0).map(|skip| skip.last)
    }

    /// A decision that led to no opening in time is made again: objects may have been found damaged since.
    pub(super) fn renew(&mut self, now: Moment, due: Moment) {
        for skip in self.of.values_mut().filter(|skip| skip.due.is_some_and(|due| due <= now)) {
            if skip.upto.take().is_some() {
                skip.due = Some(due);
            }
        }
    }

    /// An opening, which has the state after entry `at`, is under way.
    pub(super) fn has_sent(&mut self, node: NodeId, at: EntryIndex) {
        if let Some(skip) = self.of.get_mut(&node.0) {
            (skip.sent, skip.due) = (Some(at), None);
        }
    }

    /// An opening was lost, or refused. The last entry that the replica had, if it is sent another one.
    pub(super) fn lost(&mut self, node: NodeId) -> Option<EntryIndex> {
        let skip = self.of.get_mut(&node.0)?;
        skip.attempts = skip.attempts.saturating_sub(1);
        (skip.upto, skip.due) = (None, None);
        (skip.attempts > 0).then_some(skip.last)
    }

    /// A replica has entries up to `last`. Whether it thus needs no opening any more.
    pub(super) fn acknowledged(&mut self, node: NodeId, last: EntryIndex) -> bool {
        let Some(skip) = self.of.get(&node.0).filter(|skip| skip.attempts > 0) else { return false };
        let was_new = skip.last.0 == 0 && last.0 > 0;
        let is_done = was_new || skip.sent.is_some_and(|sent| sent <= last);
        if is_done {
            self.end(node);
        }
        is_done
    }

    /// A replica is sent all entries that there are.
    pub(super) fn end(&mut self, node: NodeId) {
        self.of.remove(&node.0);
    }

    /// The same of all replicas that are not in the cluster.
    pub(super) fn end_all_but(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.of.retain(|node, _| is_member(NodeId(*node)));
    }

    /// There is no opening for a replica. If it is decided how far it skips entries, it is sent all.
    pub(super) fn is_missing(&self, node: u64) {
        if self.of.get(&node).is_none_or(|skip| !skip.is_undecided()) {
            self.missing.borrow_mut().insert(node);
        }
    }

    /// The replicas that this was said of since the last call.
    pub(super) fn take_missing(&self) -> BTreeSet<u64> {
        self.missing.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(millis))
    }

    #[test]
    fn opening_is_sent_three_times_at_most() {
        let (mut openings, node) = (Openings::default(), NodeId(2));
        openings.request(node, EntryIndex(0), at(5));
        for left in [true, true, false] {
            assert_eq!((openings.undecided(), openings.decide_until()), (vec![node], Some(at(5))));
            openings.decide(node, EntryIndex(0), EntryIndex(70), at(9));
            assert_eq!(openings.decided(2), Some((EntryIndex(0), EntryIndex(70))));
            openings.has_sent(node, EntryIndex(60));
            assert_eq!(openings.lost(node).is_some(), left);
            if left {
                openings.request(node, EntryIndex(0), at(5));
            }
        }
        for _ in 0..2 {
            assert_eq!(
                (openings.undecided(), openings.decided(2), openings.gave_up(node)),
                (vec![], None, true)
            );
            openings.request(node, EntryIndex(0), at(5));
            assert!(!openings.acknowledged(node, EntryIndex(90)));
        }
        openings.end(node); // it has started again
        openings.request(node, EntryIndex(0), at(5));
        assert_eq!(openings.undecided(), vec![node]);
    }

    #[test]
    fn late_acknowledgement_of_a_lost_opening_ends_the_next_attempt() {
        let (mut openings, node) = (Openings::default(), NodeId(2));
        openings.request(node, EntryIndex(10), at(5));
        openings.decide(node, EntryIndex(10), EntryIndex(70), at(9));
        assert!(!openings.acknowledged(node, EntryIndex(30)), "entries that were under way");
        openings.has_sent(node, EntryIndex(60));
        assert!(!openings.acknowledged(node, EntryIndex(40)));
        assert_eq!(openings.lost(node), Some(EntryIndex(10)));
        openings.request(node, EntryIndex(10), at(9));
        assert!(openings.acknowledged(node, EntryIndex(60)));
        assert_eq!(openings.last_of(node), None);
    }

    #[test]
    fn what_is_decided_counts_for_a_while() {
        let (mut openings, node) = (Openings::default(), NodeId(2));
        openings.request(node, EntryIndex(10), at(5));
        openings.decide(node, EntryIndex(10), EntryIndex(70), at(9));
        openings.renew(at(8), at(20));
        assert_eq!(openings.undecided(), []);
        openings.renew(at(9), at(20));
        assert_eq!((openings.undecided(), openings.decide_until()), (vec![node], Some(at(20))));
        openings.decide(node, EntryIndex(10), EntryIndex(50), at(30));
        openings.has_sent(node, EntryIndex(40));
        openings.renew(at(99), at(120));
        assert_eq!(openings.undecided(), [], "it is under way");
        openings.end_all_but(|node| node.0 == 3);
        assert_eq!(openings.last_of(node), None);
    }
}
