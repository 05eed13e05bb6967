//! Storing: which members of a group store what its leader, this server, sends them.
//!
//! Invariant: a member stores what it is sent only if, at this look, it has all that the leader had at an earlier one, or has now. One that
//! is heard and lacks little can have no room for the rest: it would count as a vote, and confirm nothing.

use chiplog::{EntryIndex, NodeId};
use std::collections::BTreeMap;

/// The entries that a member is to have.
#[derive(Debug)]
struct Mark {
    /// The leader's last entry when the member last had all up to the mark before.
    entry: EntryIndex,
    /// Whether the last look found that it had as much.
    is_reached: bool,
}

/// The marks of the members of the groups that this server leads.
#[derive(Debug, Default)]
pub(super) struct Marks(BTreeMap<(u32, NodeId), Mark>);

impl Marks {
    /// Notes the last entry that each member of a group has. `last`: that of the leader. A slow member keeps its mark until it has reached it.
    pub(super) fn look(&mut self, group: u32, last: EntryIndex, matched: &BTreeMap<NodeId, EntryIndex>) {
        self.0.retain(|(of, node), _| *of != group || matched.contains_key(node));
        for (node, matched) in matched {
            let new = || Mark { entry: last, is_reached: false };
            let mark = self.0.entry((group, *node)).or_insert_with(new);
            mark.is_reached = *matched >= mark.entry;
            if mark.is_reached {
                mark.entry = last;
            }
        }
    }

    /// Whether a member of a group stores what it is sent, as the last look found.
    pub(super) fn stores(&self, group: u32, node: NodeId) -> bool {
        self.0.get(&(group, node)).is_some_and(|mark| mark.is_reached)
    }

    /// Forgets a group that this server does not lead.
    pub(super) fn forget(&mut self, group: u32) {
        self.0.retain(|(of, _), _| *of != group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A learner whose disk was full got its vote, because it lacked little. The change needed that vote, and no other one could be made.
    #[test]
    fn member_that_comes_no_further_does_not_store() {
        let mut marks = Marks::default();
        let look = |marks: &mut Marks, last: u64, matched: u64| {
            marks.look(1, EntryIndex(last), &[(NodeId(4), EntryIndex(matched))].into());
            marks.stores(1, NodeId(4))
        };
        assert!(!marks.stores(1, NodeId(4)), "nothing is known of it");
        for (last, matched, stores) in [
            (1000, 0, false),
            (1040, 990, false),
            (1060, 1000, true),  // what there was at the first look
            (1080, 1059, false), // slow: it keeps its mark
            (1100, 1060, true),
            (1120, 1060, false), // full
            (1120, 1060, false),
            (1130, 1100, true),
            (1130, 1130, true), // there is no more
            (1130, 1130, true),
        ] {
            assert_eq!(look(&mut marks, last, matched), stores, "{matched} of {last}");
        }
        marks.forget(2);
        assert!(marks.stores(1, NodeId(4)));
        marks.forget(1);
        assert!(!marks.stores(1, NodeId(4)), "the mark is old once this server leads again");
        assert!(!look(&mut marks, 1131, 1130), "it lacks one, and nothing shows that it gets it");
        assert!(look(&mut marks, 1132, 1132));
        marks.look(1, EntryIndex(1132), &BTreeMap::new());
        assert!(!marks.stores(1, NodeId(4)), "it is no member any more");
    }
}
