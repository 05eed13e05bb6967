//! The callers' side of the queue: appends and commands are admitted, wait for room, or are refused.

use super::block_builder::{BlockBuilder, Parts};
use super::log_turns::{KEPT_FOR_QUIET_LOGS, LogTurns};
use super::rates::Limited;
use super::{Command, Inner, Proposal, ProposalQueue, QueueLimits};
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOption;
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

fn bytes_of(batches: &[(LogNumber, &Batch)]) -> usize {
    batches.iter().map(|(_, batch)| batch.as_bytes().len()).sum()
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
        let logs = batches.iter().map(|(log, _)| *log);
        let inner = self.admit(logs, batches.len(), bytes_of(batches), wait_limit)?;
        Ok(self.place_together(inner, batches))
    }

    /// As [`Self::push_together`], for callers that must not block. The inner `Err` is as that of [`Self::push_batch_or_wait`].
    ///
    /// # Errors
    /// `Busy`: one of the logs has used up its rate.
    pub(crate) fn push_together_or_wait(
        &self,
        batches: &[(LogNumber, &Batch)],
    ) -> Result<Result<Vec<Ticket>, Ticket>> {
        let mut inner = self.lock();
        let logs = batches.iter().map(|(log, _)| *log);
        let is_admitted = self.is_admitted(&inner, logs.clone(), batches.len(), bytes_of(batches))?;
        if let Some(limited) = self.limit(&inner, logs) {
            return Err(limited.error());
        }
        if !is_admitted {
            return Ok(Err(Self::room_hook(&mut inner)));
        }
        Ok(Ok(self.place_together(inner, batches)))
    }

    /// Adds admitted batches that are appended together to one block.
    fn place_together(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        batches: &[(LogNumber, &Batch)],
    ) -> Vec<Ticket> {
        let bytes = bytes_of(batches);
        let records = batches.iter().map(|(_, batch)| batch.header().count).sum();
        let block_bytes = self.limits.block_bytes;
        let first = batches.iter().map(|(log, _)| inner.turns.first_block(*log)).max().unwrap_or(0);
        let at = Self::first_with_room(&mut inner, first, |turns, number, block| {
            let most = batches.iter().map(|(log, _)| turns.block_bytes(*log, bytes, number, block_bytes));
            let most = most.min().unwrap_or(block_bytes);
            block.has_room_together(batches.len(), bytes, records, most)
        });
        let number = inner.front + at as u64;
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
        for (log, batch) in batches {
            inner.turns.add(*log, batch.header().length as usize, number, block_bytes);
        }
        for (log, batch) in batches {
            self.spend(&mut inner, *log, batch.as_bytes().len());
        }
        self.signal(inner);
        tickets
    }

    /// A ticket that succeeds when the writer next takes appends, and fails when the queue is closed.
    fn room_hook(inner: &mut Inner) -> Ticket {
        inner.room_hooks.get_or_insert_with(Completer::new).ticket(0, 0, 0)
    }

    /// As [`Self::push_batch`], for callers that must not block. The inner `Err` is a ticket to wait for before
    /// trying again. It succeeds when the writer next takes appends, and fails when the queue is closed.
    ///
    /// # Errors
    /// `Busy`: the log has used up its rate.
    pub(crate) fn push_batch_or_wait(&self, log: LogNumber, batch: &Batch) -> Result<Result<Ticket, Ticket>> {
        let mut inner = self.lock();
        let is_admitted =
            self.is_admitted(&inner, std::iter::once(log), 1, batch.header().length as usize)?;
        if let Some(limited) = self.limit(&inner, std::iter::once(log)) {
            return Err(limited.error());
        }
        if !is_admitted {
            return Ok(Err(Self::room_hook(&mut inner)));
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
        let inner = self.admit(std::iter::once(log), 1, header.length as usize, wait_limit)?;
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
            let number = inner.front + at as u64;
            inner.turns.add(log, header.length as usize, number, self.limits.block_bytes);
        }
        inner.appends += 1;
        self.spend(&mut inner, log, header.length as usize);
        self.signal(inner);
        ticket
    }

    /// The item that takes a batch: the last block if that has room, or a new one. For a log of a shared group: the first
    /// block with room, but none before the log's last one.
    fn block_for(&self, inner: &mut Inner, log: LogNumber, header: &BatchHeader) -> usize {
        let block_bytes = self.limits.block_bytes;
        if log.is_none() {
            let has_room = inner.items.back().is_some_and(|item| match item {
                Proposal::Data(block) => block.has_room(log, header, block_bytes),
                Proposal::Command(..) => false,
            });
            return if has_room { inner.items.len() - 1 } else { Self::new_block(inner) };
        }
        let first = inner.turns.first_block(log);
        Self::first_with_room(inner, first, |turns, number, block| {
            let most = turns.block_bytes(log, header.length as usize, number, block_bytes);
            block.has_room(log, header, most)
        })
    }

    /// The first block that has room, from number `first` on and behind all commands of the group, or a new one.
    fn first_with_room(
        inner: &mut Inner,
        first: u64,
        has_room: impl Fn(&LogTurns, u64, &BlockBuilder) -> bool,
    ) -> usize {
        let first = first.max(inner.behind_commands).max(inner.front);
        let skipped = (first - inner.front) as usize;
        let mut blocks = inner.items.range(skipped..).zip(first..);
        let found = blocks.position(|(item, number)| match item {
            Proposal::Data(block) => has_room(&inner.turns, number, block),
            Proposal::Command(..) => false,
        });
        found.map_or_else(|| Self::new_block(inner), |n| skipped + n)
    }

    /// Adds an empty block, which takes any batch. Returns its number.
    fn new_block(inner: &mut Inner) -> usize {
        let buffer = inner.spare.pop().unwrap_or_default();
        inner.items.push_back(Proposal::Data(BlockBuilder::new(buffer)));
        inner.items.len() - 1
    }

    /// Admits a command. It keeps its order with the appends of its log, or of all logs if it is of the group: `log` is
    /// none then. Commands never wait for room in the queue. A discard needs no capacity.
    pub(crate) fn push_command(&self, log: LogNumber, command: Command) -> Result<Ticket> {
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
        let at = inner.front + inner.items.len() as u64;
        inner.items.push_back(Proposal::Command(log, command, completer));
        if log.is_none() {
            inner.behind_commands = at + 1;
        } else {
            inner.turns.add_command(log, at);
        }
        self.signal(inner);
        Ok(ticket)
    }

    /// Fails if an append of `length` bytes to this log would be refused now.
    ///
    /// # Errors
    /// `Full`: `length` more bytes would exceed the capacity, or the log is full. If the queue is closed: the reason.
    pub(crate) fn check_room(&self, log: LogNumber, length: usize) -> Result<()> {
        let inner = self.lock();
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        self.check_full(&inner, std::iter::once(log))?;
        self.check_capacity(&inner, length)
    }

    /// # Errors
    /// `Full`: one of these logs is full, and this replica leads.
    fn check_full(&self, inner: &Inner, mut logs: impl Iterator<Item = LogNumber>) -> Result<()> {
        if inner.full.is_empty() || !self.leads.load(Ordering::Relaxed) {
            return Ok(());
        }
        let full = logs.find_map(|log| inner.full.get(&log).map(|capacity| (log, capacity)));
        let Some((log, capacity)) = full else { return Ok(()) };
        let what = format!(
            "the log is full: its option {} lets it keep {capacity} bytes (it is log {log} of its group); discard records or \
             raise the option",
            LogOption::CapacityBytes
        );
        Err(Error::of_one_log(ErrorKind::Full, what))
    }

    fn check_capacity(&self, inner: &Inner, length: usize) -> Result<()> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let used = self.used() + (inner.bytes + inner.comes_into_blocks() + length) as u64;
        if used <= capacity {
            return Ok(());
        }
        let what = format!(
            "the log is full: it would hold {used} bytes with this append, and its capacity is {capacity}; discard \
             records or raise the capacity (option capacity_bytes, of commands --capacity)"
        );
        Err(Error::new(ErrorKind::Full, what))
    }

    /// Whether `count` more appends of `length` bytes to these logs may wait. Logs of a shared group with little in the queue may
    /// use what is kept for such logs.
    fn is_admitted(
        &self,
        inner: &Inner,
        mut logs: impl Iterator<Item = LogNumber> + Clone,
        count: usize,
        length: usize,
    ) -> Result<bool> {
        if let Some(error) = &inner.refused {
            return Err(error.clone());
        }
        self.check_full(inner, logs.clone())?;
        self.check_capacity(inner, length)?;
        let QueueLimits { bytes, appends, block_bytes, .. } = self.limits;
        let fits = |bytes, appends| inner.bytes + length <= bytes && inner.appends + count <= appends;
        if fits(bytes, appends) || inner.appends == 0 {
            return Ok(true);
        }
        let kept = |limit: usize| limit + limit / KEPT_FOR_QUIET_LOGS;
        Ok(fits(kept(bytes), kept(appends))
            && logs.all(|log| !log.is_none() && inner.turns.has_little(log, length, block_bytes)))
    }

    /// Of these logs one that has used up its rate.
    fn limit(&self, inner: &Inner, logs: impl Iterator<Item = LogNumber>) -> Option<Limited> {
        inner.rates.limit(logs).filter(|_| self.leads.load(Ordering::Relaxed))
    }

    fn spend(&self, inner: &mut Inner, log: LogNumber, bytes: usize) {
        if self.leads.load(Ordering::Relaxed) {
            inner.rates.spend(log, bytes);
        }
    }

    /// Blocks until `count` more appends of `length` bytes may wait, and the rates of their logs allow them. Returns with the
    /// lock held.
    fn admit(
        &self,
        logs: impl Iterator<Item = LogNumber> + Clone,
        count: usize,
        length: usize,
        wait_limit: WaitLimit,
    ) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        let mut deadline = None;
        loop {
            let is_admitted = self.is_admitted(&inner, logs.clone(), count, length)?;
            let limited = self.limit(&inner, logs.clone());
            if is_admitted && limited.is_none() {
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
            // Waiting is pointless if the time is not enough.
            if let Some(limited) = limited.as_ref().filter(|limited| limited.wait >= left) {
                return Err(limited.error());
            }
            if left.is_zero() {
                let what = format!(
                    "the queue of appends is full ({} appends, {} bytes); try again, or raise queue_bytes_max or queue_appends_max",
                    inner.appends, inner.bytes
                );
                return Err(Error::new(ErrorKind::Busy, what));
            }
            if let Some(limited) = limited.filter(|_| is_admitted) {
                let waited = self.rate.wait_timeout(inner, limited.wait);
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            inner.room_waiters += 1;
            let (guard, _) = self.room.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner);
            inner = guard;
            inner.room_waiters -= 1;
        }
    }
}
