//! Read: committed records from an index on, for ever. The client pulls: there is one reply in memory at a time, made
//! when the connection has room for it.
//!
//! ```text
//! batches as they stand in the log ──> what the reply will take ──> paid ──> unpacked, put into bytes
//!          no memory                    in memory is known            │ waits while others go on
//! ```
//!
//! Invariants: entries are consecutive from the index asked for; a reply that has an entry is never delayed to gather
//! more; nothing is unpacked before its memory is paid for, nor on a thread of the runtime unless it is small.

use super::reply::{ENTRY_BYTES, Part, Reply};
use super::{Limits, LogspecService, about_to_end};
use crate::accounts::{Payer, Resource};
use crate::gauges::{Counted, Open};
use crate::proto::logspec::ReadRequest;
use crate::verbatim::{Answers, Memory, ahead, pay, settle};
use chiplog::{ErrorKind, Index, Log, ReadMode, Reader, RecordBatch, Start, StoredBatch};
use futures_util::stream;
use std::future::poll_fn;
use std::sync::Arc;
use tonic::Status;

/// What is unpacked on a thread of the runtime.
const UNPACKED_AT_ONCE_MAX: usize = 64 << 10;

impl LogspecService {
    /// The stream of replies to a read, whose memory `payer` pays for.
    pub(super) fn replies(&self, request: &ReadRequest, payer: Arc<Payer>) -> Result<Answers<Reply>, Status> {
        let log = self.log()?.clone();
        let reading = Reading {
            is_mapped: log.options().read_mode == ReadMode::Map,
            service: self.clone(),
            log,
            payer,
            next: Index(request.next_index),
            reader: None,
            at_tail: false,
            rest: None,
            over: false,
        };
        let replies = stream::unfold(reading, |mut reading| async {
            reading.next().await.map(|reply| (reply, reading))
        });
        Ok(Box::pin(Counted::new(Box::pin(replies), self.host.gauges(), Open::Reads)))
    }
}

struct Reading {
    service: LogspecService,
    log: Log,
    payer: Arc<Payer>,
    /// Batches are places in a mapping, and take no memory.
    is_mapped: bool,
    /// The next record to be given.
    next: Index,
    /// None: not begun, or lent to a thread that may wait for the disk.
    reader: Option<Reader>,
    /// Whether what comes next was just written, and so is in memory.
    at_tail: bool,
    /// What was read and not given yet.
    rest: Option<Rest>,
    over: bool,
}

/// A batch of which records are still to be given.
enum Rest {
    /// Not unpacked yet, if it is packed.
    Stored(StoredBatch),
    /// Unpacked, and paid for.
    Unpacked(RecordBatch, Memory),
}

impl Reading {
    async fn next(&mut self) -> Option<Result<Reply, Status>> {
        if self.over {
            return None;
        }
        let host = self.service.host.clone();
        let read = tokio::select! {
            biased;
            () = host.drained() => Err(about_to_end()),
            read = self.read() => read,
        };
        let reply = match read {
            Ok(reply) => Ok(reply),
            Err(error) if error.kind() == ErrorKind::Discarded => Ok(Reply::Truncated),
            Err(error) => Err(self.service.host.status_of(&error)),
        };
        self.over = !matches!(reply, Ok(Reply::Entries { .. }));
        Some(reply)
    }

    /// The next entries; at least one.
    async fn read(&mut self) -> chiplog::Result<Reply> {
        let limits = self.service.limits.clone();
        loop {
            match self.rest.take() {
                Some(Rest::Unpacked(batch, memory)) => return Ok(self.of_unpacked(batch, memory, &limits)),
                Some(Rest::Stored(stored)) if stored.unpacked_bytes() > 0 => {
                    let (batch, memory) = self.unpack(stored, &limits).await?;
                    return Ok(self.of_unpacked(batch, memory, &limits));
                }
                rest => self.rest = rest,
            }
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => self.begin().await?,
            };
            let ahead =
                if self.is_mapped { None } else { Some(ahead(&self.payer, limits.reply_bytes).await) };
            let mut gathering = Gathering::new(self.next, self.rest.take());
            let gathered = if self.at_tail {
                gathering.gather(&mut reader, &limits)
            } else {
                let (turn, limits) = (self.payer.take(Resource::Turns, 1).await, limits.clone());
                let work = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    let gathered = gathering.gather(&mut reader, &limits);
                    (gathered, gathering, reader)
                });
                let (gathered, lent);
                (gathered, gathering, lent) = work.await.map_err(gone)?;
                reader = lent;
                gathered
            };
            let more = gathered?;
            self.at_tail = !more;
            let Gathering { parts, rest, next, .. } = gathering;
            self.rest = rest;
            let ahead = ahead.filter(|_| !parts.is_empty());
            if parts.is_empty() && self.rest.is_none() {
                poll_fn(|context| reader.poll_more(context)).await?;
            }
            if !self.is_mapped {
                let _ = reader.seek(reader.position()); // lets go of the block that it has in memory
            }
            self.reader = Some(reader);
            if !parts.is_empty() {
                let memory = settle(&self.payer, ahead, self.bytes_of(&parts)).await;
                self.next = next;
                return Ok(Reply::Entries { parts, memory, is_in_memory: !self.is_mapped });
            }
            if let Some(Rest::Stored(stored)) = self.rest.take() {
                let (batch, memory) = self.unpack(stored, &limits).await?;
                return Ok(self.of_unpacked(batch, memory, &limits));
            }
        }
    }

    /// What a reply of batches that were not packed takes in memory.
    fn bytes_of(&self, parts: &[Part]) -> usize {
        let of = |part: &Part| match self.is_mapped {
            true => part.gathered_bytes(),
            false => part.gathered_bytes() + part.batch.payload().len(),
        };
        parts.iter().map(of).sum()
    }

    /// Unpacks a batch, with its memory and that of one reply of it at a time.
    async fn unpack(&self, stored: StoredBatch, limits: &Limits) -> chiplog::Result<(RecordBatch, Memory)> {
        let bytes = stored.unpacked_bytes();
        let entries = limits.reply_entries.min(stored.count() as usize);
        let reply = bytes.min(limits.reply_bytes) + ENTRY_BYTES * entries;
        let memory = pay(&self.payer, bytes + reply).await;
        if bytes <= UNPACKED_AT_ONCE_MAX {
            return Ok((stored.unpack()?, memory));
        }
        let turn = self.payer.take(Resource::Turns, 1).await;
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            stored.unpack().map(|batch| (batch, memory))
        });
        work.await.map_err(gone)?
    }

    /// A reply of what was unpacked; the rest waits for the next one.
    fn of_unpacked(&mut self, mut batch: RecordBatch, memory: Memory, limits: &Limits) -> Reply {
        batch.skip_to(self.next);
        let part = first_records(&batch, 0, 0, limits);
        self.next = batch.first().plus(part.records.end.into());
        if part.records.end < batch.count() {
            self.rest = Some(Rest::Unpacked(batch, memory.clone()));
        }
        Reply::Entries { parts: vec![part], memory, is_in_memory: true }
    }

    /// A reader at the first entry, once the log is as far.
    async fn begin(&self) -> chiplog::Result<Reader> {
        loop {
            match self.log.reader(Start::Index(self.next)) {
                Err(error) if error.kind() == ErrorKind::OutOfRange => {
                    let end = self.log.reader(Start::Next)?;
                    poll_fn(|context| end.poll_more(context)).await?;
                }
                begun => return begun,
            }
        }
    }
}

fn gone(panic: tokio::task::JoinError) -> chiplog::Error {
    chiplog::Error::new(ErrorKind::Io, format!("reading ended early: {panic}"))
}

/// Parts of a reply, from batches that are not packed.
struct Gathering {
    parts: Vec<Part>,
    entries: usize,
    bytes: usize,
    /// The next record to be given.
    next: Index,
    /// What was read and is not in the reply: what did not fit, or has to be unpacked.
    rest: Option<Rest>,
}

impl Gathering {
    fn new(next: Index, rest: Option<Rest>) -> Self {
        Self { parts: Vec::new(), entries: 0, bytes: 0, next, rest }
    }

    /// Takes what is there, up to a reply's worth. Tells whether there may be more to read at once.
    fn gather(&mut self, reader: &mut Reader, limits: &Limits) -> chiplog::Result<bool> {
        while self.entries < limits.reply_entries && self.bytes < limits.reply_bytes {
            let stored = match self.rest.take() {
                Some(Rest::Stored(stored)) => stored,
                Some(unpacked) => {
                    self.rest = Some(unpacked);
                    return Ok(true);
                }
                None => match reader.next_stored() {
                    Ok(Some(stored)) => stored,
                    Ok(None) => return Ok(false),
                    Err(error) if self.parts.is_empty() => return Err(error),
                    Err(_) => return Ok(true), // it is still there when the next reply is made
                },
            };
            if stored.unpacked_bytes() > 0 {
                self.rest = Some(Rest::Stored(stored));
                return Ok(true);
            }
            let mut batch = match stored.unpack() {
                Ok(batch) => batch,
                Err(error) if self.parts.is_empty() => return Err(error),
                Err(_) => {
                    self.rest = Some(Rest::Stored(stored));
                    return Ok(true);
                }
            };
            batch.skip_to(self.next);
            let part = first_records(&batch, self.entries, self.bytes, limits);
            let count = part.records.end;
            self.next = batch.first().plus(count.into());
            self.entries += count as usize;
            self.bytes +=
                (0..count).filter_map(|n| batch.get(n)).map(|r| r.data.len() + ENTRY_BYTES).sum::<usize>();
            if count < batch.count() {
                self.rest = Some(Rest::Stored(stored));
            }
            self.parts.push(part);
        }
        Ok(true)
    }
}

/// The records at the start of a batch that a reply takes which has so much already; at least one.
fn first_records(batch: &RecordBatch, mut entries: usize, mut bytes: usize, limits: &Limits) -> Part {
    let mut end = 0;
    while let Some(record) = batch.get(end)
        && (end == 0 || entries < limits.reply_entries && bytes < limits.reply_bytes)
    {
        (entries, bytes, end) = (entries + 1, bytes + record.data.len() + ENTRY_BYTES, end + 1);
    }
    Part { batch: batch.clone(), records: 0..end }
}
