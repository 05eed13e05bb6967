//! Pace: heartbeats overtake entries, so that a large one on a slow line deposes nobody. What raft takes from an answer to
//! a heartbeat is then wrong: that all it sent before has come, or is lost. It would send a large entry again with each
//! heartbeat, beside the one that is on its way.
//!
//! Invariants:
//! - entries and snapshots keep their order, and so do all other messages among themselves;
//! - who still has much to be sent gets nothing more for having answered a heartbeat.
//!
//! Must not know: how messages travel.

use crate::replica::raft::Replica;
use crate::types::NodeId;
use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

/// So much may wait for the network before raft's answer to an answer is held back: what is sent twice without need.
const BACKLOG_BYTES: usize = 256 << 10;

impl Replica {
    /// Hands raft a message that passed all checks. Stale and foreign ones are raft's to refuse.
    pub(crate) fn step_at_pace(&mut self, message: Message) {
        let from = message.from;
        let kept = self.is_answer_of_one_who_is_behind(&message).then(|| {
            self.paced += 1;
            let progress = self.raw.raft.mut_prs().get_mut(from)?;
            let kept = (progress.state, progress.paused);
            // To whom a snapshot is on its way raft sends nothing: all else that an answer means is as it was.
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

    /// How many answers of those who are behind were given nothing more.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn paced(&self) -> u64 {
        self.paced
    }

    /// Whether this is an answer to this leader's heartbeat, from a follower to which much is still to be sent.
    fn is_answer_of_one_who_is_behind(&self, message: &Message) -> bool {
        !planted!(67)
            && message.get_msg_type() == MessageType::MsgHeartbeatResponse
            && self.is_leader()
            && message.term == self.raw.raft.term
            && self.cluster.transport.backlog(NodeId(message.from)) >= BACKLOG_BYTES
    }
}

/// Whether a message should not wait behind entries. Who is told to stand for election has to have got them before.
pub(crate) fn is_urgent(message: &Message) -> bool {
    !matches!(
        message.get_msg_type(),
        MessageType::MsgAppend | MessageType::MsgSnapshot | MessageType::MsgTimeoutNow
    )
}
