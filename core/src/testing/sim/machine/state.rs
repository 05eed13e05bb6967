//! The state of a simulated machine, as the checks compare it: positions, term and vote, membership, what the blocks lead to.
//!
//! Must not know: hosts, clients, what the state should be.

use super::Machine;
use crate::cluster::membership::Membership;
use crate::cluster::options::Role;
use crate::error::Result;
use crate::options::log_options::LogOptions;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::object_table::ObjectTable;
use crate::testing::sim::contents::LogSummaries;
use crate::testing::sim::kept::{Kept, Seal};
use crate::testing::sim::readers::range_of;
use crate::types::{EntryIndex, Index, NodeId, Term, Timestamp};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The kinds of room that a process lacks, and the work that it holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::testing::sim) struct Room {
    /// Appends wait for a file that is being prepared.
    pub(in crate::testing::sim) awaits: bool,
    /// Messages of the leader wait for a file that is being prepared.
    pub(in crate::testing::sim) held: bool,
    /// There was no room for the leader's last entries.
    pub(in crate::testing::sim) short: bool,
    /// There is no room for a term, a vote or a change.
    pub(in crate::testing::sim) silent: bool,
    /// How many answers of lagging followers were not followed by more entries.
    pub(in crate::testing::sim) paced: u64,
}

/// A summary of a machine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::testing::sim) struct MachineSummary {
    pub(in crate::testing::sim) role: Role,
    pub(in crate::testing::sim) term: Term,
    pub(in crate::testing::sim) leader: Option<NodeId>,
    pub(in crate::testing::sim) first: Index,
    pub(in crate::testing::sim) committed: Index,
    pub(in crate::testing::sim) committed_raft: EntryIndex,
    pub(in crate::testing::sim) last_raft: EntryIndex,
    /// The last durable entry.
    pub(in crate::testing::sim) durable_raft: EntryIndex,
    /// The entry before the first one it has.
    pub(in crate::testing::sim) base_raft: EntryIndex,
    /// The last record in the files, synced or not.
    pub(in crate::testing::sim) written: Index,
    /// The vote that raft has given in this term; 0: none.
    pub(in crate::testing::sim) vote: u64,
    /// Term and vote in the next block that is written.
    pub(in crate::testing::sim) says: (Term, u64),
}

/// The state that the blocks up to an entry lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::testing::sim) struct ReplicatedState {
    /// The last entry, and its term.
    pub(in crate::testing::sim) end: (EntryIndex, Term),
    /// The record after it.
    pub(in crate::testing::sim) next: Index,
    /// A digest of the sessions that have not expired.
    pub(in crate::testing::sim) sessions: u64,
    /// A digest of its membership.
    pub(in crate::testing::sim) members: u64,
    /// A digest of its table of named logs.
    pub(in crate::testing::sim) logs: u64,
    /// A digest of its objects.
    pub(in crate::testing::sim) objects: u64,
    /// The options that are set for the log.
    pub(in crate::testing::sim) options: LogOptions,
    /// The log's time.
    pub(in crate::testing::sim) time: Timestamp,
}

/// The state that the committed blocks lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::testing::sim) struct Settled {
    pub(in crate::testing::sim) raft: EntryIndex,
    pub(in crate::testing::sim) next: Index,
    pub(in crate::testing::sim) first: Index,
    pub(in crate::testing::sim) members: u64,
    pub(in crate::testing::sim) logs: LogSummaries,
    /// The same, as readers see them.
    pub(in crate::testing::sim) published_logs: LogSummaries,
    pub(in crate::testing::sim) options: LogOptions,
    pub(in crate::testing::sim) has_objects: bool,
    /// The entry before the first one in the files, and the first record that they can hold.
    pub(in crate::testing::sim) base: (EntryIndex, Index),
}

impl Machine {
    /// The kinds of room that it lacks, and the work that it holds back.
    pub(in crate::testing::sim) fn room(&self) -> Room {
        let node = &self.lock().node;
        Room {
            awaits: node.awaits_file(),
            held: node.replica.holds_messages(),
            short: node.replica.is_short(),
            silent: node.replica.is_held().is_some(),
            paced: node.replica.paced(),
        }
    }

    /// Whether the log is poisoned.
    pub(in crate::testing::sim) fn is_poisoned(&self) -> bool {
        self.lock().node.published.poison.get().is_some()
    }

    /// A summary of its state.
    pub(in crate::testing::sim) fn summary(&self) -> MachineSummary {
        let guarded = self.lock();
        let (replica, writer) = (&guarded.node.replica, &guarded.node.writer);
        let (first, committed) = range_of(self.readers.group());
        MachineSummary {
            role: replica.role(),
            term: replica.term(),
            leader: replica.leader(),
            first,
            committed,
            committed_raft: replica.sequencer.committed().raft.min(writer.written().end.raft),
            last_raft: replica.sequencer.end().raft,
            durable_raft: writer.synced().end.raft,
            base_raft: writer.archive.first().raft,
            written: writer.written().end.next.previous(),
            vote: replica.vote(),
            says: {
                let state = replica.sequencer.hard_state();
                (state.term, state.vote)
            },
        }
    }

    /// The state that the blocks so far lead to, committed or not.
    pub(in crate::testing::sim) fn replicated_state(&self) -> ReplicatedState {
        let guarded = self.lock();
        let sequencer = &guarded.node.replica.sequencer;
        let (end, time) = (sequencer.end(), sequencer.last_timestamp());
        ReplicatedState {
            end: (end.raft, end.term),
            next: end.next,
            sessions: sequencer.sessions().digest(time),
            members: digest_of(sequencer.membership_at_end()),
            logs: digest_of_logs(sequencer.logs()),
            objects: digest_of_objects(sequencer.objects()),
            options: sequencer.options_at_end(),
            time,
        }
    }

    /// The state that the committed blocks lead to.
    pub(in crate::testing::sim) fn settled(&self) -> Settled {
        let guarded = self.lock();
        let committed = guarded.node.replica.sequencer.committed();
        Settled {
            raft: committed.raft,
            next: committed.next,
            first: committed.first,
            members: digest_of(&committed.membership),
            logs: summaries(&committed.logs),
            published_logs: self.readers.published(),
            options: committed.options,
            has_objects: committed.objects.has_begun(),
            base: (guarded.node.writer.archive.first().raft, guarded.node.writer.archive.first().next),
        }
    }

    /// The committed membership, and the entry that changed it last, as far as this process has seen them committed.
    pub(in crate::testing::sim) fn committed_membership(&self) -> (Membership, EntryIndex) {
        let guarded = self.lock();
        let committed = guarded.node.replica.sequencer.committed();
        (committed.membership.clone(), committed.changed)
    }

    /// Whether a durable block says that the last change of membership is committed.
    pub(in crate::testing::sim) fn change_is_durable(&self) -> bool {
        let guarded = self.lock();
        guarded.node.writer.synced().commit >= guarded.node.replica.sequencer.committed().changed
    }

    /// How many changes of membership in the log are not known to be committed.
    pub(in crate::testing::sim) fn changes_in_doubt(&self) -> usize {
        self.lock().node.replica.sequencer.changes_in_doubt()
    }

    /// Whether the other replicas have introduced themselves to this process.
    pub(in crate::testing::sim) fn is_introduced(&self) -> bool {
        self.lock().node.replica.may_vote()
    }

    /// How many committed changes wait to come into force.
    pub(in crate::testing::sim) fn changes_not_in_force(&self) -> usize {
        self.lock().node.replica.changes_not_in_force()
    }

    /// The state of the disk after a sync that begins now.
    ///
    /// # Errors
    /// An entry that is not known to be committed cannot be read.
    pub(in crate::testing::sim) fn writes(&self) -> Result<Kept> {
        let summary = self.summary();
        let guarded = self.lock();
        let state = guarded.node.replica.sequencer.hard_state();
        let (sure, end) = (summary.committed_raft, guarded.node.writer.written().end.raft);
        // While entries are planned, memory is ahead of the files.
        let planned = !guarded.node.writer.plan.is_empty();
        let mut tail = Vec::new();
        for index in sure.0 + 1..=end.0 {
            let header = match guarded.node.replica.in_memory(EntryIndex(index)).filter(|_| !planned) {
                Some((header, _)) => Some(header),
                None => guarded.node.writer.archive.header(EntryIndex(index))?,
            };
            let Some(header) = header else { break };
            tail.push(Seal::of(&header));
        }
        Ok(Kept { last: summary.written, term: state.term, vote: state.vote, sure, tail })
    }

    /// The voters of both halves of its configuration; the second half is empty unless the configuration is joint.
    pub(in crate::testing::sim) fn voters(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let guarded = self.lock();
        let membership = guarded.node.replica.membership();
        let nodes = |v: Vec<u64>| v.into_iter().map(NodeId).collect();
        (nodes(membership.voters()), nodes(membership.voters_outgoing()))
    }

    pub(in crate::testing::sim) fn learners(&self) -> Vec<NodeId> {
        self.lock().node.replica.membership().learners().into_iter().map(NodeId).collect()
    }
}

/// A digest of a membership.
fn digest_of(membership: &Membership) -> u64 {
    let mut hasher = DefaultHasher::new();
    for m in membership.members() {
        (m.node.0, m.directory.0, m.is_voter(), m.is_leaving(), &m.address).hash(&mut hasher);
    }
    hasher.finish()
}

fn summaries(table: &LogTable) -> LogSummaries {
    table.iter().map(|(log, state)| (log, state.into())).collect()
}

/// A digest of the objects of a log.
fn digest_of_objects(objects: &ObjectTable) -> u64 {
    let mut hasher = DefaultHasher::new();
    objects.encode(Index(1)).hash(&mut hasher);
    hasher.finish()
}

/// A digest of a log table, except for the logs' first records: the discards that let a replica jump can come after the
/// jump.
fn digest_of_logs(table: &LogTable) -> u64 {
    let mut hasher = DefaultHasher::new();
    table.opened().hash(&mut hasher);
    let states = table.iter().map(|(log, s)| (log, s.next, s.bytes, s.last_timestamp, s.sealed));
    states.for_each(|state| state.hash(&mut hasher));
    table.with_options().for_each(|(log, options)| (log, options.encode()).hash(&mut hasher));
    hasher.finish()
}
