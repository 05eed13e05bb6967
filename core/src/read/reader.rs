//! Reader: committed records in order, checked on every serve, from any place, waiting at the tail. And the
//! single look-up by index.
//!
//! Zero copies for uncompressed batches: a record is a slice of the mapping, and whoever holds it holds the
//! segment. A batch's checksum is verified when the reader comes to it, each time again: memory and disk rot.
//!
//! Must not know: the writer.

use crate::error::{Error, ErrorKind, Result};
use crate::read::canceller::Canceller;
use crate::read::positions::{Cancel, HookOwner, Positions, or_wake};
use crate::read::records::{OwnedRecord, Record, RecordBatch, StoredBatch, undecodable};
use crate::record::batch;
use crate::record::batch::BatchHeader;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Kind};
use crate::store::read::block_reader::{Located, Slice};
use crate::store::read::cursor;
use crate::store::read::cursor::Cursor;
use crate::store::segment::Segments;
use crate::types::{Index, Timestamp};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

/// Where a reader begins.
///
/// ```
/// use chiplog::{Index, Start};
/// assert_ne!(Start::First, Start::Index(Index(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The first record that is not discarded.
    First,
    /// This record, which may be the next one to come.
    Index(Index),
    /// So many records before the end; fewer if there are not so many.
    Last(u64),
    /// The first record that was written at this time or later.
    Timestamp(Timestamp),
    /// The next record to come.
    Next,
}

/// What readers share with the log: its segments and positions.
#[derive(Clone)]
pub(crate) struct LogView {
    pub(crate) segments: Arc<Segments>,
    pub(crate) positions: Arc<Positions>,
    pub(crate) prefetch: usize,
    /// Whether another process writes the log: its discards are learnt a moment after they happened, and the
    /// files can be gone or used again before.
    pub(crate) outside: bool,
}

/// How long a read-only handle takes to learn what the writer did, generously.
const OUTSIDE_LAG: Duration = Duration::from_millis(50);

impl LogView {
    /// A reader that begins at `start`.
    pub(crate) fn reader(&self, start: Start) -> Result<Reader> {
        let next = self.resolve(start).map_err(|error| self.segments.met(error, None))?;
        let owner = self.positions.hook_owner();
        Ok(Reader {
            view: self.clone(),
            owner,
            cancel: OnceLock::new(),
            next,
            lookup: false,
            cursor: None,
            block: None,
            batch: None,
            behind_undecodable: None,
        })
    }

    /// The record that this is.
    pub(crate) fn resolve(&self, start: Start) -> Result<Index> {
        let (first, last) = self.positions.range();
        let end = last.next();
        match start {
            Start::First => Ok(first),
            Start::Next => Ok(end),
            Start::Last(count) => Ok(Index(end.0.saturating_sub(count)).max(first)),
            Start::Timestamp(time) => match self.first_since(time) {
                // A segment that was discarded under the search: search again in what is left.
                Err(_) if self.positions.first() > first => self.resolve(start),
                found => Ok(found?.max(self.positions.first())),
            },
            Start::Index(index) if index < first => Err(discarded(index, first)),
            Start::Index(index) if index > end => Err(out_of_range(index, end)),
            Start::Index(index) => Ok(index),
        }
    }

    /// Whether a reader, or a feed, can begin at `index`.
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`.
    pub(crate) fn check(&self, index: Index) -> Result<()> {
        self.resolve(Start::Index(index)).map(drop)
    }

    /// The first record from `time` on.
    fn first_since(&self, time: Timestamp) -> Result<Index> {
        let end = self.positions.committed().next();
        let Some(segment) = self.segments.at_time(time) else { return Ok(end) };
        let data = self.segments.open(&segment)?;
        let offset = data.seek(|e| e.timestamp < time)?;
        let mut cursor = Cursor::new(self.segments.clone(), data, offset, 0);
        let found = cursor.find(|h| h.kind == Kind::Data && h.timestamp >= time)?;
        Ok(found.map_or(end, |b| b.header.first.min(end)))
    }

    /// One record, by its index.
    pub(crate) fn read(&self, index: Index) -> Result<OwnedRecord> {
        if let Some(record) = self.read_remembered(index) {
            return Ok(record);
        }
        let mut reader = self.reader(Start::Index(index))?;
        reader.view.prefetch = 0;
        reader.lookup = true;
        match reader.next_batch()? {
            Some(batch) => Ok(batch.into_record(index)),
            None => Err(out_of_range(index, reader.next)),
        }
    }

    /// One record of a block that an earlier look-up went to. None: there is no such block, or the batch's bytes
    /// are not what they were: then the long way tells what is the matter.
    fn read_remembered(&self, index: Index) -> Option<OwnedRecord> {
        if index < self.positions.first() {
            return None;
        }
        let (bytes, found) = cursor::remembered(&self.segments, index)?;
        let batch = RecordBatch::verify(&bytes, found.first, found.timestamp).ok()?;
        (index < found.first.plus(batch.count.into())).then(|| batch.into_record(index))
    }

    /// A cursor before the block that holds `next`.
    pub(crate) fn cursor(&self, next: Index) -> Result<Cursor> {
        let Some(segment) = self.segments.holding(next) else {
            return Err(Error::new(ErrorKind::Closed, "the log has no segments"));
        };
        let data = self.segments.open(&segment)?;
        let offset = data.seek(|e| e.first <= next)?;
        Ok(Cursor::new(self.segments.clone(), data, offset, self.prefetch))
    }
}

/// Reads committed records in order. It holds the segment that it reads, even when that is discarded, and
/// goes on reading after the log was closed. `Send`; one thread at a time.
///
/// ```
/// use chiplog::{Log, Options, Start};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// for word in ["to", "be", "or"] {
///     log.append(word.as_bytes())?;
/// }
/// let mut reader = log.reader(Start::Last(2))?;
/// let mut words = Vec::new();
/// while let Some(record) = reader.next_record()? {
///     words.push(String::from_utf8_lossy(record.data).into_owned());
/// }
/// assert_eq!(words, ["be", "or"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    view: LogView,
    owner: HookOwner,
    /// Once it was asked for.
    cancel: OnceLock<Arc<Cancel>>,
    /// The next record to be given.
    next: Index,
    /// Whether it is made for one record only: what it learns of the record's block is remembered.
    lookup: bool,
    cursor: Option<Cursor>,
    block: Option<Block>,
    batch: Option<RecordBatch>,
    /// The next record was found in a batch that does not unpack: the first record behind that.
    behind_undecodable: Option<Index>,
}

/// The block a reader is in.
struct Block {
    located: Located,
    bytes: Slice,
    /// Where the next batch begins, and its first record.
    at: usize,
    first: Index,
}

/// A batch that was found, and where in its segment's file.
struct Found {
    bytes: Slice,
    first: Index,
    timestamp: Timestamp,
    offset: usize,
}

impl Reader {
    /// Index of the record that comes next.
    pub fn position(&self) -> Index {
        self.next
    }

    /// Goes on at another record, which may be the next one to come: back, forward, or past damage.
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`: the reader stays where it was.
    pub fn seek(&mut self, index: Index) -> Result<()> {
        self.next = self.view.resolve(Start::Index(index))?;
        (self.cursor, self.block, self.batch, self.behind_undecodable) = (None, None, None, None);
        Ok(())
    }

    /// The next record, or `None` at the tail. Blocks for the disk only.
    ///
    /// # Errors
    /// `Discarded`: the next record is gone; make a new reader at [`Start::First`]. `Corrupt`: its bytes fail
    /// their checksum; the reader stays where it is. `Undecodable`: they are as they were appended, and do not unpack; the
    /// reader stays where it is, [`Self::skip_batch`] goes on behind them. `Io`.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        if !self.fill()? {
            return Ok(None);
        }
        let Some(batch) = &mut self.batch else { return Ok(None) };
        let n = batch.skip;
        batch.skip += 1;
        self.next = self.next.next();
        Ok(Some(batch.at(n)))
    }

    /// The rest of the current batch, or the next one whole; `None` at the tail. The fastest way to read.
    ///
    /// # Errors
    /// As [`Self::next_record`].
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if !self.fill()? {
            return Ok(None);
        }
        let batch = self.batch.take();
        if let Some(batch) = &batch {
            self.next = self.next.plus(u64::from(batch.count()));
        }
        Ok(batch)
    }

    /// The batch that holds the next record, whole, as it stands in the log, still packed; `None` at the tail. It can
    /// begin before [`Self::position`]. For handing on what is read: nothing is unpacked, nor copied from a mapping. Without
    /// a mapping the batch holds at most twice its bytes.
    ///
    /// # Errors
    /// As [`Self::next_record`], except `Undecodable`.
    pub fn next_stored(&mut self) -> Result<Option<StoredBatch>> {
        (self.batch, self.behind_undecodable) = (None, None);
        if !self.is_committed()? {
            return Ok(None);
        }
        let found = self.find_batch().and_then(|found| {
            let bytes = found.bytes.apart_from(self.block.as_ref().map_or(0, |block| block.bytes.len()));
            let stored = StoredBatch::verify(&bytes, found.first, found.timestamp);
            stored.map_err(|why| self.corrupt(&found, why))
        });
        let stored = self.or_discarded(found)?;
        self.next = stored.last().next();
        Ok(Some(stored))
    }

    /// Goes on behind a batch that the last step of this reader found `Undecodable`. Returns the record that comes next.
    /// Where the last step found something else, nothing changes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// use chiplog::{ErrorKind, Start};
    /// log.append(b"hello")?;
    /// let mut reader = log.reader(Start::First)?;
    /// loop {
    ///     match reader.next_record() {
    ///         Ok(Some(record)) => println!("{}", record.index),
    ///         Ok(None) => break,
    ///         Err(error) if error.kind() == ErrorKind::Undecodable => {
    ///             eprintln!("left out: {error}");
    ///             reader.skip_batch()?;
    ///         }
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today. Damage is not skipped: nothing tells where its batch ends.
    pub fn skip_batch(&mut self) -> Result<Index> {
        if let Some(behind) = self.behind_undecodable.take() {
            self.next = behind;
        }
        Ok(self.next)
    }

    /// Waits until there is a record to read (true) or the time-out passes (false); `None` waits for ever.
    ///
    /// # Errors
    /// `Closed` when the log was closed and everything in it was read; `Poisoned` when it was poisoned; `Cancelled` by its
    /// [`canceller`](Self::canceller), also where there is something to read.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        if self.has_batch() && !self.is_cancelled() {
            return Ok(true);
        }
        self.view.positions.wait_unless(self.next, timeout, || self.is_cancelled())
    }

    /// What ends [`Self::wait`] from another thread, for good: to stop a thread that follows the log. Calls that do not wait go
    /// on, and the reader stays where it is.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// use chiplog::{ErrorKind, Start};
    /// let reader = log.reader(Start::Next)?;
    /// let canceller = reader.canceller();
    /// let follows = std::thread::spawn(move || reader.wait(None));
    /// canceller.cancel();
    /// let ended = follows.join().expect("no panic");
    /// assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn canceller(&self) -> Canceller {
        let cancel = self.cancel.get_or_init(Arc::default);
        Canceller::new(self.view.positions.clone(), self.owner, cancel.clone())
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.get().is_some_and(|cancel| cancel.is_set())
    }

    /// Calls `hook` once there is a record to read, or the log was closed, or the reader was cancelled: at once if so already, else on a
    /// thread of the log's, or the one that cancels, where it must not block. For runtimes and event loops: wake a task, write to an
    /// eventfd. A reader has one hook: a new one takes the place of the last, and dropping the reader drops it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let reader = log.reader(chiplog::Start::Next)?;
    /// let (tx, rx) = std::sync::mpsc::channel();
    /// reader.on_more(move || drop(tx.send("there is more")));
    /// log.append(b"x")?;
    /// assert_eq!(rx.recv()?, "there is more");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_more(&self, hook: impl FnOnce() + Send + 'static) {
        if self.has_batch() {
            return hook();
        }
        self.view.positions.on_reach(self.owner, self.next, Box::new(hook));
        if self.is_cancelled() {
            self.view.positions.call_hook(self.owner);
        }
    }

    /// For async code: ready when there is a record to read. Wakes the task through [`Self::on_more`].
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn poll_more(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        or_wake(self.wait(Some(Duration::ZERO)), context, |waker| self.on_more(|| waker.wake()))
    }

    fn has_batch(&self) -> bool {
        self.batch.as_ref().is_some_and(|b| b.skip < b.count)
    }

    /// Makes `batch` hold the next record. False: it is not committed yet.
    fn fill(&mut self) -> Result<bool> {
        if self.has_batch() {
            return Ok(true);
        }
        (self.batch, self.behind_undecodable) = (None, None);
        if !self.is_committed()? {
            return Ok(false);
        }
        let mut behind = None;
        let found = self.find_batch().and_then(|found| {
            let header = batch::verify(&found.bytes).map_err(|why| self.corrupt(&found, why))?;
            let batch = RecordBatch::unpack(&found.bytes, &header, found.first, found.timestamp);
            batch.map_err(|why| {
                behind = Some(found.first.plus(header.count.into()));
                undecodable(found.first, header.count, why)
            })
        });
        self.behind_undecodable = behind;
        let mut batch = self.or_discarded(found)?;
        batch.skip = (self.next.0 - batch.first().0) as u32;
        self.batch = Some(batch);
        Ok(true)
    }

    /// Whether the next record can be read; it may have been discarded.
    fn is_committed(&self) -> Result<bool> {
        let first = self.view.positions.first();
        if self.next < first {
            return Err(discarded(self.next, first));
        }
        Ok(self.next <= self.view.positions.committed())
    }

    /// What was read; or what a reader should hear of why not.
    fn or_discarded<T>(&mut self, read: Result<T>) -> Result<T> {
        if let Err(error) = &read {
            // Start over from the index next time: nothing half-read is kept.
            self.block = None;
            self.cursor = None;
            if error.kind() == ErrorKind::Undecodable {
                return read; // no damage: there is nothing to look for
            }
            // Discarded meanwhile, its file perhaps gone or used again: that is what the caller should hear.
            if self.view.outside {
                std::thread::sleep(OUTSIDE_LAG);
            }
            let first = self.view.positions.first();
            if self.next < first && error.kind() != ErrorKind::Discarded {
                return Err(discarded(self.next, first));
            }
        }
        read.map_err(|error| self.view.segments.met(error, Some(self.next)))
    }

    /// The stored batch that holds `next`, which is committed; moves behind it. Not verified yet.
    fn find_batch(&mut self) -> Result<Found> {
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            none => none.insert(self.view.cursor(self.next)?),
        };
        loop {
            let block = match self.block.take() {
                Some(block) if block.at < block.bytes.len() => block,
                _ => find_block(cursor, self.next, self.lookup)?,
            };
            let block = self.block.insert(block);
            let rest = &block.bytes[block.at..];
            let header = BatchHeader::parse(rest)
                .map_err(|why| cursor.corrupt(block.located.offset + block.at, why))?;
            let (at, first) = (block.at, block.first);
            block.at += header.length as usize;
            block.first = first.plus(u64::from(header.count));
            if block.first > self.next {
                let bytes = block.bytes.slice(at..at + header.length as usize);
                let timestamp = block.located.header.timestamp;
                return Ok(Found { bytes, first, timestamp, offset: block.located.offset + at });
            }
        }
    }

    /// The batch that was found is not what was written.
    fn corrupt(&self, found: &Found, why: batch::Malformed) -> Error {
        match &self.cursor {
            Some(cursor) => cursor.corrupt(found.offset, why),
            None => Error::new(ErrorKind::Corrupt, why),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.view.positions.forget_hook(self.owner);
    }
}

/// The block that holds `next`, loaded, at the batch that holds it.
fn find_block(cursor: &mut Cursor, next: Index, lookup: bool) -> Result<Block> {
    let located = cursor.find(|h| h.kind == Kind::Data && h.next_record() > next)?;
    let Some(located) = located else {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("record {next} is committed and no block holds it"),
        ));
    };
    if located.header.first > next {
        return Err(cursor.corrupt(located.offset, "records are missing before this block"));
    }
    let first = located.header.first;
    let before = next.0 - first.0;
    if before == 0 && !lookup {
        let bytes = cursor.load(&located, |_| {})?;
        return Ok(Block { located, bytes, at: BLOCK_HEADER_BYTES, first });
    }
    let (mut batches, mut start) = (Vec::new(), None);
    let bytes = cursor.load(&located, |place| {
        if u64::from(place.before) <= before {
            start = Some(place);
        }
        if lookup {
            batches.push(place);
        }
    })?;
    if lookup {
        cursor.remember(&located, batches);
    }
    let (at, skipped) = start.map_or((BLOCK_HEADER_BYTES, 0), |p| (p.at as usize, u64::from(p.before)));
    Ok(Block { located, bytes, at, first: first.plus(skipped) })
}

fn discarded(index: Index, first: Index) -> Error {
    let what = match index {
        Index(0) => format!("there is no record 0, indexes begin at 1; the first record is {first}"),
        _ => format!("record {index} was discarded; the first record is {first}"),
    };
    Error::new(ErrorKind::Discarded, what)
}

fn out_of_range(index: Index, end: Index) -> Error {
    let what = format!("record {index} does not exist yet; the next record will be {end}");
    Error::new(ErrorKind::OutOfRange, what)
}
