//! Sessions: the exactly-once table. Which batches of which client are in the log already, and where.
//!
//! Pure: no clock, no I/O, no threads. The table is a function of the log's contents (and of the window
//! option), so the writer and recovery call the same functions in the order of the log: what was decided
//! live is decided again at replay. Time is the log's: the timestamp of the block that is being placed.
//!
//! Invariants:
//! - Only entries change the table. A leader that decides before an entry exists (whether to refuse, which session
//!   has to go) only looks at it, so every replica has the same table behind the same entry.
//! - The batches of a session are numbered 1, 2, 3 … without a gap; `last` is the newest one in the log.
//! - What is remembered are the newest batches without a gap, up to and including `last`; of a session that
//!   has appended, at least one.
//! - Retries do not touch the table: they leave nothing in the log, and so cannot be seen at replay.
//!
//! Its bytes: `replica/state/session_table/codec.rs`.
//!
//! Must not know: blocks, segments, who the clients are.

mod codec;

use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BATCH_RECORDS_MAX, Stamp};
use crate::store::format::geometry::REMEMBERED_MAX;
use crate::sync::completion::Appended;
use crate::types::{Index, Sequence, SessionId, Timestamp};
use std::collections::{HashMap, VecDeque};

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    /// The newest batch of the session in the log; 0 before the first.
    last: Sequence,
    /// When it was opened or last appended, by the log's clock.
    active: Timestamp,
    idle_max_ms: u64,
    /// Where its newest batches stand; the back is that of `last`.
    remembered: VecDeque<Appended>,
}

impl Session {
    /// The last moment at which the session is still good.
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

    /// None: `sequence` is the next one. Some: it is in the log already.
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
        // `back` steps before the newest one.
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
    /// No session expires before this: spares looking at all of them. Moves: down when a session is opened,
    /// and to the true minimum in `expire`. Appending only makes a session good for longer.
    good_until_min: Timestamp,
    /// Remembered batches of all sessions.
    remembered: usize,
}

impl Sessions {
    /// An empty table for at most `sessions_max` sessions that remembers `window` batches of each: 1 to
    /// 1024; what is outside is taken for the nearest.
    pub(crate) fn new(sessions_max: u32, window: u16) -> Self {
        Self {
            sessions_max,
            window: window.clamp(1, REMEMBERED_MAX).into(),
            sessions: HashMap::new(),
            good_until_min: Timestamp(u64::MAX),
            remembered: 0,
        }
    }

    /// From the next entry on at most `sessions_max` sessions are opened, and `window` batches of each are remembered. What is
    /// there stays, except that no more batches are remembered than that.
    pub(crate) fn limit(&mut self, sessions_max: u32, window: u16) {
        self.sessions_max = sessions_max;
        self.window = window.clamp(1, REMEMBERED_MAX).into();
        self.remembered = 0;
        for session in self.sessions.values_mut() {
            session.keep_newest(self.window);
            self.remembered += session.remembered.len();
        }
    }

    /// Whether an entry of the time `at` may open one more session. Changes nothing: only the entry does.
    ///
    /// Errors: `TooManySessions`.
    pub(crate) fn check_open(&self, at: Timestamp) -> Result<()> {
        let open = self.good_at(at);
        if open < self.sessions_max as usize {
            return Ok(());
        }
        let message = format!(
            "{open} sessions are open, and the option sessions_max allows {}; close some or raise it",
            self.sessions_max
        );
        Err(Error::new(ErrorKind::TooManySessions, message))
    }

    /// Opens a session: `id` is the raft index of the entry that does so, `at` that entry's timestamp. Drops
    /// all expired ones first. No limit of today refuses what is in the log.
    pub(crate) fn open(&mut self, id: SessionId, idle_max_ms: u64, at: Timestamp) -> Result<()> {
        self.expire(at);
        if id.is_none() || self.sessions.contains_key(&id) {
            // Ids are raft indexes, so the caller counts wrongly or the log contradicts itself.
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("session {id} is open already, or no session"),
            ));
        }
        let session = Session { last: Sequence(0), active: at, idle_max_ms, remembered: VecDeque::new() };
        self.good_until_min = self.good_until_min.min(session.good_until());
        self.sessions.insert(id, session);
        Ok(())
    }

    /// How many sessions are good at the time `at`.
    fn good_at(&self, at: Timestamp) -> usize {
        if self.good_until_min >= at {
            return self.sessions.len();
        }
        self.sessions.values().filter(|session| !session.is_expired(at)).count()
    }

    /// The session that has to go so that one more can be opened at the time `at`: of those that never appended, the
    /// oldest. None: there is room, or nobody's leaving would make any. Changes nothing.
    pub(crate) fn next_to_go(&self, at: Timestamp) -> Option<SessionId> {
        if self.good_at(at) != self.sessions_max as usize {
            return None;
        }
        // Ids are raft indexes: the smallest is the oldest.
        let unused = self.sessions.iter().filter(|(_, s)| s.last.0 == 0 && !s.is_expired(at));
        unused.map(|(id, _)| *id).min()
    }

    /// Forgets a session. One that is not known is forgotten already.
    pub(crate) fn close(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.remembered -= session.remembered.len();
        }
    }

    /// Whether a batch may be placed at the time `at`. None: take it (so also without a session). Some: it
    /// is a retry, and these are the indexes that it got the first time.
    ///
    /// Errors: `SessionExpired`, `SequenceGap`, `SequenceForgotten`.
    pub(crate) fn check(&self, stamp: &Stamp, at: Timestamp) -> Result<Option<Appended>> {
        if stamp.session.is_none() {
            return Ok(None);
        }
        match self.sessions.get(&stamp.session) {
            Some(session) if !session.is_expired(at) => session.check(stamp.session, stamp.sequence),
            // Said alike whether or not an entry has dropped it yet.
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

    /// A batch that `check` let through was placed at `first` with the timestamp `at`: remembers it, and
    /// forgets what the client has answers for, and what is beyond the window.
    ///
    /// Errors: those of `check`, and `InvalidArgument` for a batch that is there already or stands before an
    /// older one; nothing is changed then. Live they cannot happen after `check`; at replay they mean that
    /// the log contradicts itself.
    pub(crate) fn apply(&mut self, stamp: &Stamp, first: Index, count: u32, at: Timestamp) -> Result<()> {
        if let Some(before) = self.check(stamp, at)? {
            let message = format!(
                "sequence {} of session {} is at {first}, but was at {} already",
                stamp.sequence, stamp.session, before.first
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if let Some(session) = self.sessions.get_mut(&stamp.session) {
            let before = session.remembered.len();
            let next = session.remembered.back().map_or(1, |b| b.last().next().0);
            if end_of(next, first.0, count).is_none() {
                let message = format!(
                    "sequence {} of session {} is at {first} with {count} records: not after those before it",
                    stamp.sequence, stamp.session
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            session.last = stamp.sequence;
            session.active = at;
            session.remembered.push_back(Appended { first, count });
            // The client still waits for this batch and the `inflight` ones before it.
            session.keep_newest(self.window.min(usize::from(stamp.inflight) + 1));
            self.remembered = self.remembered - before + session.remembered.len();
        }
        Ok(())
    }

    /// Drops every session that is expired at `at`, the time of an entry that is in the log.
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

    /// How many sessions there are: those that were good at the time of the last entry.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The newest sequence of a session that is in the log (0: none yet); None for an unknown session.
    pub(crate) fn get(&self, id: SessionId) -> Option<Sequence> {
        self.sessions.get(&id).map(|s| s.last)
    }

    /// A number that stands for the sessions that are good at `at`: replicas drop expired ones at different moments.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn digest(&self, at: Timestamp) -> u64 {
        let one = |(id, session): (&SessionId, &Session)| {
            let words = [id.0, session.last.0, session.active.0, session.idle_max_ms];
            let batches = session.remembered.iter().flat_map(|b| [b.first.0, b.count.into()]);
            let mix =
                |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            words.into_iter().chain(batches).fold(0x517c_c1b7_2722_0a95, mix)
        };
        let good = self.sessions.iter().filter(|(_, session)| !session.is_expired(at));
        good.map(one).fold(0, u64::wrapping_add)
    }
}

/// Where a batch ends that is the first one at or after `next`: None if there can be no such batch.
fn end_of(next: u64, first: u64, count: u32) -> Option<u64> {
    let possible = first >= next && (1..=BATCH_RECORDS_MAX).contains(&count);
    possible.then(|| first.checked_add(count.into())).flatten()
}

#[cfg(test)]
mod tests;
