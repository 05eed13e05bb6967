//! Sessions: the exactly-once table. It holds which batches of which client are in the log, and at which indexes.
//!
//! Pure: no clock, no I/O, no threads. The table is a function of the log's contents (and of the window option). The
//! writer and recovery call the same functions in the order of the log, so replay repeats each live decision. Time is
//! the log's time: the timestamp of the block that is being added.
//!
//! Invariants:
//! - Only entries change the table. A leader that decides before an entry exists (whether to refuse, which session to
//!   close) only reads it, so every replica has the same table after the same entry.
//! - The batches of a session are numbered 1, 2, 3 … without a gap. `last` is the newest one in the log.
//! - The remembered batches are the newest ones, without a gap, up to and including `last`. A session that has appended
//!   has at least one.
//! - Retries do not change the table: they leave nothing in the log, so replay cannot see them.
//!
//! Its encoding is in `replica/state/session_table/codec.rs`.
//!
//! Must not know: blocks, segments, who the clients are.

mod codec;

use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BATCH_RECORDS_MAX, Stamp};
use crate::store::format::geometry::REMEMBERED_MAX;
use crate::sync::completion::Appended;
use crate::types::{Index, LogNumber, Sequence, SessionId, Timestamp};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    /// The newest batch of the session in the log; 0 before the first.
    last: Sequence,
    /// The log that it appends to.
    log: LogNumber,
    /// When it was opened or last appended, by the log's time.
    active: Timestamp,
    idle_max_ms: u64,
    /// The indexes of its newest batches; the back is that of `last`.
    remembered: VecDeque<Appended>,
}

impl Session {
    /// The last moment at which the session has not expired.
    fn good_until(&self) -> Timestamp {
        Timestamp(self.active.0.saturating_add(self.idle_max_ms))
    }

    fn is_expired(&self, at: Timestamp) -> bool {
        self.good_until() < at
    }

    fn keep_newest(&mut self, n: usize) {
        let surplus = self.remembered.len().saturating_sub(n);
        self.remembered.drain(..surplus);
    }

    /// None: `sequence` is the next one. Some: the batch is in the log already, at these indexes.
    fn check(&self, id: SessionId, sequence: Sequence) -> Result<Option<Appended>> {
        let next = self.last.0.checked_add(1);
        if next == Some(sequence.0) {
            return Ok(None);
        }
        if planted!(24) && sequence > self.last {
            return Ok(None);
        }
        let Some(back) = self.last.0.checked_sub(sequence.0) else {
            let message = format!(
                "session {id} is at sequence {}: expected at most {}, got {sequence}",
                self.last,
                next.unwrap_or(u64::MAX)
            );
            return Err(Error::new(ErrorKind::SequenceGap, message));
        };
        // `back` batches before the newest one.
        let place = (self.remembered.len() as u64).checked_sub(back).and_then(|n| n.checked_sub(1));
        match place.and_then(|n| self.remembered.get(n as usize)) {
            Some(first_time) => Ok(Some(*first_time)),
            None => {
                let message = format!(
                    "sequence {sequence} of session {id} is in the log, but its indexes are forgotten: the \
                     session is at {} and the latest {} are remembered",
                    self.last,
                    self.remembered.len()
                );
                Err(Error::new(ErrorKind::SequenceForgotten, message))
            }
        }
    }
}

/// The exactly-once table.
#[derive(Debug)]
pub(crate) struct Sessions {
    sessions_max: u32,
    window: usize,
    sessions: HashMap<SessionId, Session>,
    /// No session expires before this time, so there is no need to search before it. Moves: down when a session is
    /// opened, and to the true minimum in `expire`. An append only moves a session's expiry later.
    good_until_min: Timestamp,
    /// The number of remembered batches of all sessions.
    remembered: usize,
}

impl Sessions {
    /// An empty table for up to `sessions_max` sessions that remembers `window` batches of each. `window` is clamped to
    /// 1 to 1024.
    pub(crate) fn new(sessions_max: u32, window: u16) -> Self {
        Self {
            sessions_max,
            window: window.clamp(1, REMEMBERED_MAX).into(),
            sessions: HashMap::new(),
            good_until_min: Timestamp(u64::MAX),
            remembered: 0,
        }
    }

    /// From the next entry on, at most `sessions_max` sessions may be open, and `window` batches of each are
    /// remembered. Open sessions stay open; batches beyond the new window are forgotten.
    pub(crate) fn limit(&mut self, sessions_max: u32, window: u16) {
        self.sessions_max = sessions_max;
        self.window = window.clamp(1, REMEMBERED_MAX).into();
        self.remembered = 0;
        for session in self.sessions.values_mut() {
            session.keep_newest(self.window);
            self.remembered += session.remembered.len();
        }
    }

    /// Whether an entry with the timestamp `at` may open one more session on `log`, which may have `max` of its own. Changes nothing:
    /// only the entry does.
    ///
    /// Errors: `TooManySessions`.
    pub(crate) fn check_open(&self, log: LogNumber, max: Option<u64>, at: Timestamp) -> Result<()> {
        let refuse = |message| Err(Error::new(ErrorKind::TooManySessions, message));
        if let Some(max) = max {
            let open = self.good_of(log, at);
            if open as u64 >= max {
                return refuse(format!(
                    "{open} sessions of the log are open, and its option sessions_max allows {max}; close some or raise it"
                ));
            }
        }
        let open = self.good_at(at);
        if open < self.sessions_max as usize {
            return Ok(());
        }
        refuse(format!(
            "{open} sessions are open, and the option sessions_max allows {}; close some or raise it",
            self.sessions_max
        ))
    }

    /// Opens a session: `id` is the raft index of the entry that opens it, `at` that entry's timestamp. Drops all
    /// expired sessions first. Checks no limit: an entry in the log is never refused.
    pub(crate) fn open(
        &mut self,
        id: SessionId,
        log: LogNumber,
        idle_max_ms: u64,
        at: Timestamp,
    ) -> Result<()> {
        self.expire(at);
        if id.is_none() || self.sessions.contains_key(&id) {
            // Ids are raft indexes, so the caller counts wrongly or the log contradicts itself.
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("session {id} is open already, or 0, which is no session"),
            ));
        }
        let session =
            Session { last: Sequence(0), log, active: at, idle_max_ms, remembered: VecDeque::new() };
        self.good_until_min = self.good_until_min.min(session.good_until());
        self.sessions.insert(id, session);
        Ok(())
    }

    /// The number of sessions that have not expired at the time `at`.
    fn good_at(&self, at: Timestamp) -> usize {
        if self.good_until_min >= at {
            return self.sessions.len();
        }
        self.sessions.values().filter(|session| !session.is_expired(at)).count()
    }

    /// The number of sessions of a log that have not expired at the time `at`.
    fn good_of(&self, log: LogNumber, at: Timestamp) -> usize {
        self.sessions.values().filter(|session| session.log == log && !session.is_expired(at)).count()
    }

    /// The session that has to be closed so that one more can be opened at the time `at` on `log`, which may have `max` of its own: the
    /// oldest of those that never appended, of that log if it has reached its own limit. None: there is room, or closing one session would
    /// not make any. Changes nothing.
    pub(crate) fn next_to_go(&self, log: LogNumber, max: Option<u64>, at: Timestamp) -> Option<SessionId> {
        let of_log = max.map(|max| (self.good_of(log, at) as u64).cmp(&max));
        let of_all = self.good_at(at).cmp(&(self.sessions_max as usize));
        let within_log = of_log.is_some_and(Ordering::is_eq);
        if of_log.is_some_and(Ordering::is_gt) || of_all.is_gt() || !(within_log || of_all.is_eq()) {
            return None;
        }
        let unused = self.sessions.iter().filter(|(_, s)| s.last.0 == 0 && !s.is_expired(at));
        // Ids are raft indexes: the smallest is the oldest.
        unused.filter(|(_, s)| !within_log || s.log == log).map(|(id, _)| *id).min()
    }

    /// The log that a session appends to. `None`: there is no such session.
    pub(crate) fn log_of(&self, id: SessionId) -> Option<LogNumber> {
        self.sessions.get(&id).map(|session| session.log)
    }

    /// Removes a session. An unknown session was removed already.
    pub(crate) fn close(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.remembered -= session.remembered.len();
        }
    }

    /// Removes the sessions of a log that is dropped.
    pub(crate) fn close_all_of(&mut self, log: LogNumber) {
        let remembered = &mut self.remembered;
        self.sessions.retain(|_, session| {
            if session.log == log {
                *remembered -= session.remembered.len();
            }
            session.log != log
        });
    }

    /// Checks that a batch for `log` belongs to no session, to a session of that log, or to an unknown one.
    ///
    /// Errors: `SessionExpired`: the session is of another log of the group.
    pub(crate) fn check_log(&self, stamp: &Stamp, log: LogNumber) -> Result<()> {
        match self.sessions.get(&stamp.session) {
            Some(session) if session.log != log => {
                let id = stamp.session;
                let what = format!("session {id} belongs to another log; open one for this log");
                Err(Error::new(ErrorKind::SessionExpired, what))
            }
            _ => Ok(()),
        }
    }

    /// Whether a batch may be added at the time `at`. None: add it (also if it has no session). Some: it is a retry,
    /// and these are its original indexes.
    ///
    /// Errors: `SessionExpired`, `SequenceGap`, `SequenceForgotten`.
    pub(crate) fn check(&self, stamp: &Stamp, at: Timestamp) -> Result<Option<Appended>> {
        if stamp.session.is_none() {
            return Ok(None);
        }
        match self.sessions.get(&stamp.session) {
            Some(session) if !session.is_expired(at) => session.check(stamp.session, stamp.sequence),
            // The same error whether or not an entry has dropped the session yet.
            _ => Err(Error::new(
                ErrorKind::SessionExpired,
                format!(
                    "session {} is not known: it was never opened, was closed, or was idle for too long; \
                     open a new one",
                    stamp.session
                ),
            )),
        }
    }

    /// Records that a batch that passed `check` was added at `first` with the timestamp `at`. Forgets batches whose
    /// answers the client has, and those beyond the window.
    ///
    /// Errors: those of `check`; and `InvalidArgument` for a batch that is in the log already or comes before an older
    /// one. Nothing is changed then. Live they cannot happen after `check`; at replay they mean that the log
    /// contradicts itself.
    pub(crate) fn apply(&mut self, stamp: &Stamp, first: Index, count: u32, at: Timestamp) -> Result<()> {
        if let Some(before) = self.check(stamp, at)? {
            let message = format!(
                "sequence {} of session {} is at {first}, but is also at {}: the log contradicts itself",
                stamp.sequence, stamp.session, before.first
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if let Some(session) = self.sessions.get_mut(&stamp.session) {
            let before = session.remembered.len();
            let next = session.remembered.back().map_or(1, |b| b.last().next().0);
            if end_of(next, first.0, count).is_none() {
                let message = format!(
                    "sequence {} of session {} is at {first} with {count} records: not after the batches before it",
                    stamp.sequence, stamp.session
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            session.last = stamp.sequence;
            session.active = at;
            session.remembered.push_back(Appended::new(first, count));
            // The client still waits for this batch and the `inflight` ones before it.
            session.keep_newest(self.window.min(usize::from(stamp.inflight) + 1));
            self.remembered = self.remembered - before + session.remembered.len();
        }
        Ok(())
    }

    /// Removes every session that has expired at `at`, the time of an entry that is in the log.
    pub(crate) fn expire(&mut self, at: Timestamp) {
        if self.good_until_min >= at {
            return;
        }
        let mut good_until_min = Timestamp(u64::MAX);
        let remembered = &mut self.remembered;
        self.sessions.retain(|_, session| {
            if session.is_expired(at) {
                *remembered -= session.remembered.len();
                return false;
            }
            good_until_min = good_until_min.min(session.good_until());
            true
        });
        self.good_until_min = good_until_min;
    }

    /// The number of sessions: those that had not expired at the time of the last entry.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The newest sequence of a session that is in the log (0: it has appended nothing). None: the session is unknown.
    pub(crate) fn get(&self, id: SessionId) -> Option<Sequence> {
        self.sessions.get(&id).map(|s| s.last)
    }

    /// A hash of the sessions that have not expired at `at`: replicas remove expired ones at different moments.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn digest(&self, at: Timestamp) -> u64 {
        let one = |(id, session): (&SessionId, &Session)| {
            let words = [id.0, session.last.0, session.active.0, session.idle_max_ms];
            let log = (!session.log.is_none()).then_some(u64::from(session.log.0));
            let batches = session.remembered.iter().flat_map(|b| [b.first.0, b.count.into()]);
            let mix =
                |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            words.into_iter().chain(log).chain(batches).fold(0x517c_c1b7_2722_0a95, mix)
        };
        let good = self.sessions.iter().filter(|(_, session)| !session.is_expired(at));
        good.map(one).fold(0, u64::wrapping_add)
    }
}

/// The index after a batch that is the first one at or after `next`. None if such a batch is impossible.
fn end_of(next: u64, first: u64, count: u32) -> Option<u64> {
    let possible = first >= next && (1..=BATCH_RECORDS_MAX).contains(&count);
    possible.then(|| first.checked_add(count.into())).flatten()
}

#[cfg(test)]
mod tests;
