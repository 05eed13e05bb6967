//! Gather: where appends wait for the writer. Callers copy into the block that is being gathered; the writer
//! takes whatever waits.
//!
//! ```text
//! caller 1 --\                                  pieces, batch list, one completion
//! caller 2 ---+--> [ gathering block ] ... [ full block ] --> take() --> writer thread
//! caller 3 --/       ^ one short lock
//! ```
//!
//! Checksums are computed before the lock is taken. A small batch is copied into the block's buffer under
//! it; a large one rides along as a buffer of its own, so that the lock is never held for long.
//!
//! Invariants:
//! - at most `queue_bytes_max` bytes and `queue_appends_max` appends wait (one batch may always wait alone);
//! - nothing is admitted that would exceed the capacity, counted with all that waits (but without the headers
//!   of blocks to come: some hundred bytes each);
//! - everything taken is completed, by the writer, in one way or another.

use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::read::positions::closed;
use crate::record::batch::{Batch, SingleFrame, Stamp};
use crate::replica::queue::inbox::InboxEvent;
use crate::sync::completer::Completer;
use crate::sync::completion::{Outcome, Ticket};
use crate::types::{Index, SessionId};
use atomic::{AtomicU64, Ordering};
use bytes::{Bytes, BytesMut};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic};
use std::time::{Duration, Instant};

/// Batches above this size are not copied under the lock.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// What a command's block takes in the file.
const COMMAND_BYTES_STORED: usize = 128;
/// So many commands may wait: who asked for one can be gone.
const COMMANDS_MAX: usize = 64 << 10;
/// What a message counts for besides its bytes: none is free.
const EVENT_BYTES_EACH: usize = 64;
/// And each of its pieces.
const PIECE_BYTES_EACH: usize = 32;
/// So much beyond the bound may urgent messages take: entries that wait do not shut heartbeats out.
const URGENT_INBOX_BYTES: usize = 1 << 20;
/// Buffers kept for the next blocks.
const SPARE_BUFFERS_MAX: usize = 4;

/// One batch of a gathered block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) stamp: Stamp,
    pub(crate) crc: u32,
    pub(crate) length: u32,
    pub(crate) count: u32,
}

/// Batches gathered for one block.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    /// The batches, in order; their bytes stand in `pieces` without gaps.
    pub(crate) entries: Vec<Entry>,
    pub(crate) completer: Completer,
    pieces: Vec<Piece>,
    buffer: BytesMut,
    pub(crate) bytes: usize,
    pub(crate) records: u32,
    /// Whether any batch belongs to a session.
    pub(crate) has_sessions: bool,
}

#[derive(Debug)]
enum Piece {
    Copied(Range<usize>),
    Own(Bytes),
}

impl BlockBuilder {
    fn new(buffer: BytesMut) -> Self {
        Self {
            entries: Vec::new(),
            completer: Completer::new(),
            pieces: Vec::new(),
            buffer,
            bytes: 0,
            records: 0,
            has_sessions: false,
        }
    }

    /// Whether a batch can join. A block counts its records in 32 bits, and records can be empty.
    fn has_room(&self, entry: Entry, block_bytes: usize) -> bool {
        self.bytes + entry.length as usize <= block_bytes && self.records.checked_add(entry.count).is_some()
    }

    fn push(&mut self, parts: &Parts<'_>, entry: Entry) -> Ticket {
        let ticket = self.completer.ticket(self.entries.len() as u32, self.records, entry.count);
        match parts {
            Parts::Copy(parts) => {
                let start = self.buffer.len();
                for part in *parts {
                    self.buffer.extend_from_slice(part);
                }
                match self.pieces.last_mut() {
                    Some(Piece::Copied(range)) => range.end = self.buffer.len(),
                    _ => self.pieces.push(Piece::Copied(start..self.buffer.len())),
                }
            }
            Parts::Own(bytes) => self.pieces.push(Piece::Own((*bytes).clone())),
        }
        self.bytes += entry.length as usize;
        self.records += entry.count;
        self.has_sessions |= !entry.stamp.session.is_none();
        self.entries.push(entry);
        ticket
    }

    /// The bytes of all batches, in as few pieces as can be, and the duty to answer them. The batches for which `keep` is false are left
    /// out (`keep` is asked once a batch, in order).
    pub(crate) fn into_pieces(
        self,
        mut keep: Option<&mut dyn FnMut(usize) -> bool>,
    ) -> (Vec<Bytes>, Completer) {
        let buffer = self.buffer.freeze();
        let whole = self.pieces.into_iter().map(|p| match p {
            Piece::Copied(range) => buffer.slice(range),
            Piece::Own(bytes) => bytes,
        });
        let Some(keep) = keep.as_mut() else { return (whole.collect(), self.completer) };
        let mut kept = Vec::new();
        let mut entries = self.entries.iter().enumerate();
        for piece in whole {
            let mut at = 0;
            while at < piece.len() {
                let Some((n, entry)) = entries.next() else { break };
                let end = at + entry.length as usize;
                if keep(n) {
                    kept.push(piece.slice(at..end));
                }
                at = end;
            }
        }
        (kept, self.completer)
    }
}

/// A change to the log itself, to be written as a block of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Records below `first` are no longer wanted. Beyond the end: the log continues at `first`.
    Discard { first: Index },
    /// A new session, named after this entry's raft index, that may be idle for so long.
    OpenSession { idle_max_ms: u64 },
    /// The session will not be used again.
    CloseSession { id: SessionId },
    /// From now on these are the options that are set for the log, and no others.
    SetOptions(LogOptions),
}

/// What the writer takes.
#[derive(Debug)]
pub(crate) enum Proposal {
    Data(BlockBuilder),
    Command(Command, Completer),
}

/// What waited.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) items: VecDeque<Proposal>,
    pub(crate) events: VecDeque<InboxEvent>,
    /// The queue is closed, and no more appends wait in it that are wanted.
    pub(crate) closed: bool,
}

/// The limits of a queue, from [`crate::Options`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) block_bytes: usize,
    pub(crate) bytes: usize,
    pub(crate) appends: usize,
    /// Until another one is told.
    pub(crate) capacity: Option<u64>,
    /// Bytes of messages that may wait; beyond it they are dropped.
    pub(crate) inbox_bytes: usize,
}

/// The queue between callers and the writer.
#[derive(Debug)]
pub(crate) struct ProposalQueue {
    limits: QueueLimits,
    /// The most bytes of retained blocks.
    capacity: AtomicU64,
    /// Bytes of retained blocks. Moves under the lock, together with `taken`.
    used: AtomicU64,
    inner: Mutex<Inner>,
    work: Condvar,
    room: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    items: VecDeque<Proposal>,
    events: VecDeque<InboxEvent>,
    inbox_bytes: usize,
    bytes: usize,
    appends: usize,
    commands: usize,
    /// Bytes taken by the writer and not yet counted in `used`, nor refused.
    taken: usize,
    /// Whoever looks at the queue next has to be woken for it.
    unattended: bool,
    /// Whether the writer takes appends now.
    accepts_proposals: bool,
    /// The writer has more to do than what waits here.
    due: bool,
    room_waiters: usize,
    /// Those who wait for room without a thread.
    room_hooks: Option<Completer>,
    refused: Option<Error>,
    /// No message is taken in any more.
    stopped_receiving: bool,
    spare: Vec<BytesMut>,
    /// How often a thread was to be woken, for those that are simulated.
    #[cfg(any(test, feature = "sim"))]
    calls: usize,
}

impl Inner {
    /// Whether nothing waits that the writer takes.
    fn is_idle(&self) -> bool {
        !self.due && self.events.is_empty() && (self.items.is_empty() || !self.accepts_proposals)
    }

    /// Whether the writer goes to sleep now; then what comes has to wake it.
    fn may_sleep(&mut self, timeout: Option<Duration>) -> bool {
        let may = self.is_idle() && self.refused.is_none() && timeout.is_none_or(|t| !t.is_zero());
        self.unattended |= may;
        may
    }
}

enum Parts<'a> {
    Copy(&'a [&'a [u8]]),
    Own(&'a Bytes),
}

/// How long an append waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    None,
    For(Duration),
}

impl ProposalQueue {
    pub(crate) fn new(limits: QueueLimits, used: u64) -> Self {
        Self {
            limits,
            capacity: AtomicU64::new(limits.capacity.unwrap_or(u64::MAX)),
            used: AtomicU64::new(used),
            inner: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits one record, whose size the caller has checked.
    pub(crate) fn push_record(&self, record: &[u8], stamp: Stamp, wait_limit: WaitLimit) -> Result<Ticket> {
        let frame = SingleFrame::new(record, stamp);
        let length = frame.head.len() + record.len() + frame.tail.len();
        let entry = Entry { stamp, crc: frame.crc, length: length as u32, count: 1 };
        if length > COPIED_BYTES_MAX {
            let mut own = BytesMut::with_capacity(length);
            own.extend_from_slice(&frame.head);
            own.extend_from_slice(record);
            own.extend_from_slice(&frame.tail);
            return self.push(&Parts::Own(&own.freeze()), entry, wait_limit);
        }
        self.push(&Parts::Copy(&[&frame.head, record, &frame.tail]), entry, wait_limit)
    }

    /// Admits a ready-made batch, whose size the caller has checked.
    pub(crate) fn push_batch(&self, batch: &Batch, wait_limit: WaitLimit) -> Result<Ticket> {
        let header = batch.header();
        let entry =
            Entry { stamp: header.stamp, crc: header.crc, length: header.length, count: header.count };
        let bytes = batch.as_bytes();
        if bytes.len() > COPIED_BYTES_MAX {
            return self.push(&Parts::Own(bytes), entry, wait_limit);
        }
        self.push(&Parts::Copy(&[bytes]), entry, wait_limit)
    }

    fn push(&self, parts: &Parts<'_>, entry: Entry, wait_limit: WaitLimit) -> Result<Ticket> {
        let inner = self.admit(entry.length as usize, wait_limit)?;
        Ok(self.place(inner, parts, entry))
    }

    /// As [`Self::push_batch`], for those who must not block: `Err` is what to wait for before trying again. It is
    /// settled when the writer next takes what waits, or as failed when the queue is closed.
    pub(crate) fn push_batch_or_wait(&self, batch: &Batch) -> Result<Result<Ticket, Ticket>> {
        let header = batch.header();
        let entry =
            Entry { stamp: header.stamp, crc: header.crc, length: header.length, count: header.count };
        let mut inner = self.lock();
        if !self.is_admitted(&inner, entry.length as usize)? {
            let room = inner.room_hooks.get_or_insert_with(Completer::new);
            return Ok(Err(room.ticket(0, 0, 0)));
        }
        let bytes = batch.as_bytes();
        if bytes.len() > COPIED_BYTES_MAX {
            return Ok(Ok(self.place(inner, &Parts::Own(bytes), entry)));
        }
        Ok(Ok(self.place(inner, &Parts::Copy(&[bytes]), entry)))
    }

    /// Puts what was admitted into the block that is being gathered.
    fn place(&self, mut inner: MutexGuard<'_, Inner>, parts: &Parts<'_>, entry: Entry) -> Ticket {
        let length = entry.length as usize;
        let gathering = match inner.items.back_mut() {
            Some(Proposal::Data(g)) if g.has_room(entry, self.limits.block_bytes) => g,
            _ => {
                let buffer = inner.spare.pop().unwrap_or_default();
                inner.items.push_back(Proposal::Data(BlockBuilder::new(buffer)));
                match inner.items.back_mut() {
                    Some(Proposal::Data(g)) => g,
                    _ => unreachable!("just pushed"),
                }
            }
        };
        let ticket = gathering.push(parts, entry);
        inner.bytes += length;
        inner.appends += 1;
        self.signal(inner);
        ticket
    }

    /// Admits a command. Commands wait behind appends, never for room in the queue. A discard needs no capacity.
    pub(crate) fn push_command(&self, command: Command) -> Result<Ticket> {
        let mut inner = self.lock();
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        if let Command::OpenSession { .. } = command {
            self.check_capacity(&inner, COMMAND_BYTES_STORED)?;
        }
        if inner.commands >= COMMANDS_MAX {
            let what = format!("{COMMANDS_MAX} commands wait already; try again");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        inner.commands += 1;
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        inner.items.push_back(Proposal::Command(command, completer));
        self.signal(inner);
        Ok(ticket)
    }

    /// Puts mail where the writer finds it. Messages beyond the bound are dropped, and all once the writer has ended. Until
    /// then they are heard, also when the queue is closed: they tell what becomes of appends that were admitted.
    pub(crate) fn push_event(&self, event: InboxEvent) {
        let mut inner = self.lock();
        if let InboxEvent::Message(envelope) = &event {
            let bytes = envelope.bytes() + EVENT_BYTES_EACH + envelope.bodies.len() * PIECE_BYTES_EACH;
            let spare = if envelope.urgent { URGENT_INBOX_BYTES } else { 0 };
            let max = self.limits.inbox_bytes + spare;
            if inner.stopped_receiving || inner.inbox_bytes + bytes > max.max(bytes) {
                return;
            }
            inner.inbox_bytes += bytes;
        }
        inner.events.push_back(event);
        self.signal(inner);
    }

    /// As [`Self::push_mail`], for what has to be answered.
    ///
    /// # Errors
    /// The queue is closed, and why.
    pub(crate) fn push_question(&self, event: InboxEvent) -> Result<()> {
        let mut inner = self.lock();
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        inner.events.push_back(event);
        self.signal(inner);
        Ok(())
    }

    fn signal(&self, mut inner: MutexGuard<'_, Inner>) {
        if std::mem::take(&mut inner.unattended) {
            #[cfg(any(test, feature = "sim"))]
            {
                inner.calls += 1;
            }
            drop(inner);
            self.work.notify_one();
        }
    }

    /// The beginning of [`Self::wait`] for a thread that is simulated: whether it sleeps now.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn falls_asleep(&self, timeout: Option<Duration>) -> bool {
        self.lock().may_sleep(timeout)
    }

    /// How often a thread that sleeps was to be woken since this was asked last.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn take_calls(&self) -> usize {
        std::mem::take(&mut self.lock().calls)
    }

    /// # Errors
    /// `Full`: `length` bytes more would exceed the capacity. Or why the queue is closed.
    pub(crate) fn check_room(&self, length: usize) -> Result<()> {
        let inner = self.lock();
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        self.check_capacity(&inner, length)
    }

    fn check_capacity(&self, inner: &Inner, length: usize) -> Result<()> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let used = self.used() + (inner.bytes + inner.taken + length) as u64;
        if used <= capacity {
            return Ok(());
        }
        let what = format!("the log is full: {used} bytes with this append, room for {capacity}");
        Err(Error::new(ErrorKind::Full, what))
    }

    /// Whether `length` more bytes may wait.
    fn is_admitted(&self, inner: &Inner, length: usize) -> Result<bool> {
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        self.check_capacity(inner, length)?;
        let fits = inner.bytes + length <= self.limits.bytes && inner.appends < self.limits.appends;
        Ok(fits || inner.appends == 0)
    }

    /// Waits until `length` more bytes may wait, and keeps the lock.
    fn admit(&self, length: usize, wait_limit: WaitLimit) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        let mut deadline = None;
        loop {
            if self.is_admitted(&inner, length)? {
                return Ok(inner);
            }
            let left = match wait_limit {
                WaitLimit::None => Duration::ZERO,
                WaitLimit::For(time) => {
                    let now = Instant::now();
                    let end = *deadline.get_or_insert_with(|| now.checked_add(time));
                    end.map_or(Duration::MAX, |end| end.saturating_duration_since(now))
                }
            };
            if left.is_zero() {
                let what = format!(
                    "the queue of appends is full ({} appends, {} bytes wait); try again, or raise queue_bytes_max or queue_appends_max",
                    inner.appends, inner.bytes
                );
                return Err(Error::new(ErrorKind::Busy, what));
            }
            inner.room_waiters += 1;
            let (guard, _) = self.room.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner);
            inner = guard;
            inner.room_waiters -= 1;
        }
    }

    /// Blocks until there is something for the writer to do, or the queue is closed; for at most `timeout`, and it may be
    /// for less.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let mut inner = self.lock();
        if !inner.may_sleep(timeout) {
            return;
        }
        match timeout {
            None => drop(self.work.wait(inner)),
            Some(timeout) => drop(self.work.wait_timeout(inner, timeout)),
        }
    }

    /// The thread that takes what waits has something else to do for a while: another one that is in [`Self::wait`] is
    /// woken for what waits and for what comes.
    pub(crate) fn leave(&self) {
        let mut inner = self.lock();
        inner.unattended = true;
        if !inner.is_idle() {
            self.signal(inner);
        }
    }

    /// What ends [`Self::wait`] besides mail: appends, if `hungry`; anyhow, if the writer is `due`, until it takes.
    pub(crate) fn expect(&self, accepts_proposals: bool, due: bool) {
        let mut inner = self.lock();
        (inner.accepts_proposals, inner.due) = (accepts_proposals, due);
    }

    /// Takes all that waits: appends only if `hungry`. Never blocks.
    pub(crate) fn take(&self, accepts_proposals: bool) -> Work {
        let mut inner = self.lock();
        (inner.unattended, inner.accepts_proposals, inner.due) = (false, accepts_proposals, false);
        inner.inbox_bytes = 0;
        let closed = inner.refused.is_some();
        let mut work = Work { items: VecDeque::new(), events: std::mem::take(&mut inner.events), closed };
        let mut room = None;
        if accepts_proposals {
            inner.taken += std::mem::take(&mut inner.bytes);
            (inner.appends, inner.commands) = (0, 0);
            work.items = std::mem::take(&mut inner.items);
            if inner.room_waiters > 0 {
                self.room.notify_all();
            }
            room = inner.room_hooks.take();
        }
        drop(inner);
        if let Some(room) = room {
            room.answer(Outcome::Placed { first: Index(0) }); // runs foreign code: not under the lock
        }
        work
    }

    /// Whether appends or commands wait.
    pub(crate) fn has_items(&self) -> bool {
        !self.lock().items.is_empty()
    }

    /// What waits: appends, their bytes, and bytes that were taken and are not written.
    pub(crate) fn waiting(&self) -> (usize, usize, usize) {
        let inner = self.lock();
        (inner.appends, inner.bytes, inner.taken)
    }

    /// The capacity is another one from now on; None: there is none.
    pub(crate) fn set_capacity(&self, capacity: Option<u64>) {
        self.capacity.store(capacity.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes of retained blocks.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Of what was taken, `gathered` bytes were written as `stored` bytes, or refused.
    pub(crate) fn account(&self, gathered: usize, stored: u64) {
        let mut inner = self.lock();
        inner.taken = inner.taken.saturating_sub(gathered);
        self.used.fetch_add(stored, Ordering::Relaxed);
    }

    /// A discard has left so many bytes.
    pub(crate) fn recount(&self, used: u64) {
        let _inner = self.lock();
        self.used.store(used, Ordering::Relaxed);
    }

    /// Gives back a buffer whose block was written, for one to come.
    pub(crate) fn reuse(&self, bytes: Bytes) {
        if let Ok(mut buffer) = bytes.try_into_mut() {
            buffer.clear();
            let mut inner = self.lock();
            if inner.spare.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= 2 * self.limits.block_bytes {
                inner.spare.push(buffer);
            }
        }
    }

    /// Admits nothing more; what was admitted is still taken.
    pub(crate) fn close(&self) {
        self.refuse(closed());
    }

    /// Drops messages from now on: nobody takes them any more.
    pub(crate) fn stop_receiving(&self) {
        self.lock().stopped_receiving = true;
    }

    /// Admits nothing more, for this reason. The first reason stays.
    pub(crate) fn refuse(&self, error: Error) {
        let mut inner = self.lock();
        let error = inner.refused.get_or_insert(error).clone();
        let room = inner.room_hooks.take();
        #[cfg(any(test, feature = "sim"))]
        {
            inner.calls += 2; // as many as a replica has
        }
        drop(inner);
        self.work.notify_all();
        self.room.notify_all();
        if let Some(room) = room {
            room.answer(Outcome::Failed(error));
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cluster::transport::Envelope;
    use crate::types::{DirectoryId, LogId, NodeId};

    fn queue(capacity: Option<u64>) -> ProposalQueue {
        ProposalQueue::new(
            QueueLimits { block_bytes: 1000, bytes: 2000, appends: 10, capacity, inbox_bytes: 0 },
            0,
        )
    }

    fn take(queue: &ProposalQueue) -> Vec<Proposal> {
        queue.take(true).items.into()
    }

    #[test]
    fn gathers_into_blocks_of_bounded_size_in_order() {
        let q = queue(None);
        for i in 0..8u8 {
            let _ticket = q.push_record(&[i; 200], Stamp::default(), WaitLimit::None).unwrap();
        }
        let items = take(&q);
        let mut seen = Vec::new();
        for item in items {
            let Proposal::Data(g) = item else { panic!() };
            assert!(g.bytes <= 1000);
            let lengths: usize = g.entries.iter().map(|e| e.length as usize).sum();
            assert_eq!(lengths, g.bytes);
            let bytes: Vec<u8> = g.into_pieces(None).0.concat();
            seen.extend(bytes.chunks(244).map(|b| b[50]));
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(take(&q).is_empty());
    }

    #[test]
    fn limits_have_names_and_room_comes_back() {
        let q = queue(None);
        for _ in 0..8 {
            let _ticket = q.push_record(&[0; 200], Stamp::default(), WaitLimit::None).unwrap();
        }
        let busy = q.push_record(&[0; 200], Stamp::default(), WaitLimit::For(Duration::from_millis(1)));
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
        take(&q);
        let _ticket = q.push_record(&[0; 200], Stamp::default(), WaitLimit::None).unwrap();

        let q = queue(Some(500));
        let _ticket = q.push_record(&[0; 400], Stamp::default(), WaitLimit::None).unwrap();
        let full = q.push_record(&[0; 400], Stamp::default(), WaitLimit::None);
        assert_eq!(full.unwrap_err().kind(), ErrorKind::Full);
    }

    /// Who asked can be gone, and nobody else counts what it left behind.
    #[test]
    fn commands_and_messages_are_bounded() {
        let q = queue(None);
        for _ in 0..COMMANDS_MAX {
            drop(q.push_command(Command::Discard { first: Index(1) }).unwrap());
        }
        let busy = q.push_command(Command::Discard { first: Index(1) });
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(take(&q).len(), COMMANDS_MAX);
        drop(q.push_command(Command::Discard { first: Index(1) }).unwrap());

        let limits =
            QueueLimits { block_bytes: 1, bytes: 1, appends: 1, capacity: None, inbox_bytes: 10_000 };
        let q = ProposalQueue::new(limits, 0);
        let message = |bodies, urgent| {
            InboxEvent::Message(Envelope {
                log: LogId(1),
                from: NodeId(1),
                from_directory: DirectoryId(1),
                to: NodeId(2),
                to_directory: DirectoryId(0),
                head: Bytes::new(),
                bodies: vec![Bytes::new(); bodies],
                urgent,
            })
        };
        let wait = || q.lock().events.len();
        q.push_event(message(300, false));
        assert_eq!(wait(), 1);
        for _ in 0..1000 {
            q.push_event(message(0, false));
        }
        assert!((2..100).contains(&wait()), "none is free: {}", wait());
        let before = wait();
        q.push_event(message(0, true));
        assert_eq!(wait(), before + 1, "what is urgent is not shut out");
    }

    /// Whoever waits for room without a thread is woken by the take that makes it, or by the end.
    #[test]
    fn room_is_told_to_those_who_cannot_block() {
        let mut builder = crate::record::batch::BatchBuilder::new();
        let batch = builder.push(&[0; 1500]).unwrap().build().unwrap();
        let q = queue(None);
        let _ticket = q.push_batch_or_wait(&batch).unwrap().unwrap();
        let room = q.push_batch_or_wait(&batch).unwrap().unwrap_err();
        let another = q.push_batch_or_wait(&batch).unwrap().unwrap_err();
        assert!(room.poll().is_none());
        take(&q);
        assert!(room.poll().unwrap().is_ok() && another.poll().unwrap().is_ok());
        let _ticket = q.push_batch_or_wait(&batch).unwrap().unwrap();
        let room = q.push_batch_or_wait(&batch).unwrap().unwrap_err();
        q.close();
        assert_eq!(room.wait().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(q.push_batch_or_wait(&batch).unwrap_err().kind(), ErrorKind::Closed);

        let q = queue(Some(1600));
        q.check_room(1600).unwrap();
        let _ticket = q.push_batch_or_wait(&batch).unwrap().unwrap();
        assert_eq!(q.check_room(100).unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(q.push_batch_or_wait(&batch).unwrap_err().kind(), ErrorKind::Full);
    }

    /// 2^20 empty records pack into a few hundred bytes: a block of them overflowed its record count, and was
    /// acknowledged and unreadable.
    #[test]
    fn a_block_never_counts_more_records_than_it_can_say() {
        let limits = QueueLimits {
            block_bytes: 1 << 30,
            bytes: 1 << 30,
            appends: 1 << 20,
            capacity: None,
            inbox_bytes: 0,
        };
        let q = ProposalQueue::new(limits, 0);
        let entry = Entry { stamp: Stamp::default(), crc: 0, length: 40, count: 1 << 20 };
        for _ in 0..4097 {
            let _ticket = q.push(&Parts::Copy(&[&[0; 40]]), entry, WaitLimit::None).unwrap();
        }
        let counts: Vec<usize> = take(&q)
            .iter()
            .map(|item| if let Proposal::Data(g) = item { g.entries.len() } else { 0 })
            .collect();
        assert_eq!(counts, [4095, 2]);
    }

    /// Bytes on their way to the disk were counted as waiting and as used at once.
    #[test]
    fn what_is_taken_counts_once() {
        let q = queue(Some(1000));
        let _ticket = q.push_record(&[0; 400], Stamp::default(), WaitLimit::None).unwrap();
        take(&q);
        assert_eq!(
            q.push_record(&[0; 600], Stamp::default(), WaitLimit::None).unwrap_err().kind(),
            ErrorKind::Full
        );
        q.account(444, 512);
        let _ticket = q.push_record(&[0; 400], Stamp::default(), WaitLimit::None).unwrap();
    }

    #[test]
    fn batches_can_be_left_out() {
        let q = queue(None);
        for i in 0..4u8 {
            let _ticket = q.push_record(&[i; 10], Stamp::default(), WaitLimit::None).unwrap();
        }
        let Some(Proposal::Data(g)) = take(&q).pop() else { panic!() };
        let kept = g.into_pieces(Some(&mut |n| n % 2 == 1)).0.concat();
        assert_eq!(kept.len(), 2 * 54);
        assert_eq!((kept[45], kept[54 + 45]), (1, 3));
    }

    #[test]
    fn a_closed_queue_hands_out_the_rest_and_admits_nothing() {
        let q = queue(None);
        let _ticket = q.push_record(b"x", Stamp::default(), WaitLimit::None).unwrap();
        q.close();
        assert_eq!(take(&q).len(), 1);
        assert!(q.take(true).closed);
        let refused = q.push_record(b"x", Stamp::default(), WaitLimit::None);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }
}
