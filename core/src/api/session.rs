//! Session: the client's side of exactly-once appends. It numbers its batches and keeps within the window.
//!
//! Must not know: the session table, which the writer keeps.

use crate::api::log::Log;
use crate::api::payload::{SessionContent, SessionPayload};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Stamp;
use crate::replica::queue::proposals::WaitLimit;
use crate::sync::completion::Ticket;
use crate::types::{Sequence, SessionId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Appends that happen once each and in order, however often they are retried. A client has to store only the
/// session's id and its next number. After a crash it continues with [`Log::resume_session`]; an append that it
/// repeats under the same number returns the original indexes.
///
/// The log remembers the indexes of the latest `options.session_window` numbers, or of the last number only if the
/// client waited for each append. An older number fails with `SequenceForgotten`: that record **is in the log**, once
/// and durable, and only its indexes are forgotten. A client that repeats an append of unknown outcome treats this
/// error as success and continues with the next number.
///
/// `Send`; used by one thread at a time, which keeps the order. Many appends can be in flight.
///
/// ```
/// use chiplog::{Log, Options, Sequence};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let mut session = log.open_session()?;
/// let (id, number) = (session.id(), session.next_sequence());
/// let first = session.append(b"pay 10")?;
/// // The client crashed and does not know the outcome: it retries.
/// let mut session = log.resume_session(id, number);
/// assert_eq!(session.append(b"pay 10")?, first);
/// assert_eq!(log.last_index(), first);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    log: Log,
    id: SessionId,
    next: Sequence,
    /// Appends whose answers were not seen yet, oldest first.
    inflight: VecDeque<(Sequence, Ticket)>,
    /// Whether any append did not wait for its answer.
    pipelined: bool,
    /// A number that was refused. It is free once the appends after it are answered: they are refused too.
    refused: Option<Sequence>,
}

impl Log {
    /// Opens an exactly-once session, durably. Blocks until it is committed. If `Options::sessions_max` sessions are
    /// open, the oldest one that never appended is closed; its client gets `SessionExpired` and has lost nothing.
    ///
    /// # Errors
    /// `TooManySessions`: all open sessions have appended. `Full`; and those of [`Log::discard`]. A call that failed
    /// with `Unavailable` may have opened a session: it is never used, and expires.
    pub fn open_session(&self) -> Result<Session> {
        Ok(self.resume_session(self.new_session()?, Sequence(1)))
    }

    /// Resumes a session, in this process or another one. `next` is the number that the client uses next, from 1. To
    /// repeat an append of unknown outcome, use its number again: a record that is in the log already returns its
    /// indexes. A refusal (`NotLeader`, `Full`, `Busy`) means that this attempt is not in the log; an earlier attempt
    /// may be, so no other record may use that number. Does not check whether the session exists; the first append
    /// does. Never blocks.
    pub fn resume_session(&self, id: SessionId, next: Sequence) -> Session {
        Session { log: self.clone(), id, next, inflight: VecDeque::new(), pipelined: false, refused: None }
    }
}

impl Session {
    /// The session's permanent id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The number that the next append gets, as far as the answers are here: that of an append that was refused is free again, and the
    /// next append waits for those after it, which are refused too. Never blocks.
    pub fn next_sequence(&self) -> Sequence {
        let is_free = |(_, ticket): &&(Sequence, Ticket)| ticket.poll().is_some_and(|r| is_refusal(&r));
        let free = self.refused.or_else(|| self.inflight.iter().find(is_free).map(|(sequence, _)| *sequence));
        free.unwrap_or(self.next)
    }

    /// Appends a record or a batch, exactly once, and blocks until it is durable.
    ///
    /// # Errors
    /// `SequenceForgotten`: the payload is in the log already, but its indexes are forgotten; the session continues
    /// with the next number. `SessionExpired`, `SequenceGap`. `InvalidArgument` for number 0. And those of
    /// [`Log::append`] and of [`BatchBuilder::build`](crate::BatchBuilder::build).
    pub fn append<P: SessionPayload>(&mut self, payload: P) -> Result<P::Output> {
        self.log.may_wait()?;
        self.send(payload, None)?.wait()
    }

    /// Submits a record or a batch, as the session's next. Blocks while as many appends are in flight as the session's
    /// window allows.
    ///
    /// # Errors
    /// Those of [`Log::submit`], of [`BatchBuilder::build`](crate::BatchBuilder::build) and, for number 0, `InvalidArgument`: the
    /// payload was not accepted, and the next append gets its number. The ticket can return the other errors of
    /// [`Session::append`].
    pub fn submit<P: SessionPayload>(&mut self, payload: P) -> Result<Ticket<P::Output>> {
        self.pipelined = true;
        self.send(payload, None)
    }

    /// As [`Session::submit`], but never blocks.
    ///
    /// # Errors
    /// As [`Session::submit`]; `Busy`: no room in the session's window or in the log's queue.
    pub fn try_submit<P: SessionPayload>(&mut self, payload: P) -> Result<Ticket<P::Output>> {
        self.submit_within(payload, Duration::ZERO)
    }

    /// As [`Session::submit`], but blocks for up to `wait_limit` for room in the session's window and in the log's
    /// queue. Zero never blocks. On an error a batch's builder is unchanged.
    ///
    /// # Errors
    /// As [`Session::submit`]; `Busy`: no room within `wait_limit`.
    pub fn submit_within<P: SessionPayload>(
        &mut self,
        payload: P,
        wait_limit: Duration,
    ) -> Result<Ticket<P::Output>> {
        self.pipelined = true;
        self.send(payload, Some(Until::from_now(wait_limit)))
    }

    fn send<P: SessionPayload>(&mut self, mut payload: P, until: Option<Until>) -> Result<Ticket<P::Output>> {
        let stamp = self.stamp(until)?;
        let wait_limit = || until.map_or_else(|| self.log.wait_limit(), |until| WaitLimit::For(until.left()));
        let pushed = match payload.content() {
            SessionContent::Record(record) => self.log.push_record(record, stamp, wait_limit()),
            SessionContent::Batch(builder) => {
                let kept = until.map(|_| builder.clone());
                let built = builder.session(stamp.session, stamp.sequence, stamp.inflight).build();
                let pushed = built.and_then(|batch| self.log.push_batch(&batch, wait_limit()));
                if let (Err(_), Some(kept)) = (&pushed, kept) {
                    *builder = kept;
                }
                pushed
            }
        };
        Ok(self.sent(pushed?).returning())
    }

    /// Closes the session, durably, once every append in flight is answered. The log forgets the session: later appends
    /// fail with `SessionExpired`. Closing it again does no harm.
    ///
    /// # Errors
    /// Those of [`Log::discard`]: the session may be open in the log. Close it again.
    pub fn close(&mut self) -> Result<()> {
        self.log.may_wait()?;
        self.settle(0, None);
        self.log.close_session(self.id)
    }

    /// Returns the next stamp, once there is room for one more append in flight.
    ///
    /// # Errors
    /// `Busy`: there was no room by then.
    fn stamp(&mut self, until: Option<Until>) -> Result<Stamp> {
        // No record has number 0: the table would answer that its record is in the log.
        if self.next == Sequence(0) {
            return Err(Error::new(ErrorKind::InvalidArgument, "a session's sequence numbers start at 1"));
        }
        if !self.settle(usize::from(self.log.session_window()) - 1, until) {
            let what = format!(
                "{} appends of this session are in flight; retry, or raise session_window",
                self.inflight.len()
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        // Which answers the program has seen is not known here for appends that it did not wait for: it may repeat
        // any number in the window. For appends that it waited for, it may repeat only the last.
        let before = self.next.0.saturating_sub(1).min(u64::from(self.log.session_window()) - 1);
        let inflight = if self.pipelined { before as u16 } else { 0 };
        Ok(Stamp { session: self.id, sequence: self.next, inflight })
    }

    fn sent(&mut self, ticket: Ticket) -> Ticket {
        self.inflight.push_back((self.next, ticket.clone()));
        self.next = Sequence(self.next.0 + 1);
        ticket
    }

    /// Drops answered appends, and waits until at most `max` are in flight. False: more were in flight at `until`.
    fn settle(&mut self, max: usize, until: Option<Until>) -> bool {
        while let Some((sequence, ticket)) = self.inflight.front() {
            let is_enough = self.inflight.len() <= max && self.refused.is_none();
            let result = match (ticket.poll(), until) {
                (Some(result), _) => result,
                (None, _) if is_enough => return true,
                (None, _) if self.log.may_wait().is_err() => return false,
                (None, None) => ticket.wait(),
                (None, Some(until)) => {
                    // Polled afterwards to get the append's own outcome, never the wait's time-out.
                    let _ = ticket.wait_timeout(until.left());
                    let Some(result) = ticket.poll() else { return false };
                    result
                }
            };
            let sequence = *sequence;
            self.inflight.pop_front();
            if is_refusal(&result) {
                self.refused.get_or_insert(sequence);
            }
        }
        if let Some(free) = self.refused.take() {
            self.next = free;
        }
        true
    }
}

/// Whether an append was refused, and is surely not in the log: its number is free again. All appends after it are refused too.
fn is_refusal<T>(result: &Result<T>) -> bool {
    let in_doubt = [ErrorKind::Poisoned, ErrorKind::Unavailable, ErrorKind::SequenceForgotten];
    result.as_ref().is_err_and(|error| !in_doubt.contains(&error.kind()))
}

/// The end of a wait. `None`: no end.
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
