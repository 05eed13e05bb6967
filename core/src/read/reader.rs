//! Reader: returns committed records in order from any position, verified each time they are read, and waits at the
//! tail. Also the look-up of a single record by index.
//!
//! Zero copies for uncompressed batches: a record is a slice of the mapping, and holding it keeps the segment. A
//! batch's checksum is verified each time the reader reaches it, because memory and disks decay.
//!
//! Must not know: the writer.

use crate::error::{Error, ErrorKind, Result};
use crate::read::canceller::Canceller;
use crate::read::finder::{Block, Finder};
use crate::read::log_set::deleted;
use crate::read::patience::Waiting;
use crate::read::positions::{Cancel, HookOwner, or_wake};
use crate::read::records::{OwnedRecord, Record, RecordBatch, StoredBatch, undecodable};
use crate::read::view::{LogView, Start, out_of_range};
use crate::record::batch;
use crate::record::batch::BatchHeader;
use crate::record::compression::Codec;
use crate::record::reference::Reference;
use crate::store::read::block_reader::Slice;
use crate::store::read::cursor;
use crate::types::{Index, Timestamp};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

/// The time in which a read-only handle learns what the writer did, generously.
const OUTSIDE_LAG: Duration = Duration::from_millis(50);

impl LogView {
    /// Returns a reader that starts at `start`.
    pub(crate) fn reader(&self, start: Start) -> Result<Reader> {
        self.check_log()?;
        let next = self.resolve_patiently(start).map_err(|error| self.segments.met(error, None))?;
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

    /// Returns one record, by its index.
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

    /// Returns a record of a block that an earlier look-up remembered. None if there is no such block, or if the
    /// batch's bytes changed: the full look-up then finds the reason.
    fn read_remembered(&self, index: Index) -> Option<OwnedRecord> {
        if index < self.positions.first() || !self.log.is_none() {
            return None;
        }
        let (bytes, found) = cursor::remembered(&self.segments, index)?;
        let batch = RecordBatch::verify(&bytes, found.first, found.timestamp).ok()?;
        (index < found.first.plus(batch.count.into())).then(|| batch.into_record(index))
    }
}

/// Reads committed records in order. It keeps the segment that it reads, even if that is discarded, and can still read
/// after the log was closed. A reader of a named log keeps none once it has found no record at the tail. `Send`; one thread at a time.
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
    /// Set once a canceller was requested.
    cancel: OnceLock<Arc<Cancel>>,
    /// The next record to return.
    next: Index,
    /// Whether it looks up one record only: it then remembers what it learns about the record's block.
    lookup: bool,
    cursor: Option<Finder>,
    block: Option<Block>,
    batch: Option<RecordBatch>,
    /// Set if the next record is in a batch that does not unpack: the first record after that batch.
    behind_undecodable: Option<Index>,
}

/// A batch and its location in its segment's file.
struct Found {
    bytes: Slice,
    header: BatchHeader,
    first: Index,
    timestamp: Timestamp,
    offset: usize,
    /// Its length in that file: if it is elsewhere, that of the reference to it.
    length: usize,
}

/// The batch that a reader comes to next, whose bytes are not verified yet.
pub(crate) struct NextBatch {
    /// Its first record, which can be before the reader's position.
    pub(crate) first: Index,
    pub(crate) timestamp: Timestamp,
    /// Its length.
    pub(crate) bytes: usize,
}

impl Reader {
    /// The index of the record that is read next.
    pub fn position(&self) -> Index {
        self.next
    }

    /// Whether the next record is in a file, or will be: reading it does not wait for the object store, unless it refers to it.
    #[doc(hidden)]
    pub fn is_in_files(&self) -> bool {
        self.view.is_in_files(self.next)
    }

    /// Continues at another record, which may be the next one to be appended: backwards, forwards, or past damage.
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`: the reader keeps its position.
    pub fn seek(&mut self, index: Index) -> Result<()> {
        self.next = self.view.resolve(Start::Index(index))?;
        (self.cursor, self.block, self.batch, self.behind_undecodable) = (None, None, None, None);
        Ok(())
    }

    /// Returns the next record, or `None` at the tail. Blocks only for the disk.
    ///
    /// # Errors
    /// After an error the reader keeps its position.
    ///
    /// - `Discarded`: the next record was discarded; make a new reader at [`Start::First`].
    /// - `Corrupt`: the record's bytes fail their checksum.
    /// - `Undecodable`: the bytes are as they were appended, but do not unpack; [`Self::skip_batch`] continues after
    ///   them.
    /// - `Io`.
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

    /// Returns the rest of the current batch, or the whole next one; `None` at the tail. The fastest way to read.
    ///
    /// # Errors
    /// Those of [`Self::next_record`].
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

    /// Returns the whole batch that contains the next record, packed as stored in the log; `None` at the tail. It can
    /// start before [`Self::position`]. For passing batches on: nothing is unpacked, and nothing is copied from a
    /// mapping. Without a mapping, the batch keeps up to twice its size in memory.
    ///
    /// # Errors
    /// Those of [`Self::next_record`], except `Undecodable`.
    pub fn next_stored(&mut self) -> Result<Option<StoredBatch>> {
        if self.has_batch() {
            (self.block, self.cursor) = (None, None); // they are behind this batch already
        }
        (self.batch, self.behind_undecodable) = (None, None);
        if !self.is_committed()? {
            return Ok(None);
        }
        let stored = self.read(|reader| {
            let found = reader.find_batch()?;
            let bytes = found.bytes.apart_from(reader.block.as_ref().map_or(0, |block| block.bytes.len()));
            let stored = StoredBatch::verify(&bytes, found.first, found.timestamp);
            stored.map_err(|why| reader.corrupt(&found, why))
        })?;
        self.next = stored.last().next();
        Ok(Some(stored))
    }

    /// Looks at the batch that [`Self::next_stored`] would return; `None` at the tail. The reader keeps its position.
    ///
    /// # Errors
    /// Those of [`Self::next_stored`].
    pub(crate) fn peek_stored(&mut self) -> Result<Option<NextBatch>> {
        if !self.is_committed()? {
            return Ok(None);
        }
        let Found { bytes, first, timestamp, length, .. } = self.read(Self::find_batch)?;
        if let Some(block) = &mut self.block {
            block.at -= length;
            block.first = first;
        }
        Ok(Some(NextBatch { first, timestamp, bytes: bytes.len() }))
    }

    /// Drops the bytes that were read without a mapping.
    pub(crate) fn release(&mut self) {
        let is_within = |block: &Block| block.at < block.bytes.len();
        if self.block.as_ref().is_none_or(|block| matches!(block.bytes, Slice::Mapped { .. })) {
            return;
        }
        match (self.block.take().is_some_and(|block| is_within(&block)), &mut self.cursor) {
            (true, cursor) => *cursor = None, // it is behind this block already
            (false, Some(cursor)) => cursor.release(),
            (false, None) => {}
        }
    }

    /// Skips a batch that the last step of this reader found `Undecodable`, and returns the index of the record that is
    /// read next. After any other result of the last step, nothing changes.
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
    /// None today. Damage is not skipped, because the end of the damaged batch is not known.
    pub fn skip_batch(&mut self) -> Result<Index> {
        if let Some(behind) = self.behind_undecodable.take() {
            self.next = behind;
        }
        Ok(self.next)
    }

    /// Blocks until there is a record to read (true) or the time-out passes (false); `None` waits without limit.
    ///
    /// # Errors
    /// `Closed` if the log was closed and all its records were read; `Poisoned` if it was poisoned; `Cancelled` after
    /// its [`canceller`](Self::canceller) was used, even if there is a record to read.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        if self.has_batch() && !self.is_cancelled() {
            return Ok(true);
        }
        self.view.positions.wait_unless(self.next, timeout, || self.is_cancelled())
    }

    /// Returns a handle that ends [`Self::wait`] permanently from another thread, to stop a thread that follows the
    /// log. Calls that do not wait still work, and the reader keeps its position.
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

    /// Calls `hook` once: when there is a record to read, the log was closed, or the reader was cancelled.
    ///
    /// If that is so already, the hook runs at once. Otherwise it runs on a thread of the log, or on the one that
    /// cancels, and must not block there. For runtimes and event loops: wake a task, write to an eventfd. A reader has
    /// one hook: a new one replaces the previous one, and dropping the reader drops it.
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
    /// Those of [`Self::wait`].
    pub fn poll_more(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        or_wake(self.wait(Some(Duration::ZERO)), context, |waker| self.on_more(|| waker.wake()))
    }

    fn has_batch(&self) -> bool {
        self.batch.as_ref().is_some_and(|b| b.skip < b.count)
    }

    /// Makes `batch` contain the next record. False: the record is not committed yet.
    fn fill(&mut self) -> Result<bool> {
        if self.has_batch() {
            return Ok(true);
        }
        (self.batch, self.behind_undecodable) = (None, None);
        if !self.is_committed()? {
            return Ok(false);
        }
        if let Some(batch) = self.next_in_block() {
            self.batch = Some(batch);
            return Ok(true);
        }
        let mut behind = None;
        let found = self.read(|reader| {
            let found = reader.find_batch()?;
            let Found { header, .. } = found;
            batch::verify_sum(&header, &found.bytes).map_err(|why| reader.corrupt(&found, why))?;
            let batch = RecordBatch::unpack(&found.bytes, &header, found.first, found.timestamp);
            batch.map_err(|why| {
                behind = Some(found.first.plus(header.count.into()));
                undecodable(found.first, header.count, why)
            })
        });
        self.behind_undecodable = behind;
        let mut batch = found?;
        batch.skip = (self.next.0 - batch.first().0) as u32;
        self.batch = Some(batch);
        Ok(true)
    }

    /// The batch with the next record, if it is in the block that was read last. None: it is not, or cannot be read there; the general way
    /// finds out why. Most batches of a scan are small, and come this way.
    #[inline]
    fn next_in_block(&mut self) -> Option<RecordBatch> {
        let block = self.block.as_mut()?;
        let header = BatchHeader::parse(block.bytes.get(block.at..)?).ok()?;
        let (first, at) = (block.first, block.at);
        let behind = first.plus(u64::from(header.count));
        if !(first..behind).contains(&self.next) || is_reference(&header) {
            return None;
        }
        let bytes = block.bytes.slice(at..at + header.length as usize);
        batch::verify_sum(&header, &bytes).ok()?;
        let mut batch = RecordBatch::unpack(&bytes, &header, first, block.timestamp).ok()?;
        batch.skip = (self.next.0 - first.0) as u32;
        (block.at, block.first) = (at + header.length as usize, behind);
        Some(batch)
    }

    /// Whether the next record is committed; an error if it was discarded.
    fn is_committed(&mut self) -> Result<bool> {
        let first = self.view.positions.first();
        if self.next < first {
            return Err(self.view.before_first(self.next, first));
        }
        if self.next <= self.view.positions.committed() {
            return Ok(true);
        }
        // Records that were committed before can still be read while their files are there.
        if self.view.positions.is_closed() && self.view.is_dropped() {
            return Err(deleted(self.view.log));
        }
        // A reader that waits for a quiet log keeps no file of its group, which others fill.
        if self.cursor.as_mut().is_some_and(Finder::rest) {
            self.block = None;
        }
        Ok(false)
    }

    /// Reads what is committed. Waits for an object that this copy does not know yet.
    fn read<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let mut waiting = Waiting::default();
        loop {
            let found = self.here_or_elsewhere(&mut read);
            match self.or_discarded(found) {
                Err(error) if !self.is_cancelled() && self.view.pauses(&error, &mut waiting) => {}
                found => return found,
            }
        }
    }

    /// Returns the result of a read, or a better reason if it failed.
    fn or_discarded<T>(&mut self, read: Result<T>) -> Result<T> {
        if let Err(error) = &read {
            // The next call starts over from the index: no partial state is kept.
            self.block = None;
            self.cursor = None;
            if error.kind() == ErrorKind::Undecodable {
                return read; // no damage, so no other reason
            }
            // The record may have been discarded meanwhile, and its file removed or reused: then the caller gets
            // `Discarded`.
            if self.view.outside {
                std::thread::sleep(OUTSIDE_LAG);
            }
            let first = self.view.positions.first();
            if self.next < first && error.kind() != ErrorKind::Discarded {
                return Err(self.view.before_first(self.next, first));
            }
        }
        if read.is_err() && self.view.is_dropped() {
            return Err(deleted(self.view.log));
        }
        read.map_err(|error| self.view.met(&error, self.next))
    }

    /// Reads; if what is here is damaged, from the other file that has the record too, a segment or its sorted copy, and then from the object
    /// that has it. An object that came damaged is fetched once more.
    fn here_or_elsewhere<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let mut elsewhere = [Self::go_to_other_file, Self::go_to_object].into_iter();
        loop {
            let error = match read(self) {
                Err(error) if error.kind() == ErrorKind::Corrupt => error,
                result => return result,
            };
            if !elsewhere.any(|go| go(self, &error)) {
                return Err(error);
            }
            // The repair learns of damage to a file here, also if the record is read elsewhere.
            let _ = self.view.met(&error, self.next);
        }
    }

    fn go_to_other_file(&mut self, why: &Error) -> bool {
        let next = self.next;
        let goes = self.cursor.as_mut().is_some_and(|cursor| cursor.go_to_other_file(next, why));
        if goes {
            self.block = None;
        }
        goes
    }

    fn go_to_object(&mut self, _: &Error) -> bool {
        if self.reads_runs() {
            self.block = None;
            let next = self.next;
            return self
                .cursor
                .as_mut()
                .is_some_and(|cursor| cursor.go_to_object(next).is_ok_and(|is_there| is_there));
        }
        let Ok(Some(object)) = self.view.segments.objects().holding(self.next) else { return false };
        let Ok(cursor) = self.view.cursor_in(&object, self.next) else { return false };
        (self.block, self.cursor) = (None, Some(Finder::Blocks(cursor)));
        true
    }

    /// Finds the batch that contains `next`, which is committed, and moves past it. Not verified yet. If the log only refers to it, it
    /// comes from the object store.
    fn find_batch(&mut self) -> Result<Found> {
        let found = self.find_stored()?;
        if !is_reference(&found.header) {
            return Ok(found);
        }
        // Once an object has the batch, the slice to which the log refers may be gone. Which object has one of a named log, only its
        // opening says: that costs more than a look for the slice.
        if self.view.log.is_none()
            && let Some(found) = self.find_in_object()
        {
            return found;
        }
        match self.fetch(&found) {
            Err(error) if error.kind() == ErrorKind::NotFound => match self.find_in_object() {
                Some(Ok(found)) if is_reference(&found.header) => Err(gone(&error)),
                Some(found) => found,
                None => Err(gone(&error)),
            },
            Err(error) => Err(error),
            Ok((bytes, header)) => Ok(Found { bytes, header, ..found }),
        }
    }

    /// Goes on in the object that contains `next`, if there is one.
    fn find_in_object(&mut self) -> Option<Result<Found>> {
        if !self.view.log.is_none() {
            self.block = None;
            return match self.cursor.as_mut()?.go_to_object(self.next) {
                Ok(is_there) => is_there.then(|| self.find_stored()),
                Err(error) => Some(Err(error)),
            };
        }
        let object = match self.view.segments.objects().holding(self.next) {
            Ok(object) => object?,
            Err(error) => return Some(Err(error)),
        };
        let cursor = self.view.cursor_in(&object, self.next);
        (self.block, self.cursor) = (None, None);
        Some(cursor.and_then(|cursor| {
            self.cursor = Some(Finder::Blocks(cursor));
            self.find_stored()
        }))
    }

    /// Fetches the batch to which the log refers. A small one does not keep its whole slice in memory.
    fn fetch(&self, found: &Found) -> Result<(Slice, BatchHeader)> {
        let header = &found.header;
        let parsed =
            batch::verify_sum(header, &found.bytes).and_then(|()| Reference::parse(header, &found.bytes));
        let reference = parsed.map_err(|why| self.corrupt(found, why))?;
        let bytes = self.view.segments.objects().payloads()?.batch(header, &reference)?;
        let bytes = Slice::Copied(bytes).apart_from(reference.slice_bytes as usize);
        let header = BatchHeader::parse(&bytes).map_err(|why| self.corrupt(found, why))?;
        Ok((bytes, header))
    }

    /// Finds the batch that contains `next` as it is in the log, and moves past it. Not verified yet.
    fn find_stored(&mut self) -> Result<Found> {
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            none => none.insert(Finder::new(&self.view, self.next)?),
        };
        loop {
            let block = match self.block.take() {
                Some(block) if block.at < block.bytes.len() => block,
                _ => {
                    if !cursor.leads_to(&self.view, self.next) {
                        *cursor = Finder::new(&self.view, self.next)?;
                    }
                    cursor.find(self.next, self.lookup)?
                }
            };
            let block = self.block.insert(block);
            let rest = &block.bytes[block.at..];
            let header =
                BatchHeader::parse(rest).map_err(|why| cursor.corrupt(block.offset + block.at, why))?;
            let (at, first) = (block.at, block.first);
            block.at += header.length as usize;
            block.first = first.plus(u64::from(header.count));
            if block.first > self.next {
                let bytes = block.bytes.slice(at..at + header.length as usize);
                let (timestamp, offset, length) =
                    (block.timestamp, block.offset + at, header.length as usize);
                return Ok(Found { bytes, header, first, timestamp, offset, length });
            }
        }
    }

    /// Whether the records come from mixed blocks of a group, or from its objects.
    fn reads_runs(&self) -> bool {
        !self.view.log.is_none() || matches!(self.cursor, Some(Finder::Older(_)))
    }

    /// The error for a batch that does not contain the bytes that were written.
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

/// Whether the batch is a reference to one in the object store.
fn is_reference(header: &BatchHeader) -> bool {
    header.codec == Codec::Reference
}

/// The error of a batch whose slice is gone, while no object with it is known here.
fn gone(error: &Error) -> Error {
    let what = format!(
        "{error}: it is lost, or this replica does not know yet which object has its records; try again, or read from another replica"
    );
    Error::new(ErrorKind::Unavailable, what)
}
