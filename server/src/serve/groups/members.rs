//! Members: brings the members of a group in line with those of the default log, and spreads the groups' leaders.
//!
//! Invariants:
//! - The members of a group change one at a time, by its leader, and only towards those of the default log.
//! - A majority confirms the members of the default log before a member of a group changes.
//! - A learner votes only once it lacks little of what the leader has.

use super::{Groups, HOST_TIMEOUT, label};
use chiplog::cluster::{Change, Member};
use chiplog::{DirectoryId, Error, ErrorKind, Log, LogId, NodeId};
use chiplog_net::wire::address::Address;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The time limit of one change of members.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long another voter has to be in contact and up to date before leadership is transferred to it.
const STEADY: Duration = Duration::from_secs(10);
/// Entries that a member may lack and still get a vote, or the leadership.
const LAG_MAX: u64 = 64;

impl Groups {
    /// Makes one change towards the members of the default log, if there is a difference. Returns whether it did.
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
            let stays = |m: &&Member| servers.iter().any(|s| s.node == m.node && s.is_voter());
            if let Some(next) = have.members.iter().find(stays) {
                replica.transfer_leader(next.node, HOST_TIMEOUT)?;
            }
            return Ok(true);
        }
        let Some(change) = self.next_change(group, replica, servers, &have.members)? else {
            return Ok(false);
        };
        // The members here can be old, and a server removed for that could never return: a majority confirms them.
        default.barrier(HOST_TIMEOUT)?;
        if default.status().replica.members != servers {
            return Ok(false); // the next look compares with the new ones
        }
        tracing::info!(group = %label(group), ?change, "a group of named logs follows the members of the cluster");
        replica.change_members(&[change], CHANGE_TIMEOUT)?;
        Ok(true)
    }

    /// The next change of a group's members.
    fn next_change(
        &self,
        group: u32,
        replica: &Log,
        servers: &[Member],
        members: &[Member],
    ) -> chiplog::Result<Option<Change>> {
        let mut failed = None;
        for server in servers.iter().filter(|server| !server.is_leaving()) {
            let node = server.node;
            match members.iter().find(|m| m.node == node) {
                None => match self.ask_to_host(server, group, replica.log_id()) {
                    Ok(directory) => {
                        let address = server.address.clone();
                        return Ok(Some(Change::AddLearner { node, directory, address }));
                    }
                    Err(error) => failed = Some(error), // the others first
                },
                Some(m) if m.address != server.address => {
                    return Ok(Some(Change::SetAddress { node, address: server.address.clone() }));
                }
                Some(m) if server.is_voter() && !m.is_voter() => {
                    if self.is_ready(replica, node) {
                        return Ok(Some(Change::Promote(node)));
                    } // else it still has to receive what the others have
                }
                Some(m) if !server.is_voter() && m.is_voter() => return Ok(Some(Change::Demote(node))),
                Some(_) => {}
            }
        }
        let gone = members.iter().find(|m| !servers.iter().any(|server| server.node == m.node));
        match (gone, failed) {
            (Some(gone), _) => Ok(Some(Change::Remove(gone.node))),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// Whether a member is in contact and lacks little.
    fn is_ready(&self, replica: &Log, node: NodeId) -> bool {
        let peers = replica.status().replica.peers;
        peers.iter().any(|peer| peer.node == node && peer.active && peer.lag <= LAG_MAX)
    }

    fn ask_to_host(&self, server: &Member, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
        let address: Address = server.address.parse().map_err(|e| {
            Error::new(ErrorKind::InvalidArgument, format!("the address of node {}: {e}", server.node))
        })?;
        let asking =
            self.inner.transport.ask_to_host(server.node, &address.peer, group + 1, log, HOST_TIMEOUT);
        Handle::current().block_on(asking)
    }

    /// Transfers the leadership of a group to the voter whose turn it is, once that has been able to lead for a while.
    pub(super) fn even_leaders(&self, group: u32, replica: &Log) {
        let status = replica.status().replica;
        let voters: Vec<NodeId> =
            status.members.iter().filter(|m| m.is_voter() && !m.is_leaving()).map(|m| m.node).collect();
        let turn = voters.get(group as usize % voters.len().max(1)).copied();
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
