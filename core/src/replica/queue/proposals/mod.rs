//! Proposal queue: appends wait here for the writer. Callers copy into the block that is being filled; the writer takes
//! everything that waits.
//!
//! ```text
//! caller 1 --\                                  pieces, batch list, one completion
//! caller 2 ---+--> [ block being filled ] ... [ full block ] --> take() --> writer thread
//! caller 3 --/       ^ one short lock
//! ```
//!
//! Checksums are computed before the lock is taken. A small batch is copied into the block's buffer under the lock. A
//! large one is added as a buffer of its own, so that the lock is never held for long.
//!
//! Invariants:
//! - at most `queue_bytes_max` bytes and `queue_appends_max` appends wait (one batch may always wait alone);
//! - no append is admitted that would exceed the capacity, counted with all appends that wait (but without the headers
//!   of their blocks: some hundred bytes each);
//! - the writer answers everything that it takes, with a result or an error.

mod block_builder;

pub(crate) use block_builder::{BlockBuilder, Entry};

use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::read::positions::closed;
use crate::record::batch::{Batch, SingleFrame, Stamp};
use crate::replica::queue::inbox::InboxEvent;
use crate::sync::completer::Completer;
use crate::sync::completion::{Outcome, Ticket};
use crate::types::{Index, SessionId};
use atomic::{AtomicU64, Ordering};
use block_builder::Parts;
use bytes::{Bytes, BytesMut};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
use std::collections::VecDeque;
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic};
use std::time::{Duration, Instant};

/// Batches above this size are not copied under the lock.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// The bytes that a command's block takes in the file.
const COMMAND_BYTES_STORED: usize = 128;
/// The maximum number of commands that wait. A caller can give up its wait, so the number of callers does not bound
/// them.
const COMMANDS_MAX: usize = 64 << 10;
/// Bytes that a message counts for in addition to its own, so that empty messages are bounded too.
const EVENT_BYTES_EACH: usize = 64;
/// The same for each piece of a message.
const PIECE_BYTES_EACH: usize = 32;
/// Bytes beyond the bound that urgent messages may take, so that queued entries do not keep heartbeats out.
const URGENT_INBOX_BYTES: usize = 1 << 20;
/// Buffers kept for the next blocks.
const SPARE_BUFFERS_MAX: usize = 4;

/// A change to the log itself, to be written as a block of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Records below `first` are no longer needed. Beyond the end: the log continues at `first`.
    Discard { first: Index },
    /// Opens a session, named after this entry's raft index, that may be idle for this long.
    OpenSession { idle_max_ms: u64 },
    /// Closes the session: it will not be used again.
    CloseSession { id: SessionId },
    /// From now on these are the options that are set for the log, and no others.
    SetOptions(LogOptions),
}

/// A proposal that the writer takes.
#[derive(Debug)]
pub(crate) enum Proposal {
    Data(BlockBuilder),
    Command(Command, Completer),
}

/// Everything that waited.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) items: VecDeque<Proposal>,
    pub(crate) events: VecDeque<InboxEvent>,
    /// The queue is closed: no further append will be admitted.
    pub(crate) closed: bool,
}

/// The limits of a queue, from [`crate::Options`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) block_bytes: usize,
    pub(crate) bytes: usize,
    pub(crate) appends: usize,
    /// In force until [`ProposalQueue::set_capacity`] replaces it.
    pub(crate) capacity: Option<u64>,
    /// The maximum bytes of messages that wait; further ones are dropped.
    pub(crate) inbox_bytes: usize,
}

/// The queue between callers and the writer.
#[derive(Debug)]
pub(crate) struct ProposalQueue {
    limits: QueueLimits,
    /// The maximum bytes of retained blocks.
    capacity: AtomicU64,
    /// Bytes of retained blocks. Changes under the lock, together with `taken`.
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
    /// Bytes that the writer took and that are neither counted in `used` nor refused yet.
    taken: usize,
    /// No awake thread will look at the queue: the next event has to wake one.
    unattended: bool,
    /// Whether the writer takes appends now.
    accepts_proposals: bool,
    /// The writer has more work than the queue holds.
    due: bool,
    room_waiters: usize,
    /// Answers callers that wait for room without blocking a thread.
    room_hooks: Option<Completer>,
    refused: Option<Error>,
    /// Messages are dropped: the writer has ended.
    stopped_receiving: bool,
    spare: Vec<BytesMut>,
    /// The number of wake-ups of a thread, for simulated threads.
    #[cfg(any(test, feature = "testing"))]
    calls: usize,
}

impl Inner {
    /// Whether the queue holds nothing that the writer takes now.
    fn is_idle(&self) -> bool {
        !self.due && self.events.is_empty() && (self.items.is_empty() || !self.accepts_proposals)
    }

    /// Whether the writer may sleep now. If so, the next event has to wake it.
    fn may_sleep(&mut self, timeout: Option<Duration>) -> bool {
        let may = self.is_idle() && self.refused.is_none() && timeout.is_none_or(|t| !t.is_zero());
        self.unattended |= may;
        may
    }
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

    /// As [`Self::push_batch`], for callers that must not block. `Err` is a ticket to wait for before trying again. It
    /// succeeds when the writer next takes the queue, and fails when the queue is closed.
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

    /// Adds an admitted batch to the block that is being filled.
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

    /// Admits a command. Commands keep their order with appends and never wait for room in the queue. A discard needs
    /// no capacity.
    pub(crate) fn push_command(&self, command: Command) -> Result<Ticket> {
        let mut inner = self.lock();
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        if let Command::OpenSession { .. } = command {
            self.check_capacity(&inner, COMMAND_BYTES_STORED)?;
        }
        if inner.commands >= COMMANDS_MAX {
            let what = format!("{COMMANDS_MAX} commands already wait; try again");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        inner.commands += 1;
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        inner.items.push_back(Proposal::Command(command, completer));
        self.signal(inner);
        Ok(ticket)
    }

    /// Adds an event to the inbox. Messages beyond the bound are dropped, and all messages once the writer has ended.
    /// Until then they are received even if the queue is closed: they decide the outcome of admitted appends.
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

    /// As [`Self::push_event`], for an event that has to be answered.
    ///
    /// # Errors
    /// The queue is closed: the error is the reason.
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
            #[cfg(any(test, feature = "testing"))]
            {
                inner.calls += 1;
            }
            drop(inner);
            self.work.notify_one();
        }
    }

    /// The start of [`Self::wait`] for a simulated thread: whether it sleeps now.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn falls_asleep(&self, timeout: Option<Duration>) -> bool {
        self.lock().may_sleep(timeout)
    }

    /// The number of wake-ups of a sleeping thread since the last call.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn take_calls(&self) -> usize {
        std::mem::take(&mut self.lock().calls)
    }

    /// Fails if an append of `length` bytes would be refused now.
    ///
    /// # Errors
    /// `Full`: `length` more bytes would exceed the capacity. If the queue is closed: the reason.
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
        let what = format!(
            "the log is full: it would hold {used} bytes with this append, and its capacity is {capacity}; discard \
             records or raise the capacity"
        );
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

    /// Blocks until `length` more bytes may wait. Returns with the lock held.
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
                    "the queue of appends is full ({} appends, {} bytes); try again, or raise queue_bytes_max or queue_appends_max",
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

    /// Blocks until the writer has something to do or the queue is closed, for at most `timeout`. May return earlier.
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

    /// The thread that takes the queue does other work for a while. Another thread in [`Self::wait`] is woken for what
    /// is in the queue now and for what is added later.
    pub(crate) fn leave(&self) {
        let mut inner = self.lock();
        inner.unattended = true;
        if !inner.is_idle() {
            self.signal(inner);
        }
    }

    /// Sets what ends [`Self::wait`] in addition to events: appends and commands, if the first argument is true. If the
    /// writer is `due`, [`Self::wait`] returns at once until the next [`Self::take`].
    pub(crate) fn expect(&self, accepts_proposals: bool, due: bool) {
        let mut inner = self.lock();
        (inner.accepts_proposals, inner.due) = (accepts_proposals, due);
    }

    /// Takes everything that waits; appends and commands only if the argument is true. Never blocks.
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
            room.answer(Outcome::Placed { first: Index(0) }); // runs the program's callbacks: not under the lock
        }
        work
    }

    /// Whether appends or commands wait.
    pub(crate) fn has_items(&self) -> bool {
        !self.lock().items.is_empty()
    }

    /// The number of appends that wait, their bytes, and the bytes that were taken and are not written yet.
    pub(crate) fn waiting(&self) -> (usize, usize, usize) {
        let inner = self.lock();
        (inner.appends, inner.bytes, inner.taken)
    }

    /// Replaces the capacity; None: no limit.
    pub(crate) fn set_capacity(&self, capacity: Option<u64>) {
        self.capacity.store(capacity.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes of retained blocks.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Of the bytes that were taken, `gathered` are now written as `stored` bytes, or refused.
    pub(crate) fn account(&self, gathered: usize, stored: u64) {
        let mut inner = self.lock();
        inner.taken = inner.taken.saturating_sub(gathered);
        self.used.fetch_add(stored, Ordering::Relaxed);
    }

    /// After a discard: sets the bytes of retained blocks.
    pub(crate) fn recount(&self, used: u64) {
        let _inner = self.lock();
        self.used.store(used, Ordering::Relaxed);
    }

    /// Returns the buffer of a written block, for reuse.
    pub(crate) fn reuse(&self, bytes: Bytes) {
        if let Ok(mut buffer) = bytes.try_into_mut() {
            buffer.clear();
            let mut inner = self.lock();
            if inner.spare.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= 2 * self.limits.block_bytes {
                inner.spare.push(buffer);
            }
        }
    }

    /// Admits nothing more. The writer still takes what was admitted.
    pub(crate) fn close(&self) {
        self.refuse(closed());
    }

    /// Drops messages from now on: no thread takes them any more.
    pub(crate) fn stop_receiving(&self) {
        self.lock().stopped_receiving = true;
    }

    /// Admits nothing more, for this reason. The first reason is kept.
    pub(crate) fn refuse(&self, error: Error) {
        let mut inner = self.lock();
        let error = inner.refused.get_or_insert(error).clone();
        let room = inner.room_hooks.take();
        #[cfg(any(test, feature = "testing"))]
        {
            inner.calls += 2; // the number of threads of a replica
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
    fn appends_fill_blocks_of_bounded_size_in_order() {
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
    fn full_queue_returns_busy_and_full_log_returns_full() {
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

    /// A caller can give up its wait, so the number of callers does not bound what it left in the queue.
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
        assert!((2..100).contains(&wait()), "empty messages are bounded: {}", wait());
        let before = wait();
        q.push_event(message(0, true));
        assert_eq!(wait(), before + 1, "an urgent message is not kept out");
    }

    /// A caller that waits for room without a thread is notified by the take that makes room, or by the close.
    #[test]
    fn callers_that_cannot_block_are_notified_of_room() {
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

    /// 2^20 empty records take a few hundred bytes. A block of such batches overflowed its record count: it was
    /// acknowledged and could not be read.
    #[test]
    fn block_never_overflows_its_record_count() {
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

    /// Bytes on their way to the disk were counted twice: as waiting and as used.
    #[test]
    fn taken_bytes_count_once() {
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
    fn closed_queue_returns_the_rest_and_admits_nothing() {
        let q = queue(None);
        let _ticket = q.push_record(b"x", Stamp::default(), WaitLimit::None).unwrap();
        q.close();
        assert_eq!(take(&q).len(), 1);
        assert!(q.take(true).closed);
        let refused = q.push_record(b"x", Stamp::default(), WaitLimit::None);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }
}
