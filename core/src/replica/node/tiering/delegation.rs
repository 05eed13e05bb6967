//! Delegation: the leader asks another replica to store an object: the one with the lowest number that has all of it, is heard, and
//! did not fail lately. Without one it does it itself.
//!
//! The replica that is asked makes the object from its own files. It may be slow, or answer after another one was asked: the
//! bytes are the same. The leader looks whether the object is there before it says so in the log. A request or an answer may be
//! lost, so the leader asks again, and a replica ignores a request whose job it runs.

use super::super::Node;
use super::super::publish::Kept;
use super::jobs::Job;
use super::storing::Claim;
use crate::error::Result;
use crate::replica::raft::object_service::ObjectAnswer;
use crate::store::format::objects::StoredObject;
use crate::store::object_file::Stretch;
use crate::sync::clock::Moment;
use crate::types::NodeId;
use crate::vault::Vault;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a replica has to store an object.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How soon the replica is asked again, in case the request or its answer was lost, or another one if it is not heard any more.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long a replica that could not store an object is not asked again.
const REST: Duration = Duration::from_secs(300);

/// Requests of this replica, and to it.
#[derive(Debug, Default)]
pub(super) struct Delegation {
    /// At the leader: the request whose answer is awaited.
    asked: Option<Asked>,
    /// Replicas that are not asked before this time.
    resting: BTreeMap<NodeId, Moment>,
    /// At another replica: who asks for which object.
    request: Option<(NodeId, u64)>,
    /// The request whose job is running. Not longer than the job: the next one may be this replica's own, as a leader.
    running: Option<(NodeId, u64)>,
}

/// A request of the leader.
#[derive(Clone, Copy, Debug)]
struct Asked {
    node: NodeId,
    number: u64,
    /// When the replica is asked again.
    again: Moment,
    /// Until when it can answer.
    until: Moment,
}

impl Delegation {
    /// Whether no answer is awaited.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    /// Whether the leader waits for this replica to store an object.
    pub(super) fn is_wanted(&self, number: u64) -> bool {
        self.request.is_some_and(|(_, wanted)| wanted == number)
    }

    /// Forgets the requests of a leader.
    pub(super) fn forget(&mut self) {
        self.asked = None;
        self.resting.clear();
    }

    /// Asks a replica for nothing for a while.
    pub(super) fn rest(&mut self, node: NodeId, now: Moment) {
        self.resting.insert(node, now.plus(REST));
    }

    /// When the replica that was asked is asked again, or another one.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.asked.map(|asked| asked.again)
    }

    /// A job has ended, or did not start. Returns the request that it was run for, if it was for one: the replica and the object.
    pub(super) fn end_job(&mut self) -> Option<(NodeId, u64)> {
        self.running.take()
    }
}

impl Node {
    /// At the leader: whether this replica stores the object itself. If another one can, it is asked.
    pub(super) fn is_stored_here(&mut self, stretch: &Stretch, now: Moment) -> bool {
        let delegation = &mut self.tiering.delegation;
        let asked = delegation.asked.filter(|asked| asked.number == stretch.number);
        if asked.is_some_and(|asked| now < asked.again) {
            return false;
        }
        if let Some(Asked { node, .. }) = asked.filter(|asked| asked.until <= now) {
            delegation.rest(node, now);
        }
        delegation.asked = None;
        delegation.resting.retain(|_, until| now < *until);
        let peers = self.replica.peer_statuses(now);
        let able = peers.into_iter().filter(|peer| peer.active && peer.matched >= stretch.end.raft);
        let able =
            able.map(|peer| peer.node).filter(|node| !self.tiering.delegation.resting.contains_key(node));
        let able: Vec<_> = able.collect();
        let again = asked.filter(|asked| able.contains(&asked.node));
        let until = again.map_or(now.plus(ANSWER_TIMEOUT), |asked| asked.until);
        let Some(node) = again.map(|asked| asked.node).or(able.into_iter().min()) else { return true };
        let (number, again) = (stretch.number, now.plus(ASK_AGAIN));
        self.tiering.delegation.asked = Some(Asked { node, number, again, until });
        self.replica.request_object(node, number);
        self.send();
        false
    }

    /// At the leader: takes the answer of the replica that was asked.
    pub(super) fn take_answer(&mut self, now: Moment) {
        let Some(ObjectAnswer { from, number, stored }) = self.replica.take_object_answer() else { return };
        let delegation = &mut self.tiering.delegation;
        let Some(asked) = delegation.asked.filter(|asked| asked.number == number) else { return };
        if stored.is_some() || asked.node == from {
            delegation.asked = None;
        }
        match stored {
            // Perhaps of a replica that was asked before: the object is the same.
            Some(object) => {
                self.tiering.unreadable.has_put(number);
                self.tiering.claimed = Some(Claim { from, number, object, is_sound: false });
            }
            None => delegation.rest(from, now),
        }
    }

    /// Takes requests: the leader's, to store an object, and those of replicas that have found a stored object damaged. Without an
    /// object store the leader's is refused at once.
    pub(super) fn take_requests(&mut self, now: Moment) {
        while let Some((from, number)) = self.replica.take_object_request() {
            if number < self.replica.sequencer.committed().objects.next_to_show() {
                self.suspect_object(number, now);
            } else if self.replica.leader() == Some(from) {
                self.take_request(from, number);
            }
        }
        // Another one has stored it, or there is another leader.
        let (stored, leader) =
            (self.replica.sequencer.committed().objects.next_to_show(), self.replica.leader());
        self.tiering.delegation.request.take_if(|(from, wanted)| *wanted < stored || Some(*from) != leader);
    }

    fn take_request(&mut self, from: NodeId, number: u64) {
        if self.tiering.vault.is_none() {
            self.replica.answer_object(from, number, None);
            return self.send();
        }
        let is_running = self.tiering.is_busy && self.tiering.delegation.running == Some((from, number));
        if !is_running {
            self.tiering.delegation.request = Some((from, number));
        }
    }

    /// The job that the leader has asked for, once this replica knows that the object was cut.
    pub(super) fn requested_job(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Option<Job> {
        let (from, wanted) = self.tiering.delegation.request?;
        let (number, begin, end) = self.replica.sequencer.committed().objects.next_to_store()?;
        if number != wanted {
            return None;
        }
        self.tiering.delegation.request = None;
        self.tiering.delegation.running = Some((from, number));
        let stretch = Stretch { log: self.tiering.log, number, begin, end };
        Some(self.store_job(vault.clone(), stretch, now))
    }

    /// Tells the leader what became of its request.
    pub(super) fn answer(
        &mut self,
        request: Option<(NodeId, u64)>,
        number: u64,
        result: Result<StoredObject>,
    ) {
        let Some((to, _)) = request else { return };
        match &result {
            Ok(object) => {
                self.published.counters.stored_object(object.bytes.into());
                self.published.store_works(Kept::Objects);
            }
            Err(error) => {
                self.published.store_fails(Kept::Objects, error, self.options.clock.now());
                let path = self.tiering.path.display();
                tracing::warn!(%path, number, %error, "an object cannot be stored; another replica does it");
            }
        }
        self.replica.answer_object(to, number, result.ok());
        self.send();
    }
}
