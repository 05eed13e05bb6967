//! Sorted copies: the records of a full segment of a shared group, once more, log by log, in a file beside it. A reader of one log
//! among many finds its records one behind the other there, and scattered over the whole segment otherwise.
//!
//! ```text
//! N.seg, full and committed ──> helper thread: sort ──> N.run.tmp ──synced, renamed──> N.run ──> readers
//! ```
//!
//! The segment stays, and raft, repair and recovery know nothing else. So a copy can be missing at any time: after a crash, on a full
//! disk, once damage was found in it. Readers then use the segment, and the copy is made again.
//!
//! Invariants:
//! - a copy is made of committed blocks only, which never change; it names the segment by its random id;
//! - a file `N.run` is whole and durable: it gets its name after its sync;
//! - no record of one log is ever read as another's: each log's blocks have a salt of their own.
//!
//! Must not know: raft, readers.

use super::block_reader::Blocks;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::store::format::sorted::{SORTED_HEADER_BYTES, SortedDirectory, SortedHeader, salt};
use crate::store::segment::{ReadMode, Segment, SegmentData, Segments, Source};
use crate::types::{Index, LogNumber};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many copies stay open without a reader: mappings, and files, of which a process has few.
const MAPPINGS_MAX: usize = 1024;
const FILES_MAX: usize = 64;

/// The file name of the copy of segment `number`.
pub(crate) fn sorted_name(number: u64) -> String {
    format!("{number:020}.run")
}

/// The number in the file name of a copy; None for other names.
pub(crate) fn sorted_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".run")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// The name of a copy that is being made.
pub(crate) fn unfinished_name(number: u64) -> String {
    format!("{}.tmp", sorted_name(number))
}

/// Whether this is the name of a copy, or of one that is being made.
pub(crate) fn is_sorted_name(name: &str) -> bool {
    sorted_number(name.strip_suffix(".tmp").unwrap_or(name)).is_some()
}

/// The copies of a log's segments. `Send + Sync`; calls block only for the disk.
#[derive(Debug)]
pub(crate) struct SortedCopies {
    segments: Arc<Segments>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The numbers of the segments that have one.
    numbers: BTreeSet<u64>,
    /// How many copies were removed so far.
    removals: u64,
    /// Copies that were used last, newest first.
    recent: VecDeque<Arc<SortedCopy>>,
}

impl SortedCopies {
    pub(crate) fn new(segments: Arc<Segments>) -> Self {
        Self { segments, state: Mutex::default() }
    }

    /// The segments that are copied.
    pub(crate) fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    fn disk(&self) -> &dyn Disk {
        &**self.segments.disk()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the copies in a directory that was just opened, and removes those that no segment has, or that are unfinished.
    ///
    /// # Errors
    /// `Io`: the directory cannot be read.
    pub(crate) fn find(&self, has_segment: impl Fn(u64) -> bool) -> Result<()> {
        let disk = self.disk();
        let names = disk.list().map_err(|e| Error::io("list", disk.path(), e))?;
        for name in names.into_iter().filter(|name| is_sorted_name(name)) {
            match sorted_number(&name).filter(|number| has_segment(*number)) {
                Some(number) => self.add(number),
                None => remove(disk, &name),
            }
        }
        Ok(())
    }

    /// Whether a segment has a copy.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.lock().numbers.contains(&number)
    }

    /// How many copies were removed so far although their segments may be there.
    pub(crate) fn removals(&self) -> u64 {
        self.lock().removals
    }

    /// Notes that a copy was made.
    pub(super) fn add(&self, number: u64) {
        self.lock().numbers.insert(number);
    }

    /// Opens the copy of a segment. One that cannot be used is removed. None: there is none.
    pub(crate) fn of(&self, segment: &Segment) -> Option<Arc<SortedCopy>> {
        let mut state = self.lock();
        if !state.numbers.contains(&segment.number) {
            return None;
        }
        let known = state.recent.iter().position(|copy| copy.number() == segment.number);
        let copy = match known.and_then(|n| state.recent.remove(n)) {
            Some(copy) => copy,
            None => match SortedCopy::open(segment, self.disk(), self.segments.mode()) {
                Ok(copy) => Arc::new(copy),
                Err(error) => {
                    drop(state);
                    self.give_up(segment.number, &error);
                    return None;
                }
            },
        };
        state.recent.push_front(copy.clone());
        state.recent.truncate(match self.segments.mode() {
            ReadMode::Map => MAPPINGS_MAX,
            ReadMode::Read => FILES_MAX,
        });
        Some(copy)
    }

    /// Removes a copy that cannot be used, for this reason. Readers of it go on in the segment.
    pub(crate) fn give_up(&self, number: u64, why: &Error) {
        let disk = self.disk();
        if self.forget(number) {
            tracing::warn!(path = %disk.path().display(), segment = number, error = %why, "the sorted copy of a segment cannot be used; it is removed, and made again later");
            remove(disk, &sorted_name(number));
        }
    }

    /// Removes the copies of segments before `oldest`, which are gone.
    pub(crate) fn drop_below(&self, oldest: u64) {
        loop {
            let first = self.lock().numbers.first().copied();
            let Some(number) = first.filter(|number| *number < oldest) else { return };
            self.forget(number);
            remove(self.disk(), &sorted_name(number));
        }
    }

    /// Removes all copies, because the log needs their space. Returns how many there were.
    pub(crate) fn clear(&self) -> usize {
        let numbers: Vec<_> = self.lock().numbers.iter().copied().collect();
        let removed = numbers.into_iter().filter(|number| self.forget(*number));
        removed.inspect(|number| remove(self.disk(), &sorted_name(*number))).count()
    }

    /// Forgets a copy. False: it was not known.
    fn forget(&self, number: u64) -> bool {
        let mut state = self.lock();
        state.recent.retain(|copy| copy.number() != number);
        let was_known = state.numbers.remove(&number);
        state.removals += u64::from(was_known);
        was_known
    }
}

/// Removes a copy. If that fails, the next opening does it, or finds that it is not of its segment.
pub(super) fn remove(disk: &dyn Disk, name: &str) {
    if let Err(error) = disk.remove(name) {
        tracing::debug!(path = %disk.path().display(), name, %error, "a sorted copy could not be removed");
    }
}

/// The open copy of a segment. It keeps the bytes that were read, even if the file is removed.
#[derive(Debug)]
pub(crate) struct SortedCopy {
    data: Arc<SegmentData>,
    directory: SortedDirectory,
}

impl SortedCopy {
    /// # Errors
    /// `Corrupt`: the file is damaged, or not a copy of this segment; `Io`.
    fn open(segment: &Segment, disk: &dyn Disk, mode: ReadMode) -> Result<Self> {
        let name = sorted_name(segment.number);
        let path = disk.path().join(&name);
        let io = |e| Error::io("read", &path, e);
        let file = disk.open(&name, false).map_err(io)?;
        let mut bytes = vec![0; SORTED_HEADER_BYTES];
        file.read_at(0, &mut bytes).map_err(io)?;
        let corrupt = |why| Error::corrupt(&path, 0, why);
        let header = SortedHeader::parse(&bytes).map_err(corrupt)?;
        let is_of = (header.number, header.id, header.data_end as usize)
            == (segment.number, segment.id, segment.data_end());
        let length = file.len().map_err(io)?;
        if !is_of || length != u64::from(header.directory_at) + header.directory_bytes() as u64 {
            return Err(corrupt("file is not the sorted copy of its segment"));
        }
        bytes.resize(header.directory_bytes(), 0);
        file.read_at(header.directory_at.into(), &mut bytes).map_err(io)?;
        let directory = SortedDirectory::parse(&header, &bytes).map_err(corrupt)?;
        let source = source_of(file, mode).map_err(io)?;
        Ok(Self { data: Arc::new(SegmentData::of_copy(segment, source, path)), directory })
    }

    /// The segment that it is a copy of.
    pub(crate) fn number(&self) -> u64 {
        self.data.segment.number
    }

    /// The blocks of `log` from the one on that contains record `next`, or a few before it, and the offset at which they end. None:
    /// the log does not have the record here.
    pub(crate) fn blocks(&self, log: LogNumber, next: Index, window_bytes: usize) -> Option<(Blocks, usize)> {
        let (at, end) = self.directory.seek(log, next)?;
        let salt = salt(self.data.segment.id, log);
        Some((Blocks::with_salt(self.data.clone(), at, window_bytes, salt), end))
    }
}

fn source_of(file: Arc<dyn DiskFile>, mode: ReadMode) -> std::io::Result<Source> {
    match mode {
        ReadMode::Map => match file.map() {
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => Ok(Source::File(file)),
            map => map.map(Source::Map),
        },
        ReadMode::Read => Ok(Source::File(file)),
    }
}
