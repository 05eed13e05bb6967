//! Members: brings the members of a group in line with those of the default log, or with those of them on which the catalogue
//! places the group, and spreads the groups' leaders.
//!
//! Invariants:
//! - The members of a group change one at a time, by its leader, and only towards those members.
//! - A majority confirms the members of the default log, and the catalogue, before a member of a group changes.
//! - A learner is promoted only if it stores what it is sent (`storing.rs`), has room for more, and lacks little. A change of voters needs
//!   the new ones: one that stores nothing would keep it, and all later ones, from coming into force.
//! - A group is moved away from a server only once all others on which it is placed vote, and store what they are sent. `votes.rs` has when a
//!   member loses its vote.

use super::elsewhere::address_of;
use super::votes::{is_joining, loses_vote, promotion, stuck};
use super::{Groups, HOST_TIMEOUT, label};
use chiplog::cluster::{Change, Member, PeerStatus, ReplicaStatus};
use chiplog::{DirectoryId, Error, ErrorKind, Log, LogId, NodeId};
use chiplog_net::peer::GroupOn;
use std::cmp::Reverse;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The time limit of one change of members.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of a promotion: the groups are looked at one after the other, and this one is tried again.
const PROMOTE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long another voter has to be in contact and up to date before leadership is transferred to it.
const STEADY: Duration = Duration::from_secs(10);
/// Entries that a member may lack and still get a vote, or the leadership.
const LAG_MAX: u64 = 64;
/// After this time without a message from a member its server is asked whether it still has the member's directory.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// The time limit of its answer. It can take longer to make an empty replica; the next question finds that.
const LOST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a server that did not answer is not asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

impl Groups {
    /// Makes one change towards the members that the group is to have, if there is a difference. Returns whether it did.
    /// `servers`: the members of the default log.
    pub(super) fn follow_members(
        &self,
        group: u32,
        replica: &Log,
        default: &Log,
        servers: &[Member],
    ) -> chiplog::Result<bool> {
        let have = replica.status().replica;
        let own = have.node;
        if !servers.iter().any(|server| server.node == own) {
            // A server that left the cluster gives its groups away; their next leaders remove it. Its own replica of the
            // default log learns no more.
            let stays = |node| servers.iter().any(|server| server.node == node && server.is_voter());
            let Some(next) = successor(&have, stays) else {
                let what = "this server left the cluster and leads the group: it hears no voter of the group that stays";
                return Err(Error::new(ErrorKind::Unavailable, what));
            };
            replica.transfer_leader(next, HOST_TIMEOUT)?;
            return Ok(true);
        }
        let place = self.placed_on(group)?;
        let wanted = placed(servers, &place);
        if wanted.is_empty() {
            return Ok(false); // all of them have left: the catalogue will place it elsewhere
        }
        let lacks = |server: &Member| !have.members.iter().any(|m| m.node == server.node);
        if wanted.iter().any(lacks) {
            default.barrier(HOST_TIMEOUT)?; // a server that was removed from the cluster asks no other one for a replica
        }
        let changes = self.next_changes(group, replica, servers, &place, &have.members)?;
        match changes[..] {
            [] => return Ok(false),
            // This server leads, and is to run the group no more.
            [Change::Remove(node)] if node == own => return self.hand_over(group, replica, &wanted),
            _ => {}
        }
        // The members and the place can be old, and a server removed for that could never return: a majority confirms them.
        default.barrier(HOST_TIMEOUT)?;
        if let Some(logs) = self.inner.slot.named().filter(|_| group != super::SYSTEM) {
            logs.system().barrier(HOST_TIMEOUT)?;
        }
        if default.status().replica.members != servers || self.placed_on(group)? != place {
            return Ok(false); // the next look compares with the new ones
        }
        tracing::info!(group = %label(group), ?changes, "a group of named logs follows the members of the cluster");
        self.change(group, replica, servers, &changes)?;
        Ok(true)
    }

    /// Makes a change of a group's members, or several at once.
    fn change(
        &self,
        group: u32,
        replica: &Log,
        servers: &[Member],
        changes: &[Change],
    ) -> chiplog::Result<()> {
        match *changes {
            // The cluster removed the server, so its number is not mistyped, even if it runs and another member is silent.
            [Change::Remove(node)]
                if !servers.iter().any(|server| server.node == node)
                    && hears_most_without(&replica.status().replica, node) =>
            {
                replica.force_members(changes, CHANGE_TIMEOUT)
            }
            [Change::Promote(node), ..] => {
                let promoted = replica.change_members(changes, PROMOTE_TIMEOUT);
                // Any other failure is the leader's, or another voter's.
                let is_its = |error: &Error| {
                    matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported)
                };
                promoted.inspect_err(|error| self.refused(group, node, error, is_its(error)))
            }
            [Change::AddLearner { node, .. }] => {
                replica.change_members(changes, CHANGE_TIMEOUT)?;
                self.joins(node);
                Ok(())
            }
            _ => replica.change_members(changes, CHANGE_TIMEOUT),
        }
    }

    /// The servers on which the catalogue places a group. Empty: all.
    fn placed_on(&self, group: u32) -> chiplog::Result<Vec<NodeId>> {
        self.inner.slot.named().map_or(Ok(Vec::new()), |logs| logs.group_place(group))
    }

    /// A member that is still in the cluster, and on which the group is not placed any more. None: there is none, or a server
    /// that is to run the group does not vote yet, lacks too much, or does not store what it is sent.
    fn moves_away(&self, group: u32, replica: &Log, wanted: &[Member], members: &[Member]) -> Option<NodeId> {
        let have = replica.status().replica;
        let (own, voters) = (have.node, have.voters());
        let mut moved =
            members.iter().filter(|m| !m.is_leaving() && !wanted.iter().any(|s| s.node == m.node));
        let moved = moved.clone().find(|m| m.node != own).or_else(|| moved.next())?.node;
        let votes = |node| voters.contains(&node);
        let is_well = |server: &Member| server.node == own || self.stores(group, replica, server.node);
        let mut stay = wanted.iter().filter(|server| !server.is_leaving());
        stay.all(|server| votes(server.node) && is_well(server)).then_some(moved)
    }

    /// Transfers the leadership of a group to a server that is to run it, and can. Returns whether there is one.
    fn hand_over(&self, group: u32, replica: &Log, wanted: &[Member]) -> chiplog::Result<bool> {
        let is_wanted = |node| wanted.iter().any(|server| server.node == node);
        let Some(next) = self.able_successor(group, replica, is_wanted) else { return Ok(false) };
        replica.transfer_leader(next, HOST_TIMEOUT)?;
        Ok(true)
    }

    /// The next change of a group's members towards those that it is to have, or several that are made at once. `servers`: all of the
    /// cluster; `place`: those on which the group is placed.
    fn next_changes(
        &self,
        group: u32,
        replica: &Log,
        servers: &[Member],
        place: &[NodeId],
        members: &[Member],
    ) -> chiplog::Result<Vec<Change>> {
        // First: the clock of a vote runs also while other changes are made.
        let awaited = self.awaited(group, replica, servers, place, members);
        let peers = self.note_stored(group, replica);
        let is_heard = |node| peers.iter().any(|peer| peer.node == node && peer.active);
        let own = replica.status().replica.node;
        let (wanted, mut failed) = (placed(servers, place), None);
        for server in wanted.iter().filter(|server| !server.is_leaving()) {
            let node = server.node;
            match members.iter().find(|m| m.node == node) {
                None => match self.ask_to_host(server, group, replica.log_id(), HOST_TIMEOUT) {
                    Ok(directory) => {
                        let address = server.address.clone();
                        return Ok(vec![Change::AddLearner { node, directory, address }]);
                    }
                    Err(error) => failed = Some(error), // the others first
                },
                Some(m) if self.has_lost(group, replica, server, m) => {
                    tracing::warn!(group = %label(group), %node, "the directory of a member is lost: it gets a new one");
                    return Ok(vec![Change::Remove(node)]);
                }
                Some(m) if m.address != server.address => {
                    return Ok(vec![Change::SetAddress { node, address: server.address.clone() }]);
                }
                // Else it still has to receive what the others have.
                Some(m)
                    if server.is_voter()
                        && !m.is_voter()
                        && self.may_promote(group, node)
                        && self.stores(group, replica, node)
                        && self.has_room(group, replica, server) =>
                {
                    let is_heard = |node| node == own || is_heard(node);
                    return Ok(promotion(node, servers, place, members, is_heard));
                }
                Some(_) => {}
            }
        }
        let refusal = self.refusal(group);
        match (loses_vote(servers, place, members, &awaited), failed.or(refusal)) {
            (Some(change), _) => Ok(vec![change]),
            (None, Some(error)) => Err(error),
            (None, None) if is_joining(&awaited) => Ok(Vec::new()),
            (None, None) => match stuck(&awaited, members, is_heard) {
                Some(node) => {
                    let what = format!(
                        "node {node} answers, and has stored no more of the group for 30 s: its disk may be full"
                    );
                    Err(Error::new(ErrorKind::Unavailable, what))
                }
                None => {
                    let moved = self.moves_away(group, replica, &wanted, members);
                    Ok(moved.map(Change::Remove).into_iter().collect())
                }
            },
        }
    }

    /// Notes what the members of a group have, and returns their progress.
    fn note_stored(&self, group: u32, replica: &Log) -> Vec<PeerStatus> {
        let ReplicaStatus { last_entry, peers, .. } = replica.status().replica;
        let matched = peers.iter().map(|peer| (peer.node, peer.matched)).collect();
        self.inner.marks.lock().unwrap_or_else(PoisonError::into_inner).look(group, last_entry, &matched);
        peers
    }

    /// Whether a member is in contact, lacks little, and stores what it is sent.
    fn stores(&self, group: u32, replica: &Log, node: NodeId) -> bool {
        let keeps_up = || {
            let marks = self.inner.marks.lock().unwrap_or_else(PoisonError::into_inner);
            marks.stores(group, node)
        };
        self.is_ready(replica, node) && keeps_up()
    }

    /// Whether the server of a learner that stores what it is sent has room for more. If it has none, the learner is refused.
    fn has_room(&self, group: u32, replica: &Log, server: &Member) -> bool {
        let asking = self.ask_view(server, group, replica.log_id(), &[]);
        let node = server.node;
        match Handle::current().block_on(asking) {
            Ok(view) if !view.lacks_room => true,
            Ok(_) => {
                let what = format!("node {node} has no room for more of the group: it gets no vote");
                self.refused(group, node, &Error::new(ErrorKind::Full, what), true);
                false
            }
            Err(error) => {
                self.refused(group, node, &error, false); // asked again later
                false
            }
        }
    }

    /// How long the leader has heard nothing of a member, as far as it has looked.
    fn silence(&self, group: u32, replica: &Log, node: NodeId) -> Duration {
        let status = replica.status().replica;
        let is_heard =
            node == status.node || status.peers.iter().any(|peer| peer.node == node && peer.active);
        let mut silent = self.inner.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if is_heard {
            silent.remove(&(group, node));
            return Duration::ZERO;
        }
        silent.entry((group, node)).or_insert_with(Instant::now).elapsed()
    }

    /// Whether a silent member's server has another directory than the member's: the disk was replaced, or the directory
    /// removed. The server then has an empty replica. Asked now and then.
    fn has_lost(&self, group: u32, replica: &Log, server: &Member, member: &Member) -> bool {
        if self.silence(group, replica, member.node) < LOST_AFTER || self.is_unanswered(member.node) {
            return false; // a question that is not sent now is asked later, and not counted
        }
        {
            let mut asked = self.inner.asked_lost.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.get(&(group, member.node)).is_some_and(|at| at.elapsed() < LOST_AFTER) {
                return false;
            }
            asked.insert((group, member.node), Instant::now());
        }
        let there = self.ask_to_host(server, group, replica.log_id(), LOST_TIMEOUT);
        there.is_ok_and(|directory| directory != member.directory)
    }

    /// Whether a member is in contact and lacks little.
    fn is_ready(&self, replica: &Log, node: NodeId) -> bool {
        let peers = replica.status().replica.peers;
        peers.iter().any(|peer| peer.node == node && peer.active && peer.lag <= LAG_MAX)
    }

    /// Whether a server did not answer a moment ago: it is not asked then.
    fn is_unanswered(&self, node: NodeId) -> bool {
        let unanswered = self.inner.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.get(&node).is_some_and(|at| at.elapsed() < ASK_AGAIN)
    }

    fn ask_to_host(
        &self,
        server: &Member,
        group: u32,
        log: LogId,
        timeout: Duration,
    ) -> chiplog::Result<DirectoryId> {
        if self.is_unanswered(server.node) {
            let what = format!("node {} did not answer a moment ago", server.node);
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        let address = address_of(server)?;
        let on = GroupOn { node: server.node, address: &address.peer, group: group + 1, log };
        let begun = Instant::now();
        let answer = Handle::current().block_on(self.inner.transport.ask_to_host(on, timeout));
        let mut unanswered = self.inner.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        match &answer {
            // All groups would wait as long, one after the other.
            Err(_) if begun.elapsed() >= LOST_TIMEOUT => _ = unanswered.insert(server.node, Instant::now()),
            _ => _ = unanswered.remove(&server.node),
        }
        answer
    }

    /// Transfers the leadership of a group to the voter whose turn it is, once that has been able to lead for a while. One that gave it up
    /// because its disk was slow does not get it back for some time; one whose disk is full does not get it either.
    pub(super) fn even_leaders(&self, group: u32, replica: &Log) {
        let status = replica.status().replica;
        // While a group moves, one that is to run it leads: the others are asked last.
        let place = self.placed_on(group).unwrap_or_default();
        let stays = |node: &NodeId| place.is_empty() || place.contains(node);
        let voters: Vec<NodeId> = status.voters().into_iter().filter(stays).collect();
        let turn = self.placed_leader(group).filter(|node| voters.contains(node));
        let turn = turn.or_else(|| voters.get(group as usize % voters.len().max(1)).copied());
        let can_lead = |node| self.is_ready(replica, node);
        let next = turn.filter(|node| *node != status.node && can_lead(*node));
        let since = {
            let mut steady = self.inner.steady.lock().unwrap_or_else(PoisonError::into_inner);
            if next.is_none() {
                steady.remove(&group);
            }
            next.map(|_| *steady.entry(group).or_insert_with(Instant::now))
        };
        let (Some(next), Some(since)) = (next, since) else { return };
        if since.elapsed() < STEADY {
            return;
        }
        self.inner.steady.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        if self.has_bad_disk(group, replica, next) {
            tracing::debug!(group = %label(group), node = %next, "a server with a slow or full disk does not lead a group, although it is its turn");
            return;
        }
        match replica.transfer_leader(next, HOST_TIMEOUT) {
            Ok(()) => {
                tracing::info!(group = %label(group), to = %next, "another server leads a group of named logs: they are spread evenly")
            }
            Err(error) => {
                tracing::info!(group = %label(group), to = %next, %error, "leadership of a group was not transferred")
            }
        }
    }
}

/// The server that is to lead a group instead of this leader: of the voters that `may`, the one that has most, and of these the
/// first. None: the leader hears none. One that is not heard is never chosen: the leader takes no appends while it waits for it.
pub(super) fn successor(have: &ReplicaStatus, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let voters = have.voters();
    let can_lead = |peer: &&PeerStatus| peer.active && voters.contains(&peer.node) && may(peer.node);
    let most = have.peers.iter().filter(can_lead).max_by_key(|peer| (peer.matched, Reverse(peer.node)));
    most.map(|peer| peer.node)
}

/// Whether this leader hears most of the voters that are left without one member.
fn hears_most_without(have: &ReplicaStatus, gone: NodeId) -> bool {
    let is_heard = |node| node == have.node || have.peers.iter().any(|peer| peer.node == node && peer.active);
    let left: Vec<NodeId> = have.voters().into_iter().filter(|node| *node != gone).collect();
    2 * left.iter().filter(|node| is_heard(**node)).count() > left.len()
}

/// The servers on which a group is placed. `place` empty: all.
fn placed(servers: &[Member], place: &[NodeId]) -> Vec<Member> {
    servers.iter().filter(|server| place.is_empty() || place.contains(&server.node)).cloned().collect()
}
