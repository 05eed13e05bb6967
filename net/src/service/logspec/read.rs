//! Read: committed records from an index on, without an end. The client pulls: there is one reply in memory at a time,
//! made when the connection has room for it.
//!
//! ```text
//! batches as they are in the log ──> size of the reply ──> paid ──> decompressed, encoded
//!          no memory                    is known             │ waits while others continue
//! ```
//!
//! Invariants: entries are consecutive from the requested index. A reply with an entry is never delayed to collect
//! more. Nothing is decompressed before its memory is paid for; only small batches are decompressed on a runtime
//! thread. While a read waits for memory, it holds nothing that is not counted: batches that were read without a
//! mapping, and need more than was paid for, are dropped and read again.

use super::reply::{ENTRY_BYTES, Part, Reply};
use super::{Limits, LogspecService, about_to_end};
use crate::listener::auth::tokens::Payer;
use crate::listener::memory_budget::UNPACKED_AT_ONCE_MAX;
use crate::served::gauges::{Counted, Open};
use crate::served::log_slot::status_of;
use crate::service::blocking_work::run_blocking;
use crate::service::tail::{CameAt, Waiting, is_in_memory, may_refer, more};
use crate::service::zero_copy::{Answers, Memory, ahead, pay, settle};
use crate::wire::proto::logspec::ReadRequest;
use chiplog::{ErrorKind, Index, Log, ReadMode, Reader, RecordBatch, Start, StoredBatch};
use futures_util::stream;
use std::future::poll_fn;
use std::sync::Arc;
use tokio::time::sleep;
use tonic::Status;

/// Without a mapping, memory for this number of replies is taken before one is read: for its records, for copies of the
/// small ones, and for its last batch, which can exceed the limit.
const REPLIES_AHEAD: usize = 3;

impl LogspecService {
    /// Returns the stream of replies to a read of `log`; `payer` pays for their memory.
    pub(super) fn replies(&self, log: Log, request: &ReadRequest, payer: Arc<Payer>) -> Answers<Reply> {
        let reading = Reading {
            is_mapped: log.options().read_mode == ReadMode::Map,
            service: self.clone(),
            log,
            payer,
            next: Index(request.next_index),
            reader: None,
            came: None,
            rest: None,
            needed: 0,
            over: false,
        };
        let replies = stream::unfold(reading, |mut reading| async {
            reading.next().await.map(|reply| (reply, reading))
        });
        Box::pin(Counted::new(Box::pin(replies), self.host.gauges(), Open::Reads))
    }
}

struct Reading {
    service: LogspecService,
    log: Log,
    payer: Arc<Payer>,
    /// Batches in files are parts of a mapping, and take no memory.
    is_mapped: bool,
    /// The next record to be sent.
    next: Index,
    /// None: not started, or in use by a blocking thread.
    reader: Option<Reader>,
    /// At the tail, when the next records were written: new ones are in memory.
    came: Option<CameAt>,
    /// A batch that was read and not sent yet.
    rest: Option<Rest>,
    /// The memory that the next reply needs, or that the last one needed: the next one may need as much.
    needed: usize,
    over: bool,
}

/// A batch with records that were not sent yet.
enum Rest {
    /// Not decompressed yet, if it is compressed. A part of a mapping.
    Stored(StoredBatch),
    /// Decompressed, or read without a mapping; and paid for.
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
            Err(error) => Err(status_of(&self.log, &error)),
        };
        self.over = !matches!(reply, Ok(Reply::Entries { .. }));
        if let Ok(Reply::Entries { parts, .. }) = &reply {
            host.gauges().add_read_bytes(parts.iter().map(Part::data_bytes).sum::<usize>() as u64);
        }
        Some(reply)
    }

    /// Returns the next entries; at least one.
    async fn read(&mut self) -> chiplog::Result<Reply> {
        let limits = self.service.limits.clone();
        let mut waiting = Waiting::default();
        loop {
            match self.rest.take() {
                Some(Rest::Unpacked(batch, memory)) => return Ok(self.of_unpacked(batch, memory, &limits)),
                Some(Rest::Stored(stored)) if stored.unpacked_bytes() > 0 => {
                    let memory = pay(&self.payer, unpacking_bytes(&stored, &limits)).await;
                    let (batch, memory) = self.unpack(stored, memory).await?;
                    return Ok(self.of_unpacked(batch, memory, &limits));
                }
                rest => self.rest = rest,
            }
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => self.begin().await?,
            };
            // Payload that came from the object store is no part of a mapping.
            let is_mapped = self.is_mapped && !may_refer(&self.log);
            let mut ahead = match is_mapped {
                true => None,
                false => {
                    let needed = self.needed.max(REPLIES_AHEAD * limits.reply_bytes);
                    Some(ahead(&self.payer, needed).await)
                }
            };
            let mut collection = Collection::new(self.next, self.rest.take());
            let collected = if is_in_memory(&self.log, self.came, || reader.is_in_files()) {
                collection.collect(&mut reader, &limits)
            } else {
                let limits = limits.clone();
                let work = run_blocking(&self.payer, move || {
                    let collected = collection.collect(&mut reader, &limits);
                    (collected, collection, reader, ahead)
                });
                let collected;
                (collected, collection, reader, ahead) = work.await.map_err(gone)?;
                collected
            };
            if let Some(pause) = collected.as_ref().err().and_then(|error| waiting.pause(error)) {
                drop(ahead);
                self.reader = Some(reader);
                sleep(pause).await;
                continue;
            }
            self.came = collected?;
            let needed = needed(&collection, &limits);
            let Collection { parts, rest, next, .. } = collection;
            if parts.is_empty() && rest.is_none() {
                drop(ahead);
                if !is_mapped {
                    let _ = reader.seek(reader.position()); // drops the block that it has in memory
                }
                let seen = self.came.unwrap_or_else(CameAt::now);
                self.came = Some(more(seen, |context| reader.poll_more(context)).await?);
                self.reader = Some(reader);
                continue;
            }
            let Some(share) = ahead else {
                (self.reader, self.rest) = (Some(reader), rest);
                if parts.is_empty() {
                    continue; // it must be decompressed
                }
                let memory = pay(&self.payer, parts.iter().map(Part::copied_bytes).sum()).await;
                self.next = next;
                return Ok(Reply::Entries { parts, memory, is_in_memory: false });
            };
            let Some(memory) = settle(share, needed) else {
                self.needed = needed;
                reader.seek(self.next)?;
                self.reader = Some(reader);
                continue;
            };
            self.needed = needed;
            // A seek drops the block that the reader has in memory.
            let behind = reader.position();
            match (parts.last(), rest) {
                (None, Some(Rest::Stored(stored))) => {
                    self.reader = reader.seek(behind).is_ok().then_some(reader);
                    let (batch, memory) = self.unpack(stored, memory).await?;
                    return Ok(self.of_unpacked(batch, memory, &limits));
                }
                // The reply has the records at its start.
                (Some(last), Some(Rest::Stored(stored))) if stored.first() <= last.batch.first() => {
                    self.rest = Some(Rest::Unpacked(last.batch.clone(), memory.clone()));
                    self.reader = reader.seek(behind).is_ok().then_some(reader);
                }
                _ => self.reader = reader.seek(next).is_ok().then_some(reader),
            }
            self.next = next;
            return Ok(Reply::Entries { parts, memory, is_in_memory: true });
        }
    }

    /// Decompresses a batch, whose memory is paid for.
    async fn unpack(&self, stored: StoredBatch, memory: Memory) -> chiplog::Result<(RecordBatch, Memory)> {
        if stored.unpacked_bytes() <= UNPACKED_AT_ONCE_MAX {
            return Ok((stored.unpack()?, memory));
        }
        let work = run_blocking(&self.payer, move || stored.unpack().map(|batch| (batch, memory)));
        work.await.map_err(gone)?
    }

    /// Makes a reply from decompressed records; the rest waits for the next one.
    fn of_unpacked(&mut self, mut batch: RecordBatch, memory: Memory, limits: &Limits) -> Reply {
        batch.skip_to(self.next);
        let part = first_records(&batch, 0, 0, limits);
        self.next = batch.first().plus(part.records.end.into());
        if part.records.end < batch.count() {
            self.rest = Some(Rest::Unpacked(batch, memory.clone()));
        }
        Reply::Entries { parts: vec![part], memory, is_in_memory: true }
    }

    /// Returns a reader at the first entry, once the log has it.
    async fn begin(&self) -> chiplog::Result<Reader> {
        loop {
            match self.log.reader_that_fails_at_once(Start::Index(self.next)) {
                Err(error) if error.kind() == ErrorKind::OutOfRange => {
                    let end = self.log.reader(Start::Next)?;
                    poll_fn(|context| end.poll_more(context)).await?;
                }
                begun => return begun,
            }
        }
    }
}

/// The memory of a decompressed batch, and of one reply of it at a time.
fn unpacking_bytes(stored: &StoredBatch, limits: &Limits) -> usize {
    let bytes = stored.unpacked_bytes();
    bytes + reply_bytes(bytes, stored.count(), limits)
}

/// The largest memory of one reply of a batch with this number of bytes and records, not counting the batch.
fn reply_bytes(bytes: usize, records: u32, limits: &Limits) -> usize {
    bytes.min(limits.reply_bytes) + ENTRY_BYTES * limits.reply_entries.min(records as usize)
}

/// The memory of what was read without a mapping: the parts of a reply, with their batches; and the next batch, if it
/// is sent in several replies or decompressed.
fn needed(collection: &Collection, limits: &Limits) -> usize {
    let rest = match (collection.parts.last(), &collection.rest) {
        (Some(last), Some(_)) => reply_bytes(last.batch.payload().len(), last.batch.count(), limits),
        (None, Some(Rest::Stored(stored))) => stored.bytes().len() + unpacking_bytes(stored, limits),
        _ => 0,
    };
    collection.parts.iter().map(Part::copied_bytes).sum::<usize>() + collection.stored + rest
}

fn gone(panic: tokio::task::JoinError) -> chiplog::Error {
    chiplog::Error::new(ErrorKind::Io, format!("the read task ended early: {panic}"))
}

/// Parts of a reply, from batches that are not compressed.
struct Collection {
    parts: Vec<Part>,
    entries: usize,
    bytes: usize,
    /// Bytes of the parts' batches.
    stored: usize,
    /// The next record to be sent.
    next: Index,
    /// A batch that was read and is not in the reply: it did not fit, or must be decompressed.
    rest: Option<Rest>,
}

impl Collection {
    fn new(next: Index, rest: Option<Rest>) -> Self {
        Self { parts: Vec::new(), entries: 0, bytes: 0, stored: 0, next, rest }
    }

    /// Takes the available records, up to the limits of a reply. Returns the time at which everything had been read, if
    /// it was.
    fn collect(&mut self, reader: &mut Reader, limits: &Limits) -> chiplog::Result<Option<CameAt>> {
        while self.entries < limits.reply_entries && self.bytes < limits.reply_bytes {
            let stored = match self.rest.take() {
                Some(Rest::Stored(stored)) => stored,
                Some(unpacked) => {
                    self.rest = Some(unpacked);
                    return Ok(None);
                }
                None => match reader.next_stored() {
                    Ok(Some(stored)) => stored,
                    Ok(None) => return Ok(Some(CameAt::now())),
                    Err(error) if self.parts.is_empty() => return Err(error),
                    Err(_) => return Ok(None), // the next reply returns the error again
                },
            };
            if stored.unpacked_bytes() > 0 {
                self.rest = Some(Rest::Stored(stored));
                return Ok(None);
            }
            let mut batch = match stored.unpack() {
                Ok(batch) => batch,
                Err(error) if self.parts.is_empty() => return Err(error),
                Err(_) => {
                    self.rest = Some(Rest::Stored(stored));
                    return Ok(None);
                }
            };
            batch.skip_to(self.next);
            let part = first_records(&batch, self.entries, self.bytes, limits);
            let count = part.records.end;
            self.stored += stored.bytes().len();
            self.next = batch.first().plus(count.into());
            self.entries += count as usize;
            self.bytes +=
                (0..count).filter_map(|n| batch.get(n)).map(|r| r.data.len() + ENTRY_BYTES).sum::<usize>();
            if count < batch.count() {
                self.rest = Some(Rest::Stored(stored));
            }
            self.parts.push(part);
        }
        Ok(None)
    }
}

/// The first records of a batch that fit into a reply with this content; at least one.
fn first_records(batch: &RecordBatch, mut entries: usize, mut bytes: usize, limits: &Limits) -> Part {
    let mut end = 0;
    while let Some(record) = batch.get(end)
        && (end == 0 || entries < limits.reply_entries && bytes < limits.reply_bytes)
    {
        (entries, bytes, end) = (entries + 1, bytes + record.data.len() + ENTRY_BYTES, end + 1);
    }
    Part { batch: batch.clone(), records: 0..end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::memory_budget::Budget;
    use crate::served::log_slot::LogSlot;
    use crate::service::blocking_work::tests::{frees_its_turn, read_until_idle};
    use crate::service::tail::tests::log_with_payload_slices;
    use chiplog::{BatchBuilder, Codec, Options};
    use tokio_stream::StreamExt as _;

    /// A reader at the tail whose client read nothing for long read the new records from the disk on a runtime thread.
    #[tokio::test]
    async fn reader_that_was_not_polled_at_the_tail_catches_up() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        log.append(b"x").unwrap();
        let host = LogSlot::new();
        host.open(log.clone());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let service = LogspecService::new(host, Limits::default());
        let mut replies = service.replies(log.clone(), &ReadRequest { next_index: 1 }, payer.clone());
        assert!(matches!(replies.next().await, Some(Ok(Reply::Entries { .. }))));
        for _ in ["it did not wait yet", "it did"] {
            log.append(b"y").unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
            frees_its_turn(&payer, replies.next()).await;
            assert!(matches!(replies.next().await, Some(Ok(Reply::Entries { .. }))));
            assert_eq!(read_until_idle(&mut replies).await, 0, "nothing was written");
        }
    }

    /// The newest records of a log with payload slices may be in the object store alone: reading them blocked a runtime thread.
    #[tokio::test]
    async fn reader_at_the_tail_of_payload_slices_blocks_no_runtime_thread() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_with_payload_slices(dir.path()).await;
        let host = LogSlot::new();
        host.open(log.clone());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let service = LogspecService::new(host, Limits::default());
        let mut replies = service.replies(log.clone(), &ReadRequest { next_index: 1 }, payer.clone());
        log.append(&[6; 3000]).unwrap();
        assert!(matches!(replies.next().await, Some(Ok(Reply::Entries { .. }))));
        for _ in 0..2 {
            assert_eq!(read_until_idle(&mut replies).await, 0, "nothing was written");
            log.append(&[7; 3000]).unwrap();
            frees_its_turn(&payer, replies.next()).await;
            assert!(matches!(replies.next().await, Some(Ok(Reply::Entries { is_in_memory: true, .. }))));
        }
    }

    #[tokio::test]
    async fn reading_and_decompressing_release_their_turns() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        log.append(b"x").unwrap();
        let mut builder = BatchBuilder::new();
        builder.codec(Codec::Lz4).push(&[7; 2 * UNPACKED_AT_ONCE_MAX]).unwrap();
        log.append(&builder.build().unwrap()).unwrap();
        let host = LogSlot::new();
        host.open(log.clone());
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let service = LogspecService::new(host, Limits::default());
        let request = ReadRequest { next_index: 1 };
        let mut replies = service.replies(log, &request, payer.clone());
        for _ in ["it is read", "it is decompressed"] {
            frees_its_turn(&payer, replies.next()).await;
            assert!(matches!(replies.next().await, Some(Ok(Reply::Entries { .. }))));
        }
    }
}
