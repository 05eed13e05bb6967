//! Flow control: heartbeats overtake entries, so that large entries on a slow line do not depose a leader. Then an
//! answer to a heartbeat no longer implies that everything sent before has arrived or is lost, as raft assumes. Raft
//! would send a large entry again with each heartbeat, while the first one is still in transit.
//!
//! Invariants:
//! - entries and snapshots keep their order, and so do all other messages among themselves;
//! - a heartbeat answer of a follower for which much data is still queued here does not cause raft to send more.
//!
//! Must not know: how messages are sent.

use crate::replica::raft::Replica;
use crate::types::NodeId;
use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

/// The bytes that may wait for the network before a heartbeat answer causes no sends. Up to this much is sent twice
/// needlessly.
const BACKLOG_BYTES: usize = 256 << 10;

impl Replica {
    /// Gives raft a message that passed all checks. Raft itself refuses stale messages and those of unknown nodes.
    pub(crate) fn step_at_pace(&mut self, message: Message) {
        let from = message.from;
        let kept = self.is_answer_of_one_who_is_behind(&message).then(|| {
            self.paced += 1;
            let progress = self.raw.raft.mut_prs().get_mut(from)?;
            let kept = (progress.state, progress.paused);
            // Raft sends nothing to a follower with a snapshot in flight. All other effects of the answer stay.
            progress.state = ProgressState::Snapshot;
            Some(kept)
        });
        let _ = self.raw.step(message);
        if let Some(kept) = kept.flatten()
            && let Some(progress) = self.raw.raft.mut_prs().get_mut(from)
        {
            (progress.state, progress.paused) = kept;
        }
    }

    /// The number of heartbeat answers, of followers that lag behind, after which they were sent nothing.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn paced(&self) -> u64 {
        self.paced
    }

    /// Whether this answers this leader's heartbeat, from a follower for which much data is still queued here.
    fn is_answer_of_one_who_is_behind(&self, message: &Message) -> bool {
        !planted!(67)
            && message.get_msg_type() == MessageType::MsgHeartbeatResponse
            && self.is_leader()
            && message.term == self.raw.raft.term
            && self.cluster.transport.backlog(NodeId(message.from)) >= BACKLOG_BYTES
    }
}

/// Whether a message may overtake entries. The order to start an election must not: its receiver needs the entries
/// before it.
pub(crate) fn is_urgent(message: &Message) -> bool {
    !matches!(
        message.get_msg_type(),
        MessageType::MsgAppend | MessageType::MsgSnapshot | MessageType::MsgTimeoutNow
    )
}
