//! Members: the membership as far as a replica knows it that repairs its log, and the others' reports of it.
//!
//! The membership can have changed while this replica was away. The change that made it a member can be in the gap:
//! then no sound block names any member. So it repeatedly greets the members that it knows, and every node that sends
//! it anything. A member answers with the newest membership that it knows, and from then on those members are asked. A
//! leader notifies a replica that was removed, and the replica ends its repair. If all other voters were removed by a
//! change that is not known to be committed, they still count as members: they cannot lead without this replica.
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
    /// The last membership in sound blocks, and its entry. Empty: no block holds one.
    pub(super) in_log: (Membership, EntryIndex),
    /// The newest membership that others reported, and the committed entry as of which it holds. It can be older than
    /// the one in the log, whose last change need not be committed.
    pub(super) reported: Option<(Membership, EntryIndex)>,
    /// Nodes that sent something and are in neither membership.
    talkers: BTreeSet<NodeId>,
    /// The newest voters that each of the others reported, and the committed entry as of which they hold.
    pub(super) voters: BTreeMap<NodeId, (EntryIndex, BTreeSet<u64>)>,
    /// The last entry that each of the others has discarded.
    gone: BTreeMap<NodeId, EntryIndex>,
}

/// All nodes whose votes count.
pub(super) fn voters_of(membership: &Membership) -> BTreeSet<u64> {
    membership.voters().into_iter().chain(membership.voters_outgoing()).collect()
}

impl Members {
    /// The members in sound blocks, as of an entry.
    pub(super) fn new(node: NodeId, in_log: (Membership, EntryIndex)) -> Self {
        let (talkers, voters, gone) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { node, in_log, reported: None, talkers, voters, gone }
    }

    /// The newest known membership, and its entry; empty if none is known.
    pub(super) fn newest(&self) -> &(Membership, EntryIndex) {
        self.reported.as_ref().filter(|(_, at)| *at > self.in_log.1).unwrap_or(&self.in_log)
    }

    /// A member of the newest membership that names it.
    pub(super) fn get(&self, node: NodeId) -> Option<&Member> {
        let reported = || self.reported.as_ref().and_then(|(reported, _)| reported.get(node));
        self.newest().0.get(node).or_else(|| self.in_log.0.get(node)).or_else(reported)
    }

    /// All possible members: those of the newest membership, and also the reported ones if the log's membership is
    /// newer, because that one need not be committed.
    pub(super) fn possible(&self) -> impl Iterator<Item = &Member> {
        let newest = &self.newest().0;
        let reported = self.reported.iter().flat_map(|(reported, _)| reported.members());
        newest.members().chain(reported.filter(|member| newest.get(member.node).is_none()))
    }

    /// The replicas to ask.
    pub(super) fn others(&self) -> Vec<NodeId> {
        let members = self.possible().map(|m| m.node);
        let others: BTreeSet<NodeId> = members.chain(self.talkers.iter().copied()).collect();
        others.into_iter().filter(|n| *n != self.node).collect()
    }

    /// Records that a node has sent something.
    ///
    /// # Errors
    /// The message has to be dropped.
    pub(super) fn record_sender(
        &mut self,
        node: NodeId,
        directory: DirectoryId,
    ) -> std::result::Result<(), Malformed> {
        match self.get(node) {
            Some(member) if member.directory.0 != 0 && member.directory != directory => {
                return Err("the sender's directory is not the one that the cluster knows");
            }
            Some(_) => {}
            // All members that this replica remembers may have left: a node unknown to it can be the first one to send.
            None if self.talkers.len() < MEMBERS_MAX => {
                self.talkers.insert(node);
            }
            None => return Err("the sender is no member"),
        }
        Ok(())
    }

    /// Receives the membership that another replica reports as of a committed entry. A replica that repairs its own log
    /// reports entry 0. Returns whether it is new.
    pub(super) fn record_membership(&mut self, from: NodeId, at: EntryIndex, membership: Membership) -> bool {
        if self.voters.get(&from).is_none_or(|(before, _)| *before <= at) {
            self.voters.insert(from, (at, voters_of(&membership)));
        }
        let before = self.reported.as_ref().map_or(EntryIndex(0), |(_, at)| *at);
        let is_news = at > before && membership.members().next().is_some();
        if is_news {
            self.reported = Some((membership, at));
        }
        is_news
    }

    /// Another replica has discarded its log up to this entry.
    pub(super) fn has_discarded(&mut self, from: NodeId, upto: EntryIndex) {
        let known = self.gone.entry(from).or_default();
        *known = upto.max(*known);
    }

    /// Whether all possible members have reported that they discarded this entry. Each of them also has to have
    /// reported its membership as of a committed entry, so that no member is left out; a replica that repairs its own
    /// log reports entry 0. Senders that are in no membership do not count, because a removed node answers no more.
    pub(super) fn is_gone_everywhere(&self, entry: EntryIndex) -> bool {
        let others: Vec<_> = self.possible().filter(|m| m.node != self.node).collect();
        let has_told = |m: &Member| self.voters.get(&m.node).is_some_and(|(at, _)| at.0 > 0);
        let has_not = |m: &&Member| has_told(m) && self.gone.get(&m.node).is_some_and(|upto| *upto >= entry);
        !others.is_empty() && others.iter().all(has_not)
    }

    /// The membership after the received entries of the gap. `before`: the membership before the gap, for entries that
    /// replace a superseded end; then every block after the gap can be superseded. None: a change counts only if it is
    /// later than those in sound blocks.
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

    /// The other one of two voters, if that one also knows no other voters, and no node has reported others since.
    /// `log`: the membership after the last entry of the log.
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
        let reported = self.reported.as_ref().is_none_or(|(reported, _)| voters_of(reported) == *voters);
        let is_other = reported && log()?.is_some_and(|log| voters_of(&log) == *voters);
        Ok(is_other.then_some(other))
    }
}
