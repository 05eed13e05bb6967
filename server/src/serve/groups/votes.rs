//! Votes: which member of a group loses its vote, and how long that waits for the vote of the server in its place.
//!
//! Invariant: no member loses its vote while the group awaits another one, up to [`JOIN_PATIENCE`] since nothing was heard of
//! that. It is awaited from a server that is to run the group and does not vote in it, and in place of one on which the group is placed
//! and that does not vote in the cluster any more: the catalogue names another one in a moment.

use super::Groups;
use chiplog::cluster::{Change, Member};
use chiplog::{Log, NodeId};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long a vote that is awaited keeps the others from being taken away while nothing is heard of its server.
pub(super) const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// The votes that a group awaits, and how long nothing has been heard of each server.
pub(super) type Awaited = BTreeMap<NodeId, Duration>;

impl Groups {
    /// The votes that a group awaits, as far as this server, its leader, has looked.
    pub(super) fn awaited(
        &self,
        group: u32,
        replica: &Log,
        servers: &[Member],
        place: &[NodeId],
        members: &[Member],
    ) -> Awaited {
        let peers = replica.status().replica.peers;
        let is_heard = |node| peers.iter().any(|peer| peer.node == node && peer.active);
        let copies = |node| votes(servers, node) && !votes(members, node) && is_heard(node);
        let awaited = awaited(servers, place, members);
        let mut since = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|(of, node), _| *of != group || awaited.contains(node) && !copies(*node));
        let mut waited = |node| match copies(node) {
            true => Duration::ZERO,
            false => since.entry((group, node)).or_insert_with(Instant::now).elapsed(),
        };
        awaited.into_iter().map(|node| (node, waited(node))).collect()
    }

    /// Notes that a server has made a replica of a group: it can, and its silence counts from now on. It makes one at a time, so the
    /// clocks of the other groups start over.
    pub(super) fn joins(&self, node: NodeId) {
        let mut since = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|(_, of), _| *of != node);
    }

    /// The servers that are to run a group which this server leads, and have failed for long to host a replica.
    pub(super) fn unhosted(&self, group: u32, members: &[NodeId]) -> Vec<NodeId> {
        let since = self.inner.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = |((of, node), at): (&(u32, NodeId), &Instant)| {
            (*of == group && !members.contains(node) && at.elapsed() >= JOIN_PATIENCE).then_some(*node)
        };
        since.iter().filter_map(fails).collect()
    }
}

/// Whether a server votes, of the cluster or of a group.
fn votes(members: &[Member], node: NodeId) -> bool {
    members.iter().any(|member| member.node == node && member.is_voter() && !member.is_leaving())
}

/// Whether the group is placed on a server. `place` empty: on all.
fn is_placed(place: &[NodeId], node: NodeId) -> bool {
    place.is_empty() || place.contains(&node)
}

/// The servers whose votes, or the votes in place of which, a group awaits. `servers`: the members of the default log; `place`: the servers
/// on which the catalogue places the group; `members`: those that it has.
fn awaited(servers: &[Member], place: &[NodeId], members: &[Member]) -> Vec<NodeId> {
    let replaced = place.iter().copied().filter(|node| !votes(servers, *node));
    let joins = |node: &NodeId| is_placed(place, *node) && votes(servers, *node) && !votes(members, *node);
    replaced.chain(servers.iter().map(|server| server.node).filter(joins)).collect()
}

/// Whether a group may not lose a vote yet.
pub(super) fn is_joining(awaited: &Awaited) -> bool {
    awaited.values().any(|waited| *waited < JOIN_PATIENCE)
}

/// The next member that is removed, as its server left the cluster, or demoted, as its server lost its vote there. None: there
/// is none, or the group awaits a vote.
pub(super) fn loses_vote(
    servers: &[Member],
    place: &[NodeId],
    members: &[Member],
    awaited: &Awaited,
) -> Option<Change> {
    if is_joining(awaited) {
        return None;
    }
    let gone = members.iter().find(|m| !servers.iter().any(|server| server.node == m.node));
    let is_learner = |node| servers.iter().any(|server| server.node == node && !server.is_voter());
    let demoted = members.iter().find(|m| m.is_voter() && is_placed(place, m.node) && is_learner(m.node));
    gone.map(|m| Change::Remove(m.node)).or_else(|| demoted.map(|m| Change::Demote(m.node)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::DirectoryId;

    fn members(voters: &[u64], learners: &[u64]) -> Vec<Member> {
        let of = |node: &u64| (NodeId(*node), DirectoryId((*node).into()), "a:1");
        let voter = |(node, directory, address)| Member::voter(node, directory, address);
        let learner = |(node, directory, address)| Member::learner(node, directory, address);
        voters.iter().map(of).map(voter).chain(learners.iter().map(of).map(learner)).collect()
    }

    /// The decision if nothing has been heard for `waited` of each server whose vote is awaited.
    fn decided(servers: &[Member], place: &[u64], have: &[Member], waited: Duration) -> Option<Change> {
        let place: Vec<NodeId> = place.iter().map(|node| NodeId(*node)).collect();
        let awaited = awaited(servers, &place, have).into_iter().map(|node| (node, waited)).collect();
        loses_vote(servers, &place, have, &awaited)
    }

    /// A group of three that lost a server had two voters while another one copied its files.
    #[test]
    fn vote_counts_until_that_of_the_server_in_its_place_does() {
        let (soon, late) = (Duration::ZERO, JOIN_PATIENCE);
        let (removed, demoted) = (Some(Change::Remove(NodeId(3))), Some(Change::Demote(NodeId(3))));
        let have = members(&[1, 2, 3], &[]);
        // Server 3 has left, or lost its vote; the catalogue does not name another one yet.
        let (left, lost) = (members(&[1, 2, 4], &[]), members(&[1, 2, 4], &[3]));
        assert_eq!(decided(&left, &[1, 2, 3], &have, soon), None);
        assert_eq!(decided(&left, &[1, 2, 3], &have, late), removed);
        assert_eq!(decided(&lost, &[1, 2, 3], &have, soon), None);
        assert_eq!(decided(&lost, &[1, 2, 3], &have, late), demoted);
        // It names server 4, which could not make a replica yet.
        assert_eq!(decided(&left, &[1, 2, 4], &have, soon), None);
        assert_eq!(decided(&left, &[1, 2, 4], &have, late), removed);
        // That copies, and then votes.
        assert_eq!(decided(&left, &[1, 2, 4], &members(&[1, 2, 3], &[4]), soon), None);
        assert_eq!(decided(&left, &[1, 2, 4], &members(&[1, 2, 3, 4], &[]), soon), removed);
        // A group that moved away from a server is not demoted there: it is removed once all others are up to date.
        assert_eq!(decided(&lost, &[1, 2, 4], &members(&[1, 2, 3, 4], &[]), late), None);
        // All servers run the group, or no other one is left.
        assert_eq!(decided(&members(&[1, 2], &[3]), &[], &have, soon), demoted);
        assert_eq!(decided(&members(&[1, 2], &[]), &[1, 2], &have, soon), removed);
        assert_eq!(decided(&members(&[1, 2, 3], &[]), &[], &have, soon), None);
    }
}
