//! Transfer requests: leadership for a node that a program names, or for any voter when this leader's disk is slow.
//!
//! Raft may ignore a transfer, so it has a timeout. It is answered when the other node leads.

use super::Replica;
use crate::error::{Error, ErrorKind};
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{Index, NodeId};

impl Replica {
    pub(in crate::replica::raft) fn transfer(&mut self, to: NodeId, until: Moment, completer: Completer) {
        let refuse = |completer: Completer, kind, what: String| {
            completer.answer(Outcome::Failed(Error::new(kind, what)));
        };
        if let Some(refusal) = self.refusal() {
            return completer.answer(Outcome::Failed(refusal));
        }
        if to == self.node() {
            return self.requests.done.push((completer, Outcome::Placed { first: Index(0) }));
        }
        if !self.membership.get(to).is_some_and(|m| m.is_voter() && !m.is_leaving()) {
            return refuse(
                completer,
                ErrorKind::Membership,
                format!("node {to} is no voter, so it cannot lead"),
            );
        }
        self.raw.transfer_leader(to.0);
        if let Some((_, _, earlier)) = self.requests.transfer.replace((to, until, completer)) {
            refuse(
                earlier,
                ErrorKind::Unavailable,
                format!("a later request transfers leadership to node {to}"),
            );
        }
    }

    /// Transfers leadership to another voter. No caller waits for it.
    pub(crate) fn transfer_from_slow_disk(&mut self) {
        if let Some(successor) = self.successor() {
            tracing::warn!(node = %self.node(), to = %successor, "transfers leadership: its disk is slow");
            self.raw.transfer_leader(successor.0);
        }
    }

    /// Answers a transfer once another node leads or its time is up.
    pub(in crate::replica::raft) fn answer_transfer(&mut self, now: Moment) {
        let leader = self.leader().filter(|l| *l != self.node());
        let over = |(_, until, _): &(NodeId, Moment, Completer)| leader.is_some() || *until <= now;
        if !self.requests.transfer.as_ref().is_some_and(over) {
            if let Some((to, ..)) = &self.requests.transfer
                && self.is_leader()
                && self.raw.raft.lead_transferee.is_none()
                && self.raw.raft.prs().get(to.0).is_some_and(|p| p.recent_active)
            {
                // The message was lost, or arrived before the other node was ready for it. Raft gives up after a while.
                // A leader takes no appends during a transfer, so it does not retry for a node that it does not hear.
                self.raw.transfer_leader(to.0);
            }
            return;
        }
        let Some((to, _, completer)) = self.requests.transfer.take() else { return };
        let outcome = match leader {
            Some(leader) if leader == to => Outcome::Placed { first: Index(0) },
            Some(leader) => {
                let what = format!("node {leader} leads now, not node {to}");
                Outcome::Failed(Error::new(ErrorKind::Unavailable, what))
            }
            None => {
                let what = format!("node {to} did not become leader in time");
                Outcome::Failed(Error::new(ErrorKind::Timeout, what))
            }
        };
        self.requests.done.push((completer, outcome));
    }
}
