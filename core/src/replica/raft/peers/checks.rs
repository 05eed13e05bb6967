//! Checks: verifies what raft would assert of a message, before raft gets it.

use crate::cluster::membership::Membership;
use crate::record::batch::{Malformed, u64_at};
use crate::replica::raft::Replica;
use crate::replica::state::sequencer::{Owner, Sequencer};
use crate::replica::wire::raft_message;
use crate::store::format::block::{BlockHeader, Kind};
use crate::types::{EntryIndex, Index, Term, Timestamp};
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType, Snapshot};

/// No log is this long. Arithmetic on positions in a message cannot overflow below it.
const POSITION_MAX: u64 = u64::MAX >> 1;

/// The bytes before the opening in a snapshot.
const SNAPSHOT_HEAD_BYTES: usize = 16;

impl Replica {
    /// Checks what raft would assert, and refuses messages that only this process may create.
    pub(crate) fn check_message(&mut self, message: &Message) -> Result<(), Malformed> {
        let log = &self.raw.raft.raft_log;
        if message.index > POSITION_MAX || message.commit > POSITION_MAX || message.reject_hint > POSITION_MAX
        {
            return Err("message has an index beyond any log");
        }
        match message.get_msg_type() {
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
            | MessageType::MsgTransferLeader
            | MessageType::MsgPropose => Err("message that only this node may create"),
            MessageType::MsgHeartbeat
                if message.commit > log.last_index() && message.term >= self.raw.raft.term =>
            {
                // A leader sends a follower only commit indexes that this follower acknowledged to it.
                self.leave(
                    "this replica acknowledged entries to the leader that are not on its disk: the disk was set back to an older state",
                );
                Err("the leader has acknowledgements beyond this log's end")
            }
            MessageType::MsgAppend => {
                let begins = log.term(log.first_index() - 1).unwrap_or_default();
                if message.index >= log.committed && message.log_term < begins {
                    return Err("entries follow one of an older term than this log begins with");
                }
                let mut next = message.index;
                for entry in message.get_entries() {
                    next += 1;
                    if entry.index != next {
                        return Err("entries are not consecutive");
                    }
                }
                self.check_history(message)
            }
            MessageType::MsgSnapshot => {
                let (header, opening) = parse_snapshot(message.get_snapshot())?;
                let me = Owner::Node(self.node());
                let mut there = Sequencer::new(me, Membership::default(), &self.options);
                there.jump(&header, &opening, &self.options)?;
                let state = raft_message::conf_state(&there.committed().membership);
                if *message.get_snapshot().get_metadata().get_conf_state() != state || state.voters.is_empty()
                {
                    return Err("snapshot's configuration differs from its opening block's");
                }
                Ok(())
            }
            MessageType::MsgTimeoutNow if log.persisted < log.last_index() => {
                Err("leadership transfer while the last entries are not durable")
            }
            MessageType::MsgReadIndex if message.get_entries().len() != 1 => {
                Err("read index request without a context")
            }
            _ => Ok(()),
        }
    }

    /// Checks the message against the committed entries. A leader has every committed entry. A leader with others in
    /// their place leads another history: a majority that elected it had lost entries that it had acknowledged. Raft
    /// does not compare entries below its commit index, and would answer that it has the leader's. This replica keeps
    /// its entries, and takes no part.
    fn check_history(&mut self, message: &Message) -> Result<(), Malformed> {
        let log = &self.raw.raft.raft_log;
        if message.term < self.raw.raft.term || message.index > log.committed {
            return Ok(());
        }
        let theirs = message.get_entries().iter().map(|e| (e.index, e.term));
        let theirs = std::iter::once((message.index, message.log_term)).chain(theirs);
        let oldest = log.first_index() - 1;
        let differs = |(index, term): &(u64, u64)| {
            (oldest..=log.committed).contains(index)
                && log.term(*index).is_ok_and(|ours| ours != 0 && ours != *term)
        };
        let Some((index, term)) = theirs.into_iter().find(differs) else { return Ok(()) };
        let ours = log.term(index).unwrap_or_default();
        let what = format!(
            "entry {index} is committed here in term {ours}, but node {}, the leader of term {}, has an entry of term {term} \
             in its place: some replica's disk was set back to an older state, and this replica may have the only copy of \
             acknowledged records from there on. Save them with `chiplog read` before this directory is removed",
            message.from, message.term
        );
        tracing::error!(node = %self.node(), "{what}");
        self.leave(&what);
        Err("the sender leads another history")
    }

    /// Adds this replica to a snapshot's membership as a learner. That membership can be older than this replica's
    /// addition to the cluster, and raft refuses a snapshot without itself. A learner changes no majority.
    pub(crate) fn admit_self(&self, message: &mut Message) {
        let node = self.node().0;
        let state = message.mut_snapshot().mut_metadata().mut_conf_state();
        let there = [&state.voters, &state.voters_outgoing, &state.learners, &state.learners_next];
        if !there.iter().any(|part| part.contains(&node)) {
            state.learners.push(node);
        }
    }
}

/// Decodes a positions-only snapshot: the opening block of a segment of the sender, of its oldest one unless more is stored.
pub(crate) fn parse_snapshot(snapshot: &Snapshot) -> Result<(BlockHeader, Bytes), Malformed> {
    let data = &snapshot.data;
    if data.len() < SNAPSHOT_HEAD_BYTES {
        return Err("snapshot is cut off");
    }
    let opening = data.slice(SNAPSHOT_HEAD_BYTES..);
    let header = BlockHeader::without_records(
        Kind::Opening,
        (EntryIndex(snapshot.get_metadata().index), Term(snapshot.get_metadata().term)),
        Index(u64_at(data, 0)),
        Timestamp(u64_at(data, 8)),
        &opening,
    );
    Ok((header, opening))
}

/// Whether a message is a pre-vote request or its answer: neither is binding.
pub(crate) fn is_aside(message: &Message) -> bool {
    matches!(message.get_msg_type(), MessageType::MsgRequestPreVote | MessageType::MsgRequestPreVoteResponse)
}

/// Whether a message requests a vote.
pub(crate) fn is_candidates(message: &Message) -> bool {
    matches!(message.get_msg_type(), MessageType::MsgRequestVote | MessageType::MsgRequestPreVote)
}
