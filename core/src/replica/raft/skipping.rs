//! Skipping: a new replica is not sent what is stored. It begins behind that, and reads it from the object store.
//!
//! ```text
//! leader                                     new replica
//! ------                                     -----------
//! entries behind its last one -------------> has none before them
//!                                  <-------- ReadsStored(0), and raft's rejection
//! the opening of the newest segment
//! that begins behind stored entries -------> jumps there
//! ```
//!
//! A replica says so only if it has an object store, and does not keep all records in its own files. The leader remembers it for each
//! replica until that greets it again: then it has started, perhaps without a store.
//!
//! Invariant: what is skipped is in objects that a committed entry says to be stored. So the replica has all entries of each object that
//! is not stored, as all others that skipped none of these.

use super::Replica;
use crate::options::Options;
use crate::record::batch::Malformed;
use crate::replica::wire::object_message::{encode_reads_stored, parse_reads_stored};
use crate::types::{EntryIndex, NodeId};
use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

/// Whether a replica with these options begins behind what is stored.
fn skips_stored(options: &Options) -> bool {
    let keeps_all =
        options.local_bytes.is_none() && options.local_age.is_none() && options.fill_bytes.is_none();
    options.vault.is_some() && !keeps_all
}

impl Replica {
    /// Before raft rejects entries because it lacks those before them: says that it needs nothing that is stored.
    pub(super) fn offer_to_skip(&mut self, message: &Message) {
        let rejects = message.get_msg_type() == MessageType::MsgAppendResponse && message.reject;
        if rejects && skips_stored(&self.options) {
            self.post(NodeId(message.to), encode_reads_stored(EntryIndex(message.reject_hint)));
        }
    }

    pub(super) fn on_reads_stored(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let last = parse_reads_stored(body)?;
        let committed = self.sequencer.committed();
        let stored = if planted!(155) { Some(committed.raft) } else { committed.objects.stored_upto() };
        self.raw.mut_store().skip(from, stored);
        if last == EntryIndex(0) {
            self.send_opening(from);
        }
        Ok(())
    }

    /// Has raft send an opening to a replica that has no entry yet, and no entries from the first one on.
    pub(super) fn send_opening(&mut self, to: NodeId) {
        if !self.is_leader() || self.raw.store().begin_of(to).is_none() {
            return;
        }
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0)
            && progress.matched == 0
            && progress.state != ProgressState::Snapshot
        {
            progress.pending_request_snapshot = 1;
        }
    }

    /// Has raft send entries after all where there is no opening to send: the replica has greeted, or the opening cannot be read.
    pub(super) fn give_up_openings(&mut self) {
        let awaited =
            self.raw.raft.prs().iter().filter(|(_, progress)| progress.pending_request_snapshot != 0);
        let nodes = awaited.map(|(node, _)| NodeId(*node));
        let none: Vec<NodeId> = nodes.filter(|node| self.raw.store().begin_of(*node).is_none()).collect();
        none.into_iter().for_each(|node| self.opening_sent(node));
    }

    /// An opening is on its way. Raft does not send another one unless it is lost.
    pub(super) fn opening_sent(&mut self, to: NodeId) {
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0) {
            progress.pending_request_snapshot = 0;
        }
    }
}
