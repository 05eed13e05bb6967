//! Members: who belongs to the cluster, as far as a replica knows that repairs its log, and what they have told of it.
//!
//! The membership can have changed while this replica was away, and the change that made it a member can be in the hole:
//! then no sound block names any member. So it greets those that it knows of, and everybody that sends it anything, again and
//! again. A member answers with the newest membership that it knows, and those members are asked from then on. A leader
//! answers a replica that was removed with that word, and the replica ends its repair there. A removal of all other voters that is
//! not known to be committed leaves them members: they cannot lead without this replica.
//!
//! Must not know: files, terms, how a message is made.

use crate::cluster::membership::{MEMBERS_MAX, Member, Membership};
use crate::error::Result;
use crate::record::batch::Malformed;
use crate::replica::wire::raft_message;
use crate::store::format::block::Kind;
use crate::store::recovery::gap::BlockCopy;
use crate::types::{DirectoryId, EntryIndex, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The members, as far as this replica knows them.
#[derive(Debug)]
pub(super) struct Members {
    node: NodeId,
    /// The last membership that sound blocks tell of, and the entry that it is of. Empty: no block tells of one.
    pub(super) in_log: (Membership, EntryIndex),
    /// The newest one that others have told of, and as of which committed entry. It can be older than that in the log, of
    /// which the last change need not be committed.
    pub(super) told: Option<(Membership, EntryIndex)>,
    /// Nodes that were heard and are in neither.
    talkers: BTreeSet<NodeId>,
    /// The newest voters that each of the others has told of, and as of which committed entry.
    pub(super) voters: BTreeMap<NodeId, (EntryIndex, BTreeSet<u64>)>,
    /// Up to where others have discarded their logs.
    gone: BTreeMap<NodeId, EntryIndex>,
}

/// All whose votes count.
pub(super) fn voters_of(membership: &Membership) -> BTreeSet<u64> {
    membership.voters().into_iter().chain(membership.voters_outgoing()).collect()
}

impl Members {
    /// Those that sound blocks tell of, as of an entry.
    pub(super) fn new(node: NodeId, in_log: (Membership, EntryIndex)) -> Self {
        let (talkers, voters, gone) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { node, in_log, told: None, talkers, voters, gone }
    }

    /// The newest membership that is known, and the entry that it is of; empty if none is.
    pub(super) fn newest(&self) -> &(Membership, EntryIndex) {
        self.told.as_ref().filter(|(_, at)| *at > self.in_log.1).unwrap_or(&self.in_log)
    }

    /// A member as the newest membership that names it has it.
    pub(super) fn get(&self, node: NodeId) -> Option<&Member> {
        let told = || self.told.as_ref().and_then(|(told, _)| told.get(node));
        self.newest().0.get(node).or_else(|| self.in_log.0.get(node)).or_else(told)
    }

    /// All that can be members: those of the newest membership, and those that others have told of as long as the log's is newer
    /// than that. It need not be committed.
    pub(super) fn possible(&self) -> impl Iterator<Item = &Member> {
        let newest = &self.newest().0;
        let told = self.told.iter().flat_map(|(told, _)| told.members());
        newest.members().chain(told.filter(|member| newest.get(member.node).is_none()))
    }

    /// The replicas to ask.
    pub(super) fn others(&self) -> Vec<NodeId> {
        let members = self.possible().map(|m| m.node);
        let others: BTreeSet<NodeId> = members.chain(self.talkers.iter().copied()).collect();
        others.into_iter().filter(|n| *n != self.node).collect()
    }

    /// A node has sent something.
    ///
    /// # Errors
    /// It is not heard.
    pub(super) fn hear_from(
        &mut self,
        node: NodeId,
        directory: DirectoryId,
    ) -> std::result::Result<(), Malformed> {
        match self.get(node) {
            Some(member) if member.directory.0 != 0 && member.directory != directory => {
                return Err("its sender's directory is not the one the cluster knows");
            }
            Some(_) => {}
            // All members that this replica remembers may be gone: one that it never heard of can speak first.
            None if self.talkers.len() < MEMBERS_MAX => {
                self.talkers.insert(node);
            }
            None => return Err("its sender is no member"),
        }
        Ok(())
    }

    /// Another replica has told who belongs to the cluster as of this committed entry; one that repairs its log tells as of
    /// none. Whether that is news.
    pub(super) fn hear_of(&mut self, from: NodeId, at: EntryIndex, membership: Membership) -> bool {
        if self.voters.get(&from).is_none_or(|(before, _)| *before <= at) {
            self.voters.insert(from, (at, voters_of(&membership)));
        }
        let before = self.told.as_ref().map_or(EntryIndex(0), |(_, at)| *at);
        let is_news = at > before && membership.members().next().is_some();
        if is_news {
            self.told = Some((membership, at));
        }
        is_news
    }

    /// Another replica has discarded its log up to this entry.
    pub(super) fn has_discarded(&mut self, from: NodeId, upto: EntryIndex) {
        let known = self.gone.entry(from).or_default();
        *known = upto.max(*known);
    }

    /// Whether all that can be members have discarded this entry, by their own word. Each has also told as of which committed entry it
    /// knows which members, so that none is left out; one that repairs its own log tells as of none. Talkers that nobody names
    /// do not count: one that was removed says no more.
    pub(super) fn is_gone_everywhere(&self, entry: EntryIndex) -> bool {
        let others: Vec<_> = self.possible().filter(|m| m.node != self.node).collect();
        let has_told = |m: &Member| self.voters.get(&m.node).is_some_and(|(at, _)| at.0 > 0);
        let has_not = |m: &&Member| has_told(m) && self.gone.get(&m.node).is_some_and(|upto| *upto >= entry);
        !others.is_empty() && others.iter().all(has_not)
    }

    /// The membership that the log leads to with these entries, which came for the hole. If they follow a membership from
    /// before the hole, all behind it can be superseded. Else the last change counts, if it is later than those that sound
    /// blocks tell of.
    pub(super) fn after(&self, entries: &[BlockCopy], before: Option<Membership>) -> Option<Membership> {
        let counts_from = if before.is_some() { EntryIndex(0) } else { self.in_log.1.next() };
        let mut membership = before.unwrap_or_else(|| self.in_log.0.clone());
        let changes =
            entries.iter().filter(|(h, _)| h.kind == Kind::Configuration && h.raft_index >= counts_from);
        for (_, body) in changes {
            membership = match body.is_empty() {
                true => membership.left(),
                false => raft_message::membership_of_change(&body.concat()).ok()?,
            };
        }
        Some(membership)
    }

    /// The other one of two voters, if it knows no others either, and nobody tells of others since. `log`: the membership that
    /// the log leads to.
    ///
    /// # Errors
    /// Those of `log`.
    pub(super) fn other_of_two(
        &self,
        log: impl FnOnce() -> Result<Option<Membership>>,
    ) -> Result<Option<NodeId>> {
        let known = self.voters.iter().find_map(|(other, (_, voters))| {
            (*voters == BTreeSet::from([other.0, self.node.0])).then_some((*other, voters))
        });
        let Some((other, voters)) = known else { return Ok(None) };
        let told = self.told.as_ref().is_none_or(|(told, _)| voters_of(told) == *voters);
        let is_other = told && log()?.is_some_and(|log| voters_of(&log) == *voters);
        Ok(is_other.then_some(other))
    }
}
