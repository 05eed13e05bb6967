//! Retention: the leader discards segments beyond the log's limits, and every replica removes the files of a discard.
//!
//! Invariant: files are removed only once a durable block records that the discard is committed.

use super::log_search::Surroundings;
use super::{MARKER_DELAY, Node};
use crate::error::{ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::replica::raft::{Replica, body_bytes_of};
use crate::replica::state::log_table::LogTable;
use crate::replica::writer::plan::Room;
use crate::store::allocator::Purpose;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::store::read::run_directory::in_opening_if_here;
use crate::store::segment::Segments;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// How many logs of a shared group discard records in one step.
const DISCARDS_A_STEP: usize = 64;
/// Retention that found no room for its discard retries after this time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Retention that had to use a later opening than that behind a segment looks again after this time: the damaged one can be repaired.
const REPAIR_DELAY: Duration = Duration::from_secs(5);
/// Retention that waits for the opening of an object looks again after this time, and then later each time. Every object that goes needs
/// an opening.
const FETCH_DELAY: Duration = Duration::from_millis(20);

/// How long retention waits for an opening before it looks again.
#[derive(Debug)]
pub(super) struct FetchDelay(Duration);

impl Default for FetchDelay {
    fn default() -> Self {
        Self(FETCH_DELAY)
    }
}

impl FetchDelay {
    fn next(&mut self) -> Duration {
        let longer = (self.0 * 2).min(RETRY_DELAY);
        std::mem::replace(&mut self.0, longer)
    }

    /// After a step of a search: how long it waits. None: it waits for nothing.
    fn after(&mut self, stepped: &Result<Option<usize>>) -> Option<Duration> {
        match stepped {
            Ok(None) => *self = Self::default(),
            Ok(Some(looked_at)) => {
                if *looked_at > 0 {
                    *self = Self::default();
                }
                return Some(self.next());
            }
            Err(_) => {}
        }
        None
    }
}

/// The state that a search for logs reads.
fn surroundings<'a>(replica: &'a Replica, segments: &'a Segments, now: Moment) -> Surroundings<'a> {
    let committed = replica.sequencer.committed();
    let (logs, term) = (&committed.logs, replica.term());
    Surroundings { segments, logs, committed: committed.raft, term, now: replica.time(now) }
}

impl Node {
    /// Plans a block that records the commit index, because commits have effects that outlive this process. A log on
    /// its own needs none: everything that is durable is committed. False: there is no room now, or a file is being
    /// prepared; this thread does not wait for it.
    pub(crate) fn keep_commit(&mut self, raft: EntryIndex) -> bool {
        if self.options.cluster.is_none() {
            return true;
        }
        // A block behind entries that wait for room would be written before them.
        if self.replica.has_staged() || self.writer.plan.awaits_file(HARD_STATE_BYTES, Purpose::Metadata) {
            return false;
        }
        let state = self.replica.sequencer.hard_state();
        let block = self.replica.sequencer.hard_state_block(state.term, state.vote);
        let sequencer = &mut self.replica.sequencer;
        match self.writer.plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, sequencer) {
            Ok(Room::Here) => self.writer.plan.push(block),
            Ok(Room::Rolled) => {}
            Err(_) => return false,
        }
        self.writer.plan.says_committed(raft);
        true
    }

    /// The last entry that is durably recorded here as committed. In a log on its own, everything that is durable is
    /// committed.
    pub(super) fn known_commit(&self) -> EntryIndex {
        let synced = self.writer.synced();
        if self.options.cluster.is_none() { synced.end.raft } else { synced.commit }
    }

    /// Removes the files of a discard once its commit is durably recorded here. Keeps the files that a replay from the
    /// recorded commit index to the end of the log needs.
    pub(super) fn drop_files(&mut self) {
        let known = if planted!(11) { self.writer.synced().end.raft } else { self.known_commit() };
        if let Some((_, first)) = self.to_drop.take_if(|(raft, _)| *raft <= known) {
            self.droppable = first;
            self.drop_discarded(known);
        }
    }

    /// Removes the files that had to wait until the newest segment has durably begun: the last one whose records are discarded, and those
    /// behind it that hold commands alone. No other discard follows where there are no records.
    pub(super) fn drop_behind(&mut self) {
        let known = self.known_commit();
        let begun = self.writer.store.segments.newest().is_some_and(|newest| newest.base.raft <= known);
        if begun && std::mem::take(&mut self.has_rolled) {
            self.drop_discarded(known);
        }
    }

    /// Removes the files of discards that are durable. Keeps those of an object that is not stored yet, and of one that may have to be
    /// made again: some of its records may be left.
    pub(super) fn drop_discarded(&mut self, known: EntryIndex) {
        let first = self.droppable;
        if first == Index(0) {
            return;
        }
        let object = self.replica.sequencer.committed().objects.next_to_store();
        let needed = object.map_or(known, |(_, begin, _)| if planted!(98) { known } else { begin.raft });
        let held = self.held_by_scrub().map_or(needed, |begin| begin.raft);
        self.tiering.holds_discarded = held < needed;
        if self.tiering.holds_discarded {
            self.knows_suspects(Moment::default()); // else all objects are listed at once
        }
        self.writer.store.drop_below(first, known.min(needed).min(held));
        self.replica.dropped_to(self.writer.archive.first());
        self.queue.recount(self.writer.store.segments.bytes_from(first));
    }

    /// Discards whole segments that are beyond the retention limits.
    pub(super) fn retain(&mut self, now: Moment) -> Result<()> {
        if now < self.retain_at || self.to_drop.is_some() || !self.replica.is_leader() {
            return Ok(());
        }
        // A leader that hands over, or has no room, proposes nothing.
        if self.replica.refusal().is_some() {
            self.retain_at = now.plus(RETRY_DELAY);
            return Ok(());
        }
        if self.replica.sequencer.logs().is_shared() {
            self.retain_logs(now)?;
        }
        let Some((first, why)) = self.beyond_retention(now) else {
            if self.is_too_old(now) {
                self.retain_at = now.plus(RETRY_DELAY); // not possible yet: it is not committed, or holds no records
            }
            return Ok(());
        };
        let command = Command::Discard { first };
        if !self.has_made_room(&command, Purpose::Metadata, now) {
            self.retain_at = now.plus(RETRY_DELAY);
            return Ok(());
        }
        self.replica.command(command, None, now, &mut self.writer.plan)?;
        let [bytes, age] =
            [LogOption::RetentionBytes, LogOption::RetentionAge].map(|o| o.words_of(&self.effective));
        let (node, used) = (self.cluster.node, self.retained_bytes());
        tracing::info!(%node, %first, used, retention_bytes = %bytes, retention_age = %age, "{why}");
        // Not again before this discard has taken effect.
        self.retain_at = now.plus(MARKER_DELAY);
        self.finish(now)
    }

    /// Makes room for a command of the leader's own. False: there is none now. If no file can be had, the others are asked for room. Never
    /// waits for a file: this thread sends heartbeats.
    pub(super) fn has_made_room(&mut self, command: &Command, purpose: Purpose, now: Moment) -> bool {
        let (body, plan) = (body_bytes_of(command), &mut self.writer.plan);
        !plan.awaits_file(body, purpose) && self.replica.make_room(body, purpose, now, plan).is_ok()
    }

    /// Discards records of single logs of a shared group that are beyond their limits, a few logs a step.
    fn retain_logs(&mut self, now: Moment) -> Result<()> {
        let around = surroundings(&self.replica, &self.writer.store.segments, now);
        let stepped = self.log_retention.step(&around);
        if let Some(delay) = self.search_delay.after(&stepped) {
            self.retain_at = now.plus(delay);
        }
        if let Err(error) = stepped {
            let error = self.writer.store.segments.met(error, None);
            tracing::warn!(%error, "retention of named logs cannot read where a segment ends; it is tried again");
        }
        let mut discarded = 0;
        for _ in 0..DISCARDS_A_STEP {
            // The rest waits: this replica was deposed, or has too much that is not committed.
            if !self.replica.is_leader() || self.replica.refusal().is_some() || !self.has_uncommitted_room() {
                if self.log_retention.has_found() {
                    self.retain_at = now.plus(RETRY_DELAY);
                }
                break;
            }
            let sequencer = &self.replica.sequencer;
            let next = self.log_retention.next(&sequencer.committed().logs, sequencer.logs());
            let Some((log, first)) = next else { break };
            let command = Command::Log(LogCommand::Discard { log, first });
            if !self.has_made_room(&command, Purpose::OneLog, now) {
                self.log_retention.put_back((log, first));
                self.retain_at = now.plus(RETRY_DELAY);
                break;
            }
            self.replica.command(command, None, now, &mut self.writer.plan)?;
            tracing::debug!(node = %self.cluster.node, %log, %first, "discards records beyond the retention of a log");
            discarded += 1;
        }
        if discarded == DISCARDS_A_STEP {
            self.retain_at = now; // there may be more
        }
        if discarded > 0 { self.finish(now) } else { Ok(()) }
    }

    /// Looks up how many bytes logs with a quota keep, if that is not known: a few openings a step.
    pub(super) fn look_up_quotas(&mut self, now: Moment) {
        if now < self.quotas_at || !self.replica.is_leader() {
            return;
        }
        let around = surroundings(&self.replica, &self.writer.store.segments, now);
        let stepped = self.log_quotas.step(&around);
        if let Some(delay) = self.quotas_delay.after(&stepped) {
            self.quotas_at = now.plus(delay);
        }
        if let Err(error) = stepped {
            let error = self.writer.store.segments.met(error, None);
            tracing::warn!(%error, "it cannot be read how many bytes named logs keep; it is tried again");
        }
        self.publish_quotas();
    }

    /// When quotas have to be looked up next. None: when something else happens.
    pub(super) fn quotas_due(&self, now: Moment) -> Option<Moment> {
        let due = self.log_quotas.due().filter(|_| self.replica.is_leader())?;
        let left = Duration::from_millis(due.0.saturating_sub(self.replica.time(now).0));
        Some(now.plus(left).max(self.quotas_at))
    }

    /// When retention has to look at the oldest segment next, by the log's time. `None`: when something else happens.
    pub(super) fn retention_due(&self) -> Option<Timestamp> {
        if self.log_retention.is_busy() || self.awaits_opening {
            return Some(Timestamp(0));
        }
        let of_oldest =
            |(newest, age): (Timestamp, u64)| Timestamp(newest.0.saturating_add(age).saturating_add(1));
        [self.aging().map(of_oldest), self.log_retention.due()].into_iter().flatten().min()
    }

    /// The time of the newest of the oldest records, and their age limit. None: there is no full segment or object, or no
    /// limit.
    fn aging(&self) -> Option<(Timestamp, u64)> {
        let age = self.effective.retention_age?;
        let (_, newest) = self.oldest_stretch()?;
        Some((newest, u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The stretch that retention discards next: the oldest object, or without one the oldest full segment. Returns the first
    /// record after it, and the time of its last entry.
    fn oldest_stretch(&self) -> Option<(Index, Timestamp)> {
        if let Some(oldest) = self.oldest_of_run() {
            return oldest;
        }
        let object = self.replica.sequencer.committed().objects.stored().next();
        let segment = self.writer.store.segments.oldest_full();
        let of_object = object.map(|at| (at.state.end.next, at.state.timestamp));
        of_object.or_else(|| segment.map(|segment| (segment.end().next, segment.last_timestamp())))
    }

    /// Bytes that count against retention: those of the log's files, and those of objects before them. Of a log with payload slices at
    /// least those of all objects, which have the payload: files only refer to it.
    fn retained_bytes(&self) -> u64 {
        let segments = &self.writer.store.segments;
        let local = segments.oldest().map_or(Index(0), |oldest| oldest.base.next);
        let bytes = self.queue.used() + segments.objects().bytes_before(local);
        match self.replica.sequencer.committed().options.get(LogOption::PayloadSlices) {
            Some(_) => bytes.max(segments.objects().bytes_before(Index(u64::MAX))),
            None => bytes,
        }
    }

    /// Whether the oldest segment is beyond the age limit, by the log's time: a jump of the wall clock discards
    /// nothing.
    fn is_too_old(&self, now: Moment) -> bool {
        self.aging()
            .is_some_and(|(newest, age)| newest < Timestamp(self.replica.time(now).0.saturating_sub(age)))
    }

    /// As [`Self::beyond_retention`], in a shared group: the oldest object or segment with records goes once every log has
    /// discarded what it holds, with those before it.
    fn beyond_all_logs(&mut self, now: Moment) -> Option<(Index, &'static str)> {
        self.awaits_opening = false;
        if !self.logs_shrank {
            return None;
        }
        let segments = &self.writer.store.segments;
        let committed = self.replica.sequencer.committed();
        // Those before it hold commands alone: the discard that removes this one removes them as well.
        let list = segments.stretches();
        let (_, full) = list.split_last()?;
        let oldest = full.iter().find(|segment| segment.end().next > committed.first)?;
        let (end, first) = (oldest.end().raft, oldest.end().next);
        if first > committed.next {
            return None;
        }
        // The end of each log there stands in the opening of the next one, or of a later one: ends only grow, and a log that is missing in a
        // later one was deleted before. So one that is damaged keeps files no longer than that of the next one does.
        let later = list.iter().filter(|segment| segment.base.raft >= end && !Arc::ptr_eq(segment, oldest));
        let mut reads = later.map(|next| {
            let read = segments.open(next).and_then(|data| in_opening_if_here(&data, LogTable::decode));
            read.map_err(|error| segments.met(error, None))
        });
        let first_read = reads.next()?;
        let is_damaged = |read: &Result<_>| matches!(read, Err(e) if e.kind() == ErrorKind::Corrupt);
        let is_first_damaged = is_damaged(&first_read);
        let read = match is_first_damaged {
            true => reads.find(|read| !is_damaged(read)).unwrap_or(first_read),
            false => first_read,
        };
        let ends = match read {
            Ok(Some(ends)) => ends,
            Ok(None) => {
                self.awaits_opening = true;
                self.retain_at = now.plus(self.opening_delay.next());
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, "it cannot be read where the logs of the oldest object or segment end");
                self.awaits_opening = true;
                self.retain_at = now.plus(RETRY_DELAY);
                return None;
            }
        };
        self.opening_delay = FetchDelay::default();
        let is_gone = |log, end| committed.logs.get(log).is_none_or(|now| now.first >= end);
        let mut ends = ends.iter();
        let is_dead = match planted!(78) {
            true => ends.any(|(log, end)| is_gone(log, end.next)),
            false => ends.all(|(log, end)| is_gone(log, end.next)),
        };
        self.logs_shrank = is_dead || is_first_damaged; // the next segment can be dead as well
        if is_first_damaged && !is_dead {
            self.awaits_opening = true; // its own ends can be lower
            self.retain_at = now.plus(REPAIR_DELAY);
        }
        is_dead.then_some((first, "removes records that all of their logs have discarded"))
    }

    /// The first index after retention, if it is beyond the current one, and the reason.
    fn beyond_retention(&mut self, now: Moment) -> Option<(Index, &'static str)> {
        if self.replica.sequencer.logs().is_shared() {
            return self.beyond_all_logs(now);
        }
        if self.effective.retention_bytes.is_none() && self.effective.retention_age.is_none() {
            return None;
        }
        let (first, _) = self.oldest_stretch()?;
        let too_many = self.effective.retention_bytes.is_some_and(|max| self.retained_bytes() > max);
        let committed = self.replica.sequencer.committed();
        let (option, of_log, of_server) = match (too_many, self.is_too_old(now)) {
            (true, _) => (
                LogOption::RetentionBytes,
                "discards records beyond retention_bytes of the log",
                "discards records beyond retention_bytes of this server",
            ),
            (false, true) => (
                LogOption::RetentionAge,
                "discards records older than retention_age of the log",
                "discards records older than retention_age of this server",
            ),
            (false, false) => return None,
        };
        let why = if committed.options.get(option).is_some() { of_log } else { of_server };
        (first > committed.first && first <= committed.next).then_some((first, why))
    }
}
