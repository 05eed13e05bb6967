//! Skipping: a new replica is not sent what is stored. It begins behind that, and reads it from the object store.
//!
//! ```text
//! leader                                     new replica, without any entry
//! ------                                     ------------------------------
//! entries ---------------------------------> can I read the object store?
//! entries, again --------------------------> yes: it drops them, or raft rejects them
//!                                  <-------- ReadsStored
//! the opening of the newest segment
//! that begins behind stored entries -------> jumps there
//! ```
//!
//! A replica says so only if it has reached the object store, and does not keep all records in its own files. An opening that is lost, or
//! refused, is sent up to three times; then the replica gets all entries, as it does if there is no such opening. The leader forgets what
//! a replica has said when that greets it: then it has started, perhaps without a store.
//!
//! Invariants:
//! - what is skipped is in objects that a committed entry says to be stored. So the replica has all entries of each object that is not
//!   stored, as all others that skipped none of these;
//! - no entry of an object is skipped that may have to be made again, nor a later one: the files of that replica could be the last copy.

use super::Replica;
use crate::options::Options;
use crate::record::batch::Malformed;
use crate::replica::wire::object_message::{encode_reads_stored, parse_reads_stored};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId, Term};
use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};
use std::time::Duration;

/// How long a new replica takes no entries because the object store does not answer, and how long a leader sends none because it does
/// not know which objects are damaged.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of skipping.
#[derive(Debug, Default)]
pub(super) struct Skipping {
    /// At a new replica: whether it can read the object store. None: it is not known.
    reads_store: Option<bool>,
    /// Until when the answer is awaited. None: it is not asked.
    asked_until: Option<Moment>,
    /// The leader, and its term, that know it.
    told: Option<(u64, u64)>,
    /// At a leader: until when it decides how far new replicas skip entries. None: no replica asks.
    decide_until: Option<Moment>,
}

/// Whether a replica with these options begins behind what is stored.
fn skips_stored(options: &Options) -> bool {
    let keeps_all =
        options.local_bytes.is_none() && options.local_age.is_none() && options.fill_bytes.is_none();
    options.vault.is_some() && !keeps_all
}

impl Replica {
    /// At a new replica: whether it waits to know whether it can read the object store.
    pub(crate) fn asks_for_store(&self) -> bool {
        let is_new = self.raw.raft.raft_log.last_index() == 0;
        is_new && self.skipping.asked_until.is_some() && self.skipping.reads_store.is_none()
    }

    /// Says whether it can.
    pub(crate) fn found_store(&mut self, is_there: bool) {
        self.skipping.reads_store = Some(is_there);
    }

    /// At a leader: whether a new replica waits to know how far it can skip entries. If so, whether it has waited for long.
    pub(crate) fn skip_is_wanted(&self, now: Moment) -> Option<bool> {
        self.skipping.decide_until.map(|until| until <= now)
    }

    /// Decides how far new replicas skip entries. None: not at all.
    pub(crate) fn decide_skip(&mut self, stored: Option<EntryIndex>) {
        self.skipping.decide_until = None;
        let stored = if planted!(155) { Some(self.sequencer.committed().raft) } else { stored };
        for node in self.raw.store().undecided() {
            match stored.filter(|_| self.is_leader()) {
                Some(stored) => self.raw.mut_store().skip(node, stored),
                None => self.raw.mut_store().send_all(node),
            }
            if !self.raw.store().has_opening_for(node) {
                self.send_all(node);
            }
        }
    }

    /// Whether raft does not get a message: this replica has no entry, and its leader is to leave out what is stored. It sends entries
    /// again.
    pub(super) fn awaits_opening(&mut self, message: &Message, now: Moment) -> bool {
        let is_new = self.raw.raft.raft_log.last_index() == 0;
        if message.get_msg_type() != MessageType::MsgAppend || !is_new || !skips_stored(&self.options) {
            return false;
        }
        match self.skipping.reads_store {
            None => now < *self.skipping.asked_until.get_or_insert(now.plus(STORE_TIMEOUT)),
            Some(false) => false,
            Some(true) => {
                let leader = (message.from, message.term);
                if self.skipping.told.replace(leader) == Some(leader) {
                    return false;
                }
                self.post(NodeId(message.from), encode_reads_stored(Term(message.term)));
                message.index == 0 // raft rejects entries behind others
            }
        }
    }

    pub(super) fn on_reads_stored(
        &mut self,
        from: NodeId,
        body: &[u8],
        now: Moment,
    ) -> Result<(), Malformed> {
        if parse_reads_stored(body)? == self.term() && self.is_leader() {
            self.request_opening(from, now);
        }
        Ok(())
    }

    /// Has raft send an opening to a replica that has no entry yet, and no entries from the first one on. Until it is decided which one,
    /// nothing is sent.
    fn request_opening(&mut self, to: NodeId, now: Moment) {
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0)
            && progress.matched == 0
            && progress.state != ProgressState::Snapshot
        {
            progress.pending_request_snapshot = 1;
            self.raw.mut_store().decide_skip(to);
            self.skipping.decide_until.get_or_insert(now.plus(STORE_TIMEOUT));
        }
    }

    /// Raft sends no further opening: one is on its way, has arrived, or there is none.
    pub(super) fn forget_opening(&mut self, to: NodeId) {
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0) {
            progress.pending_request_snapshot = 0;
        }
    }

    /// An opening was lost, or refused.
    pub(super) fn lost_opening(&mut self, to: NodeId, now: Moment) {
        if self.raw.mut_store().lost_opening(to) {
            self.request_opening(to, now);
        }
    }

    /// Has raft send entries after all where there is no opening.
    pub(super) fn give_up_openings(&mut self) {
        for node in self.raw.store().take_without_opening() {
            self.forget_opening(NodeId(node));
            self.raw.mut_store().send_all(NodeId(node));
        }
    }

    /// A replica has started, perhaps without an object store: it is sent all entries, until it says otherwise.
    pub(super) fn send_all(&mut self, to: NodeId) {
        self.forget_opening(to);
        self.raw.mut_store().send_all(to);
    }
}
