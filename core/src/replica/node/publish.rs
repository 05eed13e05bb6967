//! Publish: what a node shows to handles and readers: positions, status, options of the log, errors. It applies the
//! committed entries first and answers their callers last.
//!
//! Invariant: a caller that was answered can read its records, and the status shows the effect of its request.

use super::end_times::EndTimes;
use super::{Node, STATUS_AGE, counted_capacity};
use crate::cluster::membership::Membership;
use crate::cluster::options::{ReplicaStatus, Role};
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::options::log_options::{LogOption, LogOptions};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogNumber, NodeId, Term, Timestamp};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long a failure to use the object store counts that was not repeated: a replica that stores objects tries again after a minute at most.
const STORE_FAILURE_AGE: Duration = Duration::from_secs(150);

/// The state that a node shares with handles.
#[derive(Default)]
pub(crate) struct Published {
    /// The reason why the log is poisoned, if it is. Set once.
    pub(crate) poison: OnceLock<Error>,
    pub(crate) sessions: AtomicU32,
    pub(crate) last_timestamp: AtomicU64,
    pub(crate) counters: Counters,
    status: Mutex<Option<ReplicaStatus>>,
    log_options: Mutex<LogOptions>,
    /// The largest record that the log's options allow; 0: the log does not set it.
    record_bytes_max: AtomicU32,
    /// At a follower: the first record that the log is known to have left by a discard; 0: it is not known, as after a restart until the
    /// source says so. The follower can keep less.
    pub(crate) discarded: AtomicU64,
    /// At a follower.
    pub(crate) end_times: EndTimes,
    /// Records up to this one are to be in objects soon, as the program has asked for; 0: it has not.
    pub(crate) cut_upto: AtomicU64,
    /// Whether this replica has transferred leadership lately because its disk was slow.
    pub(crate) has_slow_disk: AtomicBool,
    /// Whether the last attempt to make a file found no room.
    pub(crate) lacks_room: AtomicBool,
    /// Whether this is a copy of one log of a shared group, which numbers its entries by itself.
    pub(crate) of_one_log: AtomicBool,
    /// The reason why nothing can be read now: the log is being repaired.
    held: Mutex<Option<Error>>,
    /// The reason why this replica cannot accept every entry that the log may hold: no room, or conflicting options.
    shortage: Mutex<Option<Error>>,
    /// Why this replica cannot store something, by what it is.
    store_failures: Mutex<[Option<StoreFailure>; 3]>,
}

/// The things that a replica keeps in its object store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    Objects,
    Slices,
    Payloads,
}

/// Attempts of a replica to store something in its object store that fail.
#[derive(Clone, Debug)]
pub struct StoreFailure {
    /// When the first of them failed, by [`Options::clock`](crate::Options::clock).
    pub since: Timestamp,
    /// When the last one failed.
    pub last: Timestamp,
    /// The error of the last one.
    pub error: Error,
}

impl StoreFailure {
    /// Whether it says anything about the object store at this time.
    fn counts(&self, now: Timestamp) -> bool {
        Duration::from_millis(now.0.saturating_sub(self.last.0)) < STORE_FAILURE_AGE
    }
}

impl Published {
    /// A part of the status after the node's last step. `part` runs under the lock.
    pub(crate) fn status<T>(&self, part: impl FnOnce(&ReplicaStatus) -> T) -> Option<T> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(part)
    }

    /// Publishes the status.
    pub(crate) fn show(&self, status: ReplicaStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// The options that are set for the log, as far as this replica knows them to be committed.
    pub(crate) fn log_options(&self) -> LogOptions {
        *self.log_options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest record, if the log sets it.
    pub(crate) fn record_bytes_max(&self) -> Option<u32> {
        Some(self.record_bytes_max.load(Ordering::Relaxed)).filter(|max| *max > 0)
    }

    /// Publishes the options that are set for the log.
    pub(crate) fn show_log_options(&self, options: LogOptions) {
        let record_bytes_max = options.get(LogOption::RecordBytesMax).unwrap_or(0);
        self.record_bytes_max.store(u32::try_from(record_bytes_max).unwrap_or(u32::MAX), Ordering::Relaxed);
        *self.log_options.lock().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// The reason why this replica cannot accept every entry that the log may hold: no room, or conflicting options.
    pub(crate) fn shortage(&self) -> Option<Error> {
        self.shortage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of the failures to store something from here, the one that has lasted longest. None: the last attempts succeeded, or were made long
    /// before `now`.
    pub(crate) fn store_failure(&self, now: Timestamp) -> Option<StoreFailure> {
        let failures = self.store_failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.iter().flatten().filter(|failure| failure.counts(now)).min_by_key(|f| f.since).cloned()
    }

    /// An attempt to store something has failed.
    pub(super) fn store_fails(&self, what: Kept, error: &Error, now: Timestamp) {
        let mut failures = self.store_failures.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = &mut failures[what as usize];
        let since = failure.as_ref().filter(|failure| failure.counts(now)).map_or(now, |before| before.since);
        *failure = Some(StoreFailure { since, last: now, error: error.clone() });
    }

    /// An attempt to store something has succeeded.
    pub(super) fn store_works(&self, what: Kept) {
        self.store_failures.lock().unwrap_or_else(PoisonError::into_inner)[what as usize] = None;
    }

    fn show_shortage(&self, why: Option<&Error>) {
        *self.shortage.lock().unwrap_or_else(PoisonError::into_inner) = why.cloned();
    }

    /// Blocks reads, for this reason. None: allows them.
    pub(crate) fn hold(&self, why: Option<Error>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// # Errors
    /// The reason why nothing can be read now.
    pub(crate) fn check_held(&self) -> Result<()> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }
}

/// The state behind the published status. A new status is published at once when the leader or the membership changes.
pub(super) struct Shown {
    lead: (Role, Term, Option<NodeId>),
    membership: Membership,
    /// The last committed entry and the last entry.
    upto: (EntryIndex, EntryIndex),
    at: Moment,
}

impl Node {
    /// Applies what is committed and written, publishes it, and answers the callers that wait for it.
    pub(super) fn publish(&mut self, now: Moment) -> Result<()> {
        let committed =
            if planted!(8) { self.replica.sequencer.end().raft } else { self.replica.committed() };
        let upto = committed.min(self.writer.written().end.raft);
        let members = self.replica.sequencer.committed().changed;
        let answerable = self.answerable(upto, now);
        let durability = self.durability();
        let due = self.replica.commit_to(upto, answerable, durability);
        let committed = self.replica.sequencer.committed();
        let (raft, next, first) = (committed.raft, committed.next, committed.first);
        let members_changed = committed.changed != members;
        if let Some(identity) = self.replica.take_admission(self.writer.synced().end.raft) {
            identity.write(&**self.writer.store.segments.disk())?;
        }
        let moved = first > self.first;
        if moved {
            self.log_discarded(first);
        }
        self.first = self.first.max(first);
        self.obey_the_log();
        self.writer.store.commit(raft);
        let leads = self.replica.is_leader();
        let counters = &self.published.counters;
        while let Some((_, bytes, written)) = self.uncommitted.pop_front_if(|(at, ..)| *at <= raft) {
            self.uncommitted_bytes -= bytes;
            self.tiering.slices.committed(bytes);
            if leads {
                counters.committed(now.since(written));
            }
        }
        counters.uncommitted_bytes.store(self.uncommitted_bytes, Ordering::Relaxed);
        self.positions.discarded(first);
        self.positions.commit_entries_to(raft);
        self.positions.commit_to(next.previous());
        self.publish_logs();
        self.publish_objects(now);
        if moved {
            self.to_drop = Some((raft, first));
        }
        // A replica that restarts must not look for voters that were removed long ago.
        if moved || (members_changed && !planted!(35)) || self.owes_commit {
            self.owes_commit = !self.keep_commit(raft);
            self.drop_files();
        }
        self.publish_state(now);
        self.positions.wake();
        self.logs.wake();
        for (completer, outcome) in due {
            completer.answer(outcome);
        }
        Ok(())
    }

    /// Publishes the logs of a shared group that committed entries have changed.
    pub(super) fn publish_logs(&mut self) {
        let sequencer = &mut self.replica.sequencer;
        let changed = sequencer.take_changed_logs(&self.logs);
        self.logs.show_objects(sequencer.objects().encoded_bytes());
        let logs = if planted!(82) { sequencer.logs() } else { &sequencer.committed().logs };
        // Logs that a snapshot has replaced can be gone from `self.logs` already, and their options are not.
        if changed.states.is_empty() && changed.options.is_empty() && logs.opened() == self.logs.opened() {
            return;
        }
        for log in &changed.options {
            let options = logs.options(*log);
            self.logs.show_options(*log, options);
            self.queue.set_rate(*log, options.get(LogOption::AppendBytesPerSecond));
            self.log_quotas.set(*log, options.get(LogOption::CapacityBytes));
            self.log_retention.restart(*log);
        }
        for log in changed.states.iter().chain(&changed.options) {
            self.log_quotas.look(*log, logs.get(*log));
        }
        let states = changed.states.into_iter().map(|log| (log, logs.get(log)));
        if self.logs.show(logs.opened(), states) {
            self.logs_shrank = true;
            self.holes.shrank();
        }
        self.publish_quotas();
    }

    /// Has appends refused to the logs that have become full, and accepted again by those that have room.
    pub(super) fn publish_quotas(&mut self) {
        for (log, capacity) in self.log_quotas.take_changes() {
            tracing::debug!(node = %self.cluster.node, %log, ?capacity, "a log is full, or has room again");
            self.queue.set_full(log, capacity);
            let options = self.replica.sequencer.committed().logs.options(log);
            let retention = [LogOption::RetentionBytes, LogOption::RetentionAge];
            if capacity.is_some() && retention.into_iter().any(|option| options.get(option).is_some()) {
                self.log_retention.look_again();
            }
        }
    }

    /// Logs that the log begins at `first` from now on. Each replica logs it. The leader of that time logs the reason.
    pub(super) fn log_discarded(&self, first: Index) {
        let records = first.0 - self.first.0;
        self.published.counters.discarded.fetch_add(records, Ordering::Relaxed);
        tracing::info!(node = %self.cluster.node, %first, records, "records before the first were discarded");
    }

    /// Applies the options that are set for the log, and logs where this server's configuration differs.
    pub(super) fn obey_the_log(&mut self) {
        let set = self.replica.sequencer.committed().options;
        if set == self.set {
            return;
        }
        self.set = set;
        self.effective = set.over(&self.options);
        self.queue.set_capacity(counted_capacity(&self.effective));
        self.queue.set_rate(LogNumber::OWN, set.get(LogOption::AppendBytesPerSecond));
        self.published.show_log_options(set);
        self.retain_at = Moment::default();
        let node = self.cluster.node;
        tracing::info!(%node, %set, "options of the log");
        let differences = set.differences(&self.options).join("; ");
        if !differences.is_empty() {
            tracing::warn!(
                %node,
                "this server's configuration differs from the log's options, which are in force: {differences}"
            );
        }
        self.misfit = set.check(&self.options).err();
        if let Some(why) = &self.misfit {
            tracing::warn!(%node, "this server's other options conflict with the log's: as leader it refuses the records that they rule out: {why}");
        }
    }

    pub(super) fn publish_state(&mut self, now: Moment) {
        let shortage = self.replica.shortage().or(self.misfit.as_ref());
        if shortage.map(Error::kind) != self.shortage {
            self.shortage = shortage.map(Error::kind);
            self.published.show_shortage(shortage);
        }
        self.queue.set_leads(self.replica.is_leader());
        let published = &self.published;
        published.has_slow_disk.store(self.slow_disk.has_transferred_lately(now), Ordering::Relaxed);
        let allocator = &self.writer.store.allocator;
        let lacks_file = allocator.lacks_room();
        if lacks_file {
            allocator.look_for_room();
        }
        published.lacks_room.store(lacks_file || shortage.is_some(), Ordering::Relaxed);
        let sequencer = &self.replica.sequencer;
        published.sessions.store(sequencer.sessions().len() as u32, Ordering::Relaxed);
        published.last_timestamp.store(sequencer.last_timestamp().0, Ordering::Relaxed);
        let replica = &self.replica;
        let lead = (replica.role(), replica.term(), replica.live_leader(now));
        let upto = (sequencer.committed().raft, sequencer.end().raft);
        // If no further step is to be expected, the status has to be up to date.
        let quiet = self.prove_at.is_none();
        let stale = |shown: &Shown| {
            shown.lead != lead
                || shown.membership != *replica.membership()
                || now >= shown.at.plus(STATUS_AGE)
                || (quiet && shown.upto != upto)
        };
        if self.shown.as_ref().is_none_or(stale) {
            if self.shown.as_ref().and_then(|shown| shown.lead.2) != lead.2 {
                self.log_leader(lead.1, lead.2);
            }
            self.shown = Some(Shown { lead, membership: replica.membership().clone(), upto, at: now });
            let status = self.status(now);
            self.published.show(status);
        }
    }

    /// The status of the replica.
    pub(crate) fn status(&self, now: Moment) -> ReplicaStatus {
        let sequencer = &self.replica.sequencer;
        let committed = sequencer.committed();
        ReplicaStatus {
            node: self.cluster.node,
            role: self.replica.role(),
            term: self.replica.term(),
            leader: self.replica.live_leader(now),
            committed_index: committed.next.previous(),
            committed_entry: committed.raft,
            last_entry: sequencer.end().raft,
            members: self.replica.membership().members().cloned().collect(),
            peers: self.replica.peer_statuses(now),
        }
    }

    /// Logs a change of leader. The path says of which log, or group of named logs.
    fn log_leader(&self, term: Term, leader: Option<NodeId>) {
        let (node, path) = (self.cluster.node, self.writer.store.segments.disk().path().display());
        match leader {
            Some(leader) if leader == node => tracing::info!(%node, %term, %path, "this replica leads"),
            Some(leader) => tracing::info!(%node, %term, %leader, %path, "another replica leads"),
            None => tracing::info!(%node, %term, %path, "no leader is known"),
        }
    }

    /// Publishes the final status: this replica leads no more, and knows no leader.
    pub(super) fn show_end(&self) {
        let mut status = self.status(Moment::default());
        if matches!(status.role, Role::Leader | Role::Candidate) {
            status.role = Role::Follower;
        }
        (status.leader, status.peers) = (None, Vec::new());
        self.published.show(status);
    }
}
