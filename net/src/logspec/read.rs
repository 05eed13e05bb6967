//! Read: committed records from an index on, for ever. The client pulls: there is one reply in memory at a time, made
//! when the connection has room for it.
//!
//! Invariants: entries are consecutive from the index asked for; a reply that has an entry is never delayed to gather
//! more.

use super::{Limits, LogspecService, Replies, about_to_end};
use crate::proto::logspec::read_reply::{Ok as Entries, Reply};
use crate::proto::logspec::{Entry, ReadReply};
use bytes::Bytes;
use chiplog::{ErrorKind, Index, Log, Reader, Start};
use futures_util::stream;
use std::future::poll_fn;
use tonic::Status;

/// What an entry takes in a reply besides its data, about.
const ENTRY_BYTES: usize = 16;

/// The stream of replies from `next` on.
pub(super) fn replies(service: LogspecService, log: Log, next: Index) -> Replies<ReadReply> {
    let reading = Reading { service, log, next, reader: None, at_tail: false, over: false };
    Box::pin(stream::unfold(reading, |mut reading| async {
        reading.next().await.map(|reply| (reply, reading))
    }))
}

struct Reading {
    service: LogspecService,
    log: Log,
    next: Index,
    /// None: not begun, or lent to a thread that may wait for the disk.
    reader: Option<Reader>,
    /// Whether what comes next was just written, and so is in memory.
    at_tail: bool,
    over: bool,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<ReadReply, Status>> {
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
            Ok(entries) => Ok(Reply::Ok(Entries { entries })),
            Err(error) if error.kind() == ErrorKind::Discarded => Ok(Reply::Truncated(true)),
            Err(error) => Err(self.service.host.status_of(&error)),
        };
        self.over = !matches!(reply, Ok(Reply::Ok(_)));
        Some(reply.map(|reply| ReadReply { reply: Some(reply) }))
    }

    /// The next entries; at least one.
    async fn read(&mut self) -> chiplog::Result<Vec<Entry>> {
        loop {
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => self.begin().await?,
            };
            let limits = self.service.limits.clone();
            let gathered = if self.at_tail {
                gather(&mut reader, &limits)
            } else {
                let gathering = tokio::task::spawn_blocking(move || (gather(&mut reader, &limits), reader));
                let (gathered, lent) = gathering.await.map_err(|panic| {
                    chiplog::Error::new(ErrorKind::Io, format!("reading ended early: {panic}"))
                })?;
                reader = lent;
                gathered
            };
            let Gathered { entries, more } = gathered?;
            self.at_tail = !more;
            if entries.is_empty() {
                poll_fn(|context| reader.poll_more(context)).await?;
            }
            self.reader = Some(reader);
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
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

/// Entries of one reply, and whether there may be more to read at once.
struct Gathered {
    entries: Vec<Entry>,
    more: bool,
}

/// What is there, up to a reply's worth: one buffer for all of it.
fn gather(reader: &mut Reader, limits: &Limits) -> chiplog::Result<Gathered> {
    let (mut data, mut ends) = (Vec::new(), Vec::new());
    let first = reader.position();
    let mut more = true;
    while ends.len() < limits.reply_entries && data.len() + ENTRY_BYTES * ends.len() < limits.reply_bytes {
        match reader.next_record() {
            Ok(Some(record)) => {
                data.extend_from_slice(record.data);
                ends.push(data.len());
            }
            Ok(None) => {
                more = false;
                break;
            }
            Err(error) if ends.is_empty() => return Err(error),
            Err(_) => break, // it is still there when the next reply is made
        }
    }
    let data = Bytes::from(data);
    let mut start = 0;
    let entries = (first.get()..).zip(ends).map(|(index, end)| {
        let data = data.slice(std::mem::replace(&mut start, end)..end);
        Entry { index, skip: false, data }
    });
    Ok(Gathered { entries: entries.collect(), more })
}
