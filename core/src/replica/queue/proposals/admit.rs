//! The callers' side of the queue: appends and commands are admitted, wait for room, or are refused.

use super::block_builder::{BlockBuilder, Parts};
use super::{Command, Inner, Proposal, ProposalQueue, QueueLimits};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{Batch, BatchHeader, SingleFrame, Stamp};
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use crate::types::LogNumber;
#[cfg(loom)]
use loom::sync::MutexGuard;
#[cfg(not(loom))]
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Batches above this size are not copied under the lock.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// The bytes that a command's block takes in the file.
const COMMAND_BYTES_STORED: usize = 128;
/// The maximum number of commands that wait. A caller can give up its wait, so the number of callers does not bound
/// them.
pub(super) const COMMANDS_MAX: usize = 64 << 10;

/// The part of a block, and of the queue, that is kept for logs of a shared group that have nothing in the queue: an
/// eighth.
const KEPT_FOR_QUIET_LOGS: usize = 8;

/// How long an append waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    None,
    For(Duration),
}

/// A small batch is copied into the block's buffer; a large one is shared.
fn parts_of(batch: &Batch) -> Parts<'_> {
    let bytes = batch.as_bytes();
    if bytes.len() > COPIED_BYTES_MAX { Parts::Own(bytes) } else { Parts::Copy([bytes, &[], &[]]) }
}

impl ProposalQueue {
    /// Admits one record, whose size the caller has checked.
    pub(crate) fn push_record(
        &self,
        log: LogNumber,
        record: &[u8],
        stamp: Stamp,
        wait_limit: WaitLimit,
    ) -> Result<Ticket> {
        let SingleFrame { head, tail, header } = SingleFrame::new(record, stamp);
        let parts = [&head[..], record, &tail];
        if header.length as usize > COPIED_BYTES_MAX {
            return self.push(log, &Parts::Own(&parts.concat().into()), &header, wait_limit);
        }
        self.push(log, &Parts::Copy(parts), &header, wait_limit)
    }

    /// Admits a ready-made batch, whose size the caller has checked.
    pub(crate) fn push_batch(&self, log: LogNumber, batch: &Batch, wait_limit: WaitLimit) -> Result<Ticket> {
        self.push(log, &parts_of(batch), batch.header(), wait_limit)
    }

    /// Admits batches of several logs of a shared group that are appended together: all of them, or none. The caller has
    /// checked that a block has room for all.
    pub(crate) fn push_together(
        &self,
        batches: &[(LogNumber, &Batch)],
        wait_limit: WaitLimit,
    ) -> Result<Vec<Ticket>> {
        let bytes = batches.iter().map(|(_, batch)| batch.as_bytes().len()).sum();
        let records = batches.iter().map(|(_, batch)| batch.header().count).sum();
        let mut inner = self.admit(LogNumber::OWN, bytes, wait_limit)?;
        let has_room = inner.items.back().is_some_and(|item| match item {
            Proposal::Data(block) => {
                block.has_room_together(batches.len(), bytes, records, self.limits.block_bytes)
            }
            Proposal::Command(..) => false,
        });
        let at = if has_room { inner.items.len() - 1 } else { Self::new_block(&mut inner) };
        let last = inner.front + at as u64;
        let Some(Proposal::Data(block)) = inner.items.get_mut(at) else {
            unreachable!("a block was found or made")
        };
        let before = block.bytes;
        let push = |(log, batch): &(LogNumber, &Batch)| block.push(*log, &parts_of(batch), batch.header());
        let tickets = batches.iter().map(push).collect();
        block.tie_last(batches.len());
        let added = block.bytes - before;
        inner.bytes += added;
        inner.appends += batches.len();
        inner.waiting.extend(batches.iter().map(|(log, _)| (*log, last)));
        self.signal(inner);
        Ok(tickets)
    }

    /// As [`Self::push_batch`], for callers that must not block. The inner `Err` is a ticket to wait for before
    /// trying again. It succeeds when the writer next takes appends, and fails when the queue is closed.
    pub(crate) fn push_batch_or_wait(&self, log: LogNumber, batch: &Batch) -> Result<Result<Ticket, Ticket>> {
        let mut inner = self.lock();
        if !self.is_admitted(&inner, log, batch.header().length as usize)? {
            let room = inner.room_hooks.get_or_insert_with(Completer::new);
            return Ok(Err(room.ticket(0, 0, 0)));
        }
        Ok(Ok(self.place(inner, log, &parts_of(batch), batch.header())))
    }

    pub(super) fn push(
        &self,
        log: LogNumber,
        parts: &Parts<'_>,
        header: &BatchHeader,
        wait_limit: WaitLimit,
    ) -> Result<Ticket> {
        let inner = self.admit(log, header.length as usize, wait_limit)?;
        Ok(self.place(inner, log, parts, header))
    }

    /// Adds an admitted batch to the block that is being filled.
    fn place(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        log: LogNumber,
        parts: &Parts<'_>,
        header: &BatchHeader,
    ) -> Ticket {
        let at = self.block_for(&mut inner, log, header);
        let Some(Proposal::Data(gathering)) = inner.items.get_mut(at) else {
            unreachable!("a block was found there, or just pushed")
        };
        let before = gathering.bytes;
        let ticket = gathering.push(log, parts, header);
        let added = gathering.bytes - before;
        inner.bytes += added;
        if !log.is_none() {
            let last = inner.front + at as u64;
            inner.waiting.insert(log, last);
        }
        inner.appends += 1;
        self.signal(inner);
        ticket
    }

    /// The item that takes a batch: the last block if that has room, or a new one. For a log of a shared group with
    /// nothing in the queue: the first block with room, but none before a command.
    fn block_for(&self, inner: &mut Inner, log: LogNumber, header: &BatchHeader) -> usize {
        let block_bytes = self.limits.block_bytes;
        let kept = if log.is_none() { 0 } else { block_bytes / KEPT_FOR_QUIET_LOGS };
        let is_data = |item: &Proposal| matches!(item, Proposal::Data(_));
        let takes = |item: &Proposal, bytes: usize| match item {
            Proposal::Data(block) => block.has_room(log, header, bytes),
            Proposal::Command(..) => false,
        };
        if !log.is_none() && !inner.waiting.contains_key(&log) {
            let begin = inner.items.iter().rposition(|item| !is_data(item)).map_or(0, |n| n + 1);
            let found = inner.items.iter().skip(begin).position(|item| takes(item, block_bytes));
            if let Some(n) = found {
                return begin + n;
            }
        }
        let is_last = inner.items.back().is_some_and(|item| takes(item, block_bytes - kept));
        if is_last { inner.items.len() - 1 } else { Self::new_block(inner) }
    }

    /// Adds an empty block, which takes any batch. Returns its number.
    fn new_block(inner: &mut Inner) -> usize {
        let buffer = inner.spare.pop().unwrap_or_default();
        inner.items.push_back(Proposal::Data(BlockBuilder::new(buffer)));
        inner.items.len() - 1
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

    /// Whether `length` more bytes may wait. A log of a shared group with nothing in the queue may use what is kept for
    /// such logs.
    fn is_admitted(&self, inner: &Inner, log: LogNumber, length: usize) -> Result<bool> {
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        self.check_capacity(inner, length)?;
        let is_quiet = !log.is_none() && !inner.waiting.contains_key(&log);
        let more = |limit: usize| if is_quiet { limit / KEPT_FOR_QUIET_LOGS } else { 0 };
        let QueueLimits { bytes, appends, .. } = self.limits;
        let fits = inner.bytes + length <= bytes + more(bytes) && inner.appends < appends + more(appends);
        Ok(fits || inner.appends == 0)
    }

    /// Blocks until `length` more bytes may wait. Returns with the lock held.
    fn admit(&self, log: LogNumber, length: usize, wait_limit: WaitLimit) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        let mut deadline = None;
        loop {
            if self.is_admitted(&inner, log, length)? {
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
}
