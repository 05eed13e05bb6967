//! A view of the log: keeps a copy of it in this process, which any server feeds, reads that, counts words, and checks
//! every record against the text and against the confirmations.

use crate::producers::Promises;
use crate::text::Text;
use chiplog::{Index, Options, RecordBatch, Start};
use chiplog_net::client::blocking::Client;
use chiplog_net::client::{ReadFrom, ReaderOptions};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::time::Duration;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How often a view that gets nothing checks whether there is anything to wait for.
const LOOK: Duration = Duration::from_millis(250);

fn broken<T>(what: String) -> Result<T> {
    Err(format!("A PROMISE IS BROKEN: {what}").into())
}

/// The records seen: every record right, at its confirmed index, once, and each session's in order.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    text: &'a Text,
    promises: &'a Promises,
    known: Vec<bool>,
    /// By session: the number of the last record seen.
    last: Vec<Option<u64>>,
    next: Index,
    pub(crate) count: u64,
    pub(crate) words: u64,
    hash: DefaultHasher,
}

impl<'a> Seen<'a> {
    fn new(text: &'a Text, promises: &'a Promises, sessions: u64, next: Index) -> Self {
        let known = vec![false; promises.total() as usize];
        let last = vec![None; sessions as usize];
        Self { text, promises, known, last, next, count: 0, words: 0, hash: DefaultHasher::new() }
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        for record in batch.iter() {
            let (index, data) = (record.index, record.data);
            if index != self.next {
                return broken(format!("record {index} arrived instead of {}", self.next));
            }
            let number = match self.text.number_of(data) {
                Some(number) if number < self.promises.total() => number,
                _ => return broken(format!("record {index} was never sent")),
            };
            if std::mem::replace(&mut self.known[number as usize], true) {
                return broken(format!("line {number} is in the log twice, the second time at {index}"));
            }
            let session = (number % self.last.len() as u64) as usize;
            if self.last[session].replace(number).is_some_and(|last| last >= number) {
                return broken(format!("line {number} at {index} is behind a later one of its session"));
            }
            if self.promises.place(number).is_some_and(|place| place != index) {
                return broken(format!("line {number} was not confirmed at {index}"));
            }
            self.words += words(data);
            self.hash.write(&index.get().to_le_bytes());
            self.hash.write(data);
            (self.next, self.count) = (index.next(), self.count + 1);
        }
        Ok(())
    }

    /// Checks that every confirmed record was seen at its index. For a view that has seen everything from `first` on.
    fn complete(&self, first: Index) -> Result<()> {
        for number in 0..self.promises.total() {
            match self.promises.place(number) {
                Some(place) if place >= first && !self.known[number as usize] => {
                    return broken(format!("line {number}, confirmed at {place}, is lost"));
                }
                Some(_) => {}
                None => return broken(format!("line {number} was never confirmed")),
            }
        }
        Ok(())
    }
}

/// Words of a line, without its number.
fn words(record: &[u8]) -> u64 {
    let all = record.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count();
    all.saturating_sub(1) as u64
}

/// The words of the first `total` records.
pub(crate) fn words_of(text: &Text, total: u64) -> u64 {
    let lines = text.lines();
    let upto = |end: u64| (0..end).map(|n| words(&text.record(n))).sum::<u64>();
    upto(lines.min(total)) * (total / lines).max(1) + if total > lines { upto(total % lines) } else { 0 }
}

/// The result of the view, and the servers that fed its copy, in order.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) count: u64,
    pub(crate) words: u64,
    pub(crate) servers: Vec<String>,
}

/// Opens a copy of the log in this process, fed by the server of this zone as long as it runs.
pub(crate) fn copy(dir: &Path, servers: Vec<String>, zone: &str) -> Result<Follower> {
    let mut options = FollowerOptions::default();
    options.zone = zone.to_owned();
    options.files = Options::with_segment_bytes(4 << 20);
    Ok(Follower::open(dir, servers, Start::First, options)?)
}

/// Reads the copy, from the first record to the last, while it grows.
pub(crate) fn follow(copy: &Follower, text: &Text, promises: &Promises, sessions: u64) -> Result<Followed> {
    let mut reader = copy.reader(Start::First)?;
    let mut seen = Seen::new(text, promises, sessions, Index(1));
    while seen.count < promises.total() {
        if promises.failed() {
            return broken(format!("the appends ended after {} records", seen.count));
        }
        if reader.wait(Some(LOOK))? {
            // Slices of the copy's files: no server and no copy of the bytes in between.
            while let Some(batch) = reader.next_batch()? {
                seen.take(&batch)?;
            }
        }
    }
    let mut servers = Vec::new();
    while let Ok(event) = copy.next_event(Duration::ZERO) {
        match event {
            FollowerEvent::Connected { server } | FollowerEvent::Switched { to: server, .. } => {
                servers.push(server);
            }
            FollowerEvent::Jumped { from, to } => {
                return broken(format!("the copy lacks records {from} to {}", to.previous()));
            }
            _ => {}
        }
    }
    servers.dedup();
    // The last records may have been seen before their producer had the confirmation: the caller checks again, when all
    // have.
    Ok(Followed { count: seen.count, words: seen.words, servers })
}

/// Reads the copy from `first` to its end. Returns a digest of all its records, as [`read_all`].
pub(crate) fn read_copy(
    copy: &Follower,
    text: &Text,
    promises: &Promises,
    sessions: u64,
    first: Index,
) -> Result<u64> {
    let mut reader = copy.reader(Start::First)?;
    let mut seen = Seen::new(text, promises, sessions, first);
    while let Some(batch) = reader.next_batch()? {
        seen.take(&batch)?;
    }
    seen.complete(first)?;
    Ok(seen.hash.finish())
}

/// Reads one server from `first` to `last`. Returns a digest of all its records.
pub(crate) fn read_all(
    client: &Client,
    zone: &str,
    server: &str,
    text: &Text,
    promises: &Promises,
    sessions: u64,
    first: Index,
) -> Result<u64> {
    let last = Index(promises.total());
    let mut options = ReaderOptions::default();
    (options.from, options.min_index) = (ReadFrom::Nearest(zone.to_owned()), last);
    let mut reader = client.reader_with(Start::First, options);
    let mut seen = Seen::new(text, promises, sessions, first);
    while seen.next <= last {
        let Some(batch) = reader.next_batch()? else { break };
        if reader.server() != Some(server) {
            return broken(format!("server {server} does not answer"));
        }
        seen.take(&batch)?;
    }
    seen.complete(first)?;
    Ok(seen.hash.finish())
}
