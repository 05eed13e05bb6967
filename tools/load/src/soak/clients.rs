//! Clients: programs that append in sessions, read everything, read anywhere, keep a copy, and discard. Each is a
//! thread with a client of its own, which is renewed from time to time.

use super::judge::{Judge, identify, record};
use crate::servers::{PATIENCE, Servers};
use anyhow::{Result, anyhow, bail, ensure};
use chiplog::{ErrorKind, Index, Options, Start};
use chiplog_net::client::blocking::Client;
use chiplog_net::client::{ClientOptions, ProducerOptions, ReadFrom, ReaderOptions};
use chiplog_net::follower::{Follower, FollowerOptions};
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any fault lasts.
const TROUBLE: Duration = Duration::from_secs(180);
/// A writer continues in a new session, over a new connection, after this time.
const SESSION: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(500);
/// Records that remain when the rest is discarded.
const KEPT: u64 = 30_000;

/// The state that all clients share.
pub(crate) struct Shared {
    pub(crate) addresses: Vec<String>,
    pub(crate) judge: Arc<Judge>,
    /// All appends have ended.
    pub(crate) appended: AtomicBool,
    /// All records are read.
    pub(crate) over: AtomicBool,
    /// Records that partial reads have read.
    pub(crate) parts: AtomicU64,
    /// Calls that failed, of those that may: partial reads, and discards.
    pub(crate) failures: AtomicU64,
}

impl Shared {
    fn client(&self) -> Result<Client> {
        let mut options = ClientOptions::default();
        options.timeout = TROUBLE;
        Ok(Client::connect(self.addresses.clone(), options)?)
    }

    /// Reports the error that ended a client early.
    pub(crate) fn heed<T: Default>(&self, who: &str, outcome: Result<T>) -> T {
        outcome.unwrap_or_else(|error| {
            self.judge.fail(format!("{who}: {error:#}"));
            T::default()
        })
    }
}

/// Appends about `rate` records a second, each exactly once. Returns their number.
pub(crate) fn write(shared: &Shared, writer: u64, rate: f64) -> Result<u64> {
    let mut number = 0;
    while !shared.appended.load(Ordering::Relaxed) {
        let client = shared.client()?;
        let mut options = ProducerOptions::default();
        options.delivery_timeout = TROUBLE;
        options.block_max = TROUBLE;
        options.batch_bytes = 64 << 10;
        options.buffer_bytes = 1 << 20;
        let producer = client.producer(options)?;
        let (begun, before) = (Instant::now(), number);
        while begun.elapsed() < SESSION && !shared.appended.load(Ordering::Relaxed) {
            let due = before + (begun.elapsed().as_secs_f64() * rate) as u64;
            while number < due {
                number += 1;
                let (judge, this) = (shared.judge.clone(), number);
                producer.send_with(&record(writer, number), move |done| match done {
                    Ok(appended) => judge.acknowledged(writer, this, appended.first),
                    Err(error) => judge.fail(format!("record {this} of writer {writer}: {error}")),
                })?;
            }
            ensure!(!shared.judge.is_broken(), "given up");
            thread::sleep(Duration::from_millis(5));
        }
        producer.flush(TROUBLE)?;
        let closed = producer.close(PATIENCE);
        ensure!(
            closed.all_acknowledged(),
            "{} records were not acknowledged: {:?}",
            closed.left.len(),
            closed.failed
        );
    }
    Ok(number)
}

/// Reads everything, from the first record on, as it arrives.
pub(crate) fn tail(shared: &Shared) -> Result<()> {
    let client = shared.client()?;
    let mut options = ReaderOptions::default();
    options.timeout = TROUBLE;
    let mut reader = client.reader_with(Start::Index(Index(1)), options);
    while !shared.over.load(Ordering::Relaxed) && !shared.judge.is_broken() {
        match reader.next_batch_within(LOOK) {
            Ok(Some(batch)) => batch.iter().for_each(|r| shared.judge.read(r.index, r.data)),
            Ok(None) => bail!("a reader that follows came to an end"),
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads parts of the log, from any position, with a new client for each.
pub(crate) fn read_parts(shared: &Shared, mut random: fastrand::Rng) -> Result<()> {
    while !shared.over.load(Ordering::Relaxed) && !shared.judge.is_broken() {
        let last = shared.judge.last().get();
        let from = Index(random.u64(last.saturating_sub(KEPT / 2)..=last).max(1));
        match read_part(shared, from, random.u64(1..5000)) {
            Ok(read) => _ = shared.parts.fetch_add(read, Ordering::Relaxed),
            Err(error) => {
                // Discarded, or no server available just now; an error in a record is reported to the judge.
                print_note(&error);
                shared.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        thread::sleep(Duration::from_millis(random.u64(10..300)));
    }
    Ok(())
}

fn print_note(error: &anyhow::Error) {
    eprintln!("note: {error:#}");
}

fn read_part(shared: &Shared, from: Index, count: u64) -> Result<u64> {
    let client = shared.client()?;
    let mut options = ReaderOptions::default();
    options.follow = false;
    let mut reader = client.reader_with(Start::Index(from), options);
    let mut next = from;
    while next.get() < from.get() + count {
        let Some(batch) = reader.next_batch()? else { break };
        for record in batch.iter() {
            if record.index != next || identify(record.data).is_none() {
                shared.judge.fail(format!("a reader from {from} got {} where {next} was due", record.index));
            }
            next = record.index.next();
        }
    }
    Ok(next.get() - from.get())
}

/// Keeps a copy of the log in this process, and reads it. Returns the number of records that it read. With `objects` it reads through the
/// servers what these have in no file any more: it may be away for longer than they keep files.
pub(crate) fn follow(shared: &Shared, dir: &Path, objects: bool, copied: &AtomicU64) -> Result<u64> {
    let mut options = FollowerOptions::default();
    let files = Options::with_segment_bytes(4 << 20);
    options.files = if objects { files.local_bytes(32 << 20) } else { files.retention_bytes(32 << 20) };
    options.served_objects = objects;
    options.open_timeout = PATIENCE;
    let follower = Follower::open(dir, shared.addresses.clone(), Start::First, options)?;
    let mut reader = follower.reader(Start::First)?;
    let (mut next, mut read) = (Index(1), 0);
    while !shared.over.load(Ordering::Relaxed) && !shared.judge.is_broken() {
        if let Some(error) = follower.status().stopped {
            return Err(error.into());
        }
        if !reader.wait(Some(LOOK))? {
            continue;
        }
        while let Some(batch) = reader.next_batch()? {
            for record in batch.iter() {
                if record.index != next || identify(record.data).is_none() {
                    shared.judge.fail(format!("the copy has {} where {next} was due", record.index));
                }
                (next, read) = (record.index.next(), read + 1);
            }
            copied.store(next.get() - 1, Ordering::Relaxed);
        }
    }
    let events = std::iter::from_fn(|| follower.next_event(Duration::ZERO).ok()).count();
    drop(reader);
    follower.close()?;
    ensure!(events < 100_000, "{events} events of the copy");
    Ok(read)
}

/// Discards what all readers have read.
pub(crate) fn discard(shared: &Shared, copied: &AtomicU64) -> Result<()> {
    let client = shared.client()?;
    while !shared.appended.load(Ordering::Relaxed) && !shared.judge.is_broken() {
        thread::sleep(Duration::from_secs(2));
        let read = shared.judge.last().get().min(copied.load(Ordering::Relaxed));
        if read > KEPT
            && let Err(error) = client.discard(Index(read - KEPT))
        {
            print_note(&error.into());
            shared.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Reads one server from its first record to `last`. Returns its first record and a digest of all.
pub(crate) fn digest(shared: &Shared, servers: &Servers, node: u64, last: Index) -> Result<(Index, u64)> {
    digest_at(shared, servers, node, Start::First, last)
}

/// As [`digest`], from record `first` on.
pub(crate) fn digest_from(
    shared: &Shared,
    servers: &Servers,
    node: u64,
    first: Index,
    last: Index,
) -> Result<(Index, u64)> {
    digest_at(shared, servers, node, Start::Index(first), last)
}

fn digest_at(
    shared: &Shared,
    servers: &Servers,
    node: u64,
    start: Start,
    last: Index,
) -> Result<(Index, u64)> {
    let client = shared.client()?;
    let mut options = ReaderOptions::default();
    (options.follow, options.min_index) = (false, last);
    (options.from, options.timeout) = (ReadFrom::Nearest(Servers::zone(node)), TROUBLE);
    let mut reader = client.reader_with(start, options);
    let (mut hash, mut first, mut next) = (DefaultHasher::new(), None, None);
    while let Some(batch) = reader.next_batch()? {
        let server = reader.server().map(str::to_owned);
        ensure!(
            server.as_deref() == Some(servers.address(node)),
            "server {node} does not answer: {server:?}"
        );
        for record in batch.iter() {
            ensure!(
                next.is_none_or(|next| record.index == next),
                "server {node}: {} came early",
                record.index
            );
            hash.write(&record.index.get().to_le_bytes());
            hash.write(record.data);
            first.get_or_insert(record.index);
            next = Some(record.index.next());
        }
    }
    ensure!(next == Some(last.next()), "server {node} ends before {next:?}, not with {last}");
    Ok((first.ok_or_else(|| anyhow!("server {node} has nothing"))?, hash.finish()))
}
