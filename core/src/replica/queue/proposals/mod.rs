//! Proposal queue: appends wait here for the writer. Callers copy into the block that is being filled; the writer takes
//! everything that waits, or of a shared group one turn.
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
//! Logs of a shared group are kept fair. A batch gets into the first block with room for its log that is not before the
//! log's last one, ahead of what other logs have queued. Each block keeps some room for logs that have little there, and
//! so does the queue (`log_turns.rs`). The writer takes a block of theirs at a time, so that the rest of a backlog stays
//! in the queue. The order within a log never changes, and no append overtakes a command of its log or of the group.
//!
//! Invariants:
//! - at most `queue_bytes_max` bytes and `queue_appends_max` appends wait, and in a shared group an eighth more of logs with
//!   little there (one batch may always wait alone);
//! - no append is admitted while its log has used up its rate;
//! - no append is admitted that would exceed the capacity, counted with all appends that wait (but without the headers
//!   of their blocks: some hundred bytes each);
//! - the writer answers everything that it takes, with a result or an error;
//! - a batch of a shared group is taken after as many turns of the writer as there were blocks before its own when it
//!   came: nothing goes before a block that waits.

mod admit;
mod block_builder;
mod log_turns;
mod rates;

pub(crate) use admit::WaitLimit;
pub(crate) use block_builder::{BlockBuilder, StoredAt};

use crate::error::{Error, Result};
use crate::options::log_options::LogOptions;
use crate::read::positions::closed;
use crate::replica::queue::inbox::InboxEvent;
use crate::store::format::objects::StoredObject;
use crate::store::segment::Base;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{Index, LogNumber, SessionId, Timestamp};
use atomic::{AtomicBool, AtomicU64, Ordering};
use bytes::{Bytes, BytesMut};
use log_turns::LogTurns;
#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
use rates::Rates;
use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic};
use std::time::{Duration, Instant};

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
    /// Opens a session on a log, named after this entry's raft index, that may be idle for this long.
    OpenSession { log: LogNumber, idle_max_ms: u64 },
    /// Closes the session: it will not be used again.
    CloseSession { id: SessionId },
    /// From now on these are the options that are set for the directory's own log, or for the whole group, and no others.
    SetOptions(LogOptions),
    /// Changes a log of a shared group.
    Log(LogCommand),
    /// Opens a log of a shared group, from record 1 on, if the log `after` was opened before it: logs that are opened together come in
    /// order, or not at all. Written as [`LogCommand::Open`].
    OpenAfter { log: LogNumber, after: LogNumber },
    /// Opens a log of a shared group that was deleted before it was open, and drops it at once: none of its number can be opened any more.
    /// Two entries.
    PassOver { log: LogNumber },
    /// Changes the objects of the log.
    Object(ObjectCommand),
}

/// A change of the objects of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectCommand {
    /// The entries from `begin` to `end` are object `number` from now on. `timestamp`: of its last entry. `first`: the log's
    /// first record at the leader; a replica that skipped entries may not know it.
    Cut { number: u64, begin: Base, end: Base, timestamp: Timestamp, first: Index },
    /// The object is in the object store, durably.
    Stored { number: u64, object: StoredObject },
    /// The rows of the objects below this number are in the opening of object `holder` alone from now on, from this offset in its file on,
    /// and have this checksum.
    MoveRows { below: u64, holder: u64, offset: u32, crc: u32 },
    /// The records of all objects below `number`, whose rows are elsewhere, are discarded. The object begins at `begin`. `bytes`: the sizes
    /// of those before it, together.
    Begin { number: u64, begin: Base, bytes: u64 },
}

/// A change of one log of a shared group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogCommand {
    /// The log exists from now on; its first record will be this one.
    Open { log: LogNumber, start: Index },
    /// It takes no more appends.
    Seal { log: LogNumber },
    /// It is gone, with its records and sessions.
    Drop { log: LogNumber },
    /// Records below `first` are no longer needed. Beyond the end: the log continues at `first`.
    Discard { log: LogNumber, first: Index },
    /// From now on these are the options that are set for the log, and no others.
    SetOptions { log: LogNumber, options: LogOptions },
}

impl Command {
    /// Whether it makes room, or leads to it: a discard, or options of the log. A log of a shared group is dropped only once.
    pub(crate) fn makes_room(self) -> bool {
        matches!(
            self,
            Self::Discard { .. }
                | Self::SetOptions(_)
                | Self::PassOver { .. }
                | Self::Log(LogCommand::Drop { .. })
        )
    }

    /// Whether it can lead to room, and can follow without end: files go once all logs of a shared group have left them, and this is a
    /// discard of one of them, or its options.
    pub(crate) fn may_lead_to_room(self) -> bool {
        matches!(self, Self::Log(LogCommand::Discard { .. } | LogCommand::SetOptions { .. }))
    }

    /// Whether it comes from the queue alone, and appends depend on it: it opens or closes a session, or opens, seals or drops a log of a
    /// group.
    pub(crate) fn is_of_queue(&self) -> bool {
        let of_log = |command: &LogCommand| {
            matches!(command, LogCommand::Open { .. } | LogCommand::Seal { .. } | LogCommand::Drop { .. })
        };
        match self {
            Self::OpenSession { .. }
            | Self::CloseSession { .. }
            | Self::OpenAfter { .. }
            | Self::PassOver { .. } => true,
            Self::Log(command) => of_log(command),
            Self::Discard { .. } | Self::SetOptions(_) | Self::Object(_) => false,
        }
    }
}

impl LogCommand {
    /// Whether its caller waits for the commit alone, also with the durability class `object`: the catalogue says that the log exists, or
    /// does not, and a group that comes back is made to follow it.
    pub(crate) fn follows_catalogue(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Drop { .. })
    }

    /// The log that it changes.
    pub(crate) fn log(self) -> LogNumber {
        match self {
            Self::Open { log, .. }
            | Self::Seal { log }
            | Self::Drop { log }
            | Self::Discard { log, .. }
            | Self::SetOptions { log, .. } => log,
        }
    }
}

/// A proposal that the writer takes.
#[derive(Debug)]
pub(crate) enum Proposal {
    Data(BlockBuilder),
    /// The log that it is of; none if it is of the group.
    Command(LogNumber, Command, Completer),
}

/// The events that waited, and the proposals of one turn.
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
    /// Where callers wait until the rate of their log allows an append.
    rate: Condvar,
    /// Whether this replica leads: rates are the leader's.
    leads: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    items: VecDeque<Proposal>,
    events: VecDeque<InboxEvent>,
    inbox_bytes: usize,
    bytes: usize,
    appends: usize,
    commands: usize,
    /// The logs of a shared group that have batches in the queue.
    turns: LogTurns,
    /// The logs whose rates are limited.
    rates: Rates,
    /// The logs of a shared group that are full, each with its capacity in bytes.
    full: HashMap<LogNumber, u64>,
    /// The number of the first item in the queue; the items are numbered in order.
    front: u64,
    /// The number of the item after the last command of the group.
    behind_commands: u64,
    /// Bytes that the writer took and that are neither counted in `used` nor refused yet.
    taken: usize,
    /// Of these, bytes that do not come into blocks, because they go to an object store.
    elsewhere: usize,
    /// Of these, bytes of which the writer says in a moment that they go there, too.
    untold: usize,
    /// It says so of blocks of logs of a shared group, or of the others. None: of no block.
    tells_elsewhere: Option<bool>,
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
    /// Moves what the writer takes now to `items`: everything, or of a shared group as much as is one turn.
    fn take_items(&mut self, items: &mut VecDeque<Proposal>, block_bytes: usize) {
        if self.turns.is_empty() {
            self.taken += std::mem::take(&mut self.bytes);
            self.untold = self.items.iter().map(|item| self.goes_elsewhere(item)).sum();
            (self.appends, self.commands) = (0, 0);
            self.front += self.items.len() as u64;
            *items = std::mem::take(&mut self.items);
            return;
        }
        let most = self.turns.turn_bytes(self.front, block_bytes);
        let mut taken = 0;
        self.untold = 0;
        while let Some(item) = self.items.front() {
            self.untold += match item {
                Proposal::Data(block) if taken > 0 && taken + block.bytes > most => break,
                item => self.goes_elsewhere(item),
            };
            match item {
                Proposal::Data(block) => {
                    taken += block.bytes;
                    self.appends -= block.batches.len();
                    self.turns.take(block);
                }
                Proposal::Command(log, ..) => {
                    self.commands -= 1;
                    self.turns.take_command(*log);
                }
            }
            self.front += 1;
            items.extend(self.items.pop_front());
        }
        self.bytes -= taken;
        self.taken += taken;
    }

    /// The bytes of a proposal of which the writer will say that they go to an object store.
    fn goes_elsewhere(&self, item: &Proposal) -> usize {
        match (item, self.tells_elsewhere) {
            (Proposal::Data(block), Some(is_mixed)) => block.beyond_references(is_mixed).unwrap_or(0),
            _ => 0,
        }
    }

    /// Bytes that were taken and will be in blocks.
    fn comes_into_blocks(&self) -> usize {
        self.taken.saturating_sub(self.elsewhere + self.untold)
    }

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

impl ProposalQueue {
    pub(crate) fn new(limits: QueueLimits, used: u64) -> Self {
        Self {
            limits,
            capacity: AtomicU64::new(limits.capacity.unwrap_or(u64::MAX)),
            used: AtomicU64::new(used),
            inner: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            rate: Condvar::new(),
            leads: AtomicBool::new(true),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Takes the events that wait, and one turn of appends and commands if the argument is true. Never blocks.
    pub(crate) fn take(&self, accepts_proposals: bool) -> Work {
        let mut inner = self.lock();
        (inner.unattended, inner.accepts_proposals, inner.due) = (false, accepts_proposals, false);
        inner.inbox_bytes = 0;
        let closed = inner.refused.is_some();
        let mut work = Work { items: VecDeque::new(), events: std::mem::take(&mut inner.events), closed };
        let mut room = None;
        if accepts_proposals {
            inner.take_items(&mut work.items, self.limits.block_bytes);
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

    /// Limits the bytes that are appended to a log in a second; 0 is the directory's own. `None`: no limit.
    pub(crate) fn set_rate(&self, log: LogNumber, bytes_per_second: Option<u64>) {
        self.lock().rates.set(log, bytes_per_second, Instant::now());
        self.rate.notify_all(); // some may have to wait no longer
    }

    /// The log of a shared group keeps this many bytes, its own capacity, and takes no more. `None`: it has room.
    pub(crate) fn set_full(&self, log: LogNumber, capacity: Option<u64>) {
        let mut inner = self.lock();
        match capacity {
            Some(capacity) => drop(inner.full.insert(log, capacity)),
            None => drop(inner.full.remove(&log)),
        }
    }

    /// How many logs of a shared group are full.
    pub(crate) fn full_logs(&self) -> usize {
        self.lock().full.len()
    }

    /// Whether this replica leads. Only then rates and capacities of single logs hold. A new leader begins with what a second allows.
    pub(crate) fn set_leads(&self, leads: bool) {
        if self.leads.load(Ordering::Relaxed) != leads {
            let mut inner = self.lock();
            self.leads.store(leads, Ordering::Relaxed);
            inner.rates.forgive(Instant::now());
            self.rate.notify_all();
        }
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

    /// The writer says of the bytes that it takes how many go to an object store: of blocks of logs of a shared group, or of the others; None:
    /// of no block. Until it has said so, those do not count towards the capacity of which it will say so: an append would be refused
    /// as if they came into the log. All others count.
    pub(crate) fn tells_elsewhere(&self, of_mixed: Option<bool>) {
        let mut inner = self.lock();
        (inner.tells_elsewhere, inner.untold) = (of_mixed, 0);
    }

    /// Of the bytes that were taken, this many more go to an object store: they do not count towards the capacity.
    pub(crate) fn goes_elsewhere(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.elsewhere += bytes;
        inner.untold = 0;
    }

    /// This many of these were stored there, or refused.
    pub(crate) fn went_elsewhere(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.elsewhere = inner.elsewhere.saturating_sub(bytes);
        inner.taken = inner.taken.saturating_sub(bytes);
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
        self.rate.notify_all();
        if let Some(room) = room {
            room.answer(Outcome::Failed(error));
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
