//! Session: the client's side of exactly-once appending: numbers its batches and keeps to the window.
//!
//! Must not know: the table (`replica/state/session_table/mod.rs`), which the writer keeps.

use crate::api::log::Log;
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BatchBuilder, Stamp};
use crate::replica::queue::proposals::WaitLimit;
use crate::sync::completion::{Appended, Ticket};
use crate::types::{Index, Sequence, SessionId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Appends that happen once each, in order, however often they are tried. Number and id are all that a
/// client has to remember over a crash: with [`Log::resume_session`] it goes on, and an append that it
/// repeats under the same number gets the indexes that it got the first time.
///
/// The log remembers the indexes of the latest `options.session_window` numbers, or of the last one only if the
/// client waited for each append. For an older number the answer is `SequenceForgotten`: that record **is in the
/// log**, once and durable, and only its indexes are gone. A client that repeats what it is unsure of takes it
/// for a success and goes on with the next number.
///
/// `Send`; one thread at a time, which is what keeps the order. Many appends can be in flight.
///
/// ```
/// use chiplog::{Log, Options, Sequence};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let mut session = log.open_session()?;
/// let (id, number) = (session.id(), session.next_sequence());
/// let first = session.append(b"pay 10")?;
/// // The client crashed and does not know whether it got through: it tries again.
/// let mut session = log.resume_session(id, number);
/// assert_eq!(session.append(b"pay 10")?, first);
/// assert_eq!(log.info().last, first);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    log: Log,
    id: SessionId,
    next: Sequence,
    /// Appends that were not seen answered yet, oldest first.
    inflight: VecDeque<(Sequence, Ticket)>,
    /// Whether any append did not wait for its answer.
    pipelined: bool,
    /// A number that was refused. It is free once those behind it are answered, which are refused too.
    refused: Option<Sequence>,
}

impl Log {
    /// Opens an exactly-once session, durably. Where as many are open as there may be (`Options::sessions_max`), the oldest
    /// of those that never appended is closed for it: whose it was gets `SessionExpired`, and has lost nothing.
    ///
    /// # Errors
    /// `TooManySessions`: all of them have appended; `Full`; and those of [`Log::discard`]: a session that an `Unavailable`
    /// call opened is never used, and expires.
    pub fn open_session(&self) -> Result<Session> {
        Ok(self.resume_session(self.new_session()?, Sequence(1)))
    }

    /// Takes a session up again, in this process or another one: `next` is the sequence number that the
    /// client will use next, from 1. To repeat an append whose outcome is not known, use its number again: a
    /// record that is there already gets the indexes it has. A refusal then (`NotLeader`, `Full`, `Busy`) says that this
    /// attempt is not in the log; an earlier one may be, so that nothing else may go under that number. Does not look
    /// whether the session is known; the first append does.
    pub fn resume_session(&self, id: SessionId, next: Sequence) -> Session {
        Session { log: self.clone(), id, next, inflight: VecDeque::new(), pipelined: false, refused: None }
    }
}

impl Session {
    /// The session's name for ever.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The number that the next append gets.
    pub fn next_sequence(&self) -> Sequence {
        self.next
    }

    /// Appends one record, once, and waits until it is durable.
    ///
    /// # Errors
    /// `SequenceForgotten`: the record is in the log already, its indexes are forgotten; the session has gone on
    /// to the next number. `SessionExpired`, `SequenceGap`; `InvalidArgument` for number 0; and those of
    /// [`Log::append`].
    pub fn append(&mut self, record: &[u8]) -> Result<Index> {
        self.log.may_wait()?;
        Ok(self.send(record, None)?.wait()?.first)
    }

    /// Appends a batch, once, and waits until it is durable.
    ///
    /// # Errors
    /// As [`Session::append`].
    pub fn append_batch(&mut self, batch: &mut BatchBuilder) -> Result<Appended> {
        self.log.may_wait()?;
        self.send_batch(batch)?.wait()
    }

    /// Submits one record. Waits while as many appends as the session's window allows are in flight.
    ///
    /// # Errors
    /// Those of [`Log::submit`] and, for number 0, `InvalidArgument`: the record was not taken, and its number
    /// goes to the next append. The ticket can hold the other errors of [`Session::append`].
    pub fn submit(&mut self, record: &[u8]) -> Result<Ticket> {
        self.pipelined = true;
        self.send(record, None)
    }

    /// As [`Session::submit`], but waits for room, in the session's window and in the log's queue, for at most
    /// `patience`. Zero never waits.
    ///
    /// # Errors
    /// As [`Session::submit`]; `Busy`: no room in that time.
    pub fn submit_within(&mut self, record: &[u8], wait_limit: Duration) -> Result<Ticket> {
        self.pipelined = true;
        self.send(record, Some(Until::from_now(wait_limit)))
    }

    fn send(&mut self, record: &[u8], until: Option<Until>) -> Result<Ticket> {
        let stamp = self.stamp(until)?;
        let wait_limit = until.map_or_else(|| self.log.wait_limit(), |until| WaitLimit::For(until.left()));
        let ticket = self.log.push_record(record, stamp, wait_limit)?;
        Ok(self.sent(ticket))
    }

    /// Submits the batch that is being built, stamped as the session's next.
    ///
    /// # Errors
    /// As [`Session::submit`], and those of [`BatchBuilder::build`].
    pub fn submit_batch(&mut self, batch: &mut BatchBuilder) -> Result<Ticket> {
        self.pipelined = true;
        self.send_batch(batch)
    }

    /// As [`Session::submit_batch`], but waits for room as [`Session::submit_within`] does. Where it fails the builder is
    /// as it was.
    ///
    /// # Errors
    /// As [`Session::submit_batch`]; `Busy`: no room in that time.
    pub fn submit_batch_within(&mut self, batch: &mut BatchBuilder, wait_limit: Duration) -> Result<Ticket> {
        self.pipelined = true;
        let until = Until::from_now(wait_limit);
        let Stamp { session, sequence, inflight } = self.stamp(Some(until))?;
        let mut taken = batch.clone();
        let built = taken.session(session, sequence, inflight).build()?;
        let ticket = self.log.push_batch(&built, WaitLimit::For(until.left()))?;
        *batch = taken;
        Ok(self.sent(ticket))
    }

    fn send_batch(&mut self, batch: &mut BatchBuilder) -> Result<Ticket> {
        let Stamp { session, sequence, inflight } = self.stamp(None)?;
        let batch = batch.session(session, sequence, inflight).build()?;
        let ticket = self.log.submit_batch(&batch)?;
        Ok(self.sent(ticket))
    }

    /// Ends the session, durably, once everything in flight is answered. The log forgets it.
    ///
    /// # Errors
    /// Those of [`Log::discard`].
    pub fn close(mut self) -> Result<()> {
        self.log.may_wait()?;
        self.settle(0, None);
        self.log.close_session(self.id)
    }

    /// The next stamp, once there is room for one more in flight.
    ///
    /// # Errors
    /// `Busy`: not until then.
    fn stamp(&mut self, until: Option<Until>) -> Result<Stamp> {
        // No number of any record: the table would answer that its record is in the log.
        if self.next == Sequence(0) {
            return Err(Error::new(ErrorKind::InvalidArgument, "a session's sequence numbers start at 1"));
        }
        if !self.settle(usize::from(self.log.session_window()) - 1, until) {
            let what = format!(
                "{} appends of this session are in flight; try again, or raise session_window",
                self.inflight.len()
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        // Which answers the program has seen of those it did not wait for is not known here: it may ask again
        // for any number in the window. Of those it waited for, only for the last.
        let before = self.next.0.saturating_sub(1).min(u64::from(self.log.session_window()) - 1);
        let inflight = if self.pipelined { before as u16 } else { 0 };
        Ok(Stamp { session: self.id, sequence: self.next, inflight })
    }

    fn sent(&mut self, ticket: Ticket) -> Ticket {
        self.inflight.push_back((self.next, ticket.clone()));
        self.next = Sequence(self.next.0 + 1);
        ticket
    }

    /// Forgets what is answered, and waits until no more than `max` are not. False: not until then.
    fn settle(&mut self, max: usize, until: Option<Until>) -> bool {
        while let Some((sequence, ticket)) = self.inflight.front() {
            let is_enough = self.inflight.len() <= max && self.refused.is_none();
            let result = match (ticket.poll(), until) {
                (Some(result), _) => result,
                (None, _) if is_enough => return true,
                (None, _) if self.log.may_wait().is_err() => return false,
                (None, None) => ticket.wait(),
                (None, Some(until)) => {
                    // Asked for afterwards: the append's own outcome, never the end of the wait.
                    let _ = ticket.wait_timeout(until.left());
                    let Some(result) = ticket.poll() else { return false };
                    result
                }
            };
            let sequence = *sequence;
            self.inflight.pop_front();
            // Refused and surely not in the log: the number is free again, and all behind it are refused too.
            let in_doubt = [ErrorKind::Poisoned, ErrorKind::Unavailable, ErrorKind::SequenceForgotten];
            if result.is_err_and(|e| !in_doubt.contains(&e.kind())) {
                self.refused.get_or_insert(sequence);
            }
        }
        if let Some(free) = self.refused.take() {
            self.next = free;
        }
        true
    }
}

/// How long is waited. None: for ever.
#[derive(Clone, Copy, Debug)]
struct Until(Option<Instant>);

impl Until {
    fn from_now(wait_limit: Duration) -> Self {
        Self(Instant::now().checked_add(wait_limit))
    }

    fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }
}
