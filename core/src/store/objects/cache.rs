//! Cache: the objects that readers use, as sparse files beside the log's segments. Readers map such a file like a segment; before
//! they look at a range, the chunks that it is in are fetched.
//!
//! ```text
//! 00000000000000000007-0.object   | chunk 0: here | chunk 1: a hole | chunk 2: being fetched | ... |
//! ```
//!
//! Invariants:
//! - the bytes of a chunk are written before it counts as here, and never again: references to them stay sound;
//! - it has a bounded number of files open, whatever is in them, and in addition those that readers use;
//! - a file that leaves the cache loses its name alone. Readers that have it open go on in it;
//! - where the disk is full, cached files give way: those of any cache before the log is refused a file, and those of this one before a
//!   reader is refused a file or a chunk, those that no reader has open first. None goes for nothing: once one has gone and there is no more
//!   room than before, the others stay. Every file with a name is known here, so that it can go;
//! - nothing in a cached file is trusted: its blocks and batches are checked like those of a segment. Where a check fails, the
//!   file leaves the cache, so that the next reader fetches it again.
//!
//! Once the log is closed none of its cached files has a name, also those that readers make then: the directory can be another handle's.
//! The files are removed when the log is opened: they have no record of what is in them. Objects that are kept whole have a name of
//! their own, and stay: see `cache/whole.rs`.
//!
//! Must not know: which objects there are.

mod room;
mod whole;

pub(crate) use self::whole::{KeptObject, is_object_file};

use self::whole::Kept;
use super::deletion::newest_begin;
use super::fetch::{Chunks, Fetchers};
use super::names::{not_there, object_name, root_name};
use crate::disk::{Disk, DiskFile, Map};
use crate::error::{Error, ErrorKind, Result};
use crate::types::LogId;
use crate::vault::Vault;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Bytes that are fetched at a time.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;
/// The same of an object that is sorted by log: a reader of one log needs little of it.
pub(crate) const SORTED_CHUNK_BYTES: usize = 256 << 10;

/// The most cached objects of a log: each has a descriptor, however few bytes it has. Readers can have others open, and objects that are
/// kept whole do not count.
pub const FILES_MAX: usize = 256;

/// The suffix of a cached file's name.
const SUFFIX: &str = ".object";

/// The objects that readers use. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct ObjectCache {
    vault: Arc<dyn Vault>,
    disk: Arc<dyn Disk>,
    /// Whether readers map files.
    maps: bool,
    bytes_max: u64,
    /// Bytes of the chunks of files that are in the cache, and not kept.
    bytes: AtomicU64,
    files: Mutex<Files>,
    /// Notified when the log is closed.
    closing: Condvar,
    /// The disk that the files are on, if objects are kept whole.
    device: OnceLock<u64>,
    pub(super) fetchers: Fetchers,
    fetched: AtomicU64,
    /// Attempts to keep an object that failed.
    fill_failures: AtomicU64,
    /// How many files were made.
    made: AtomicU64,
    /// Objects in which readers have met damage, as long as there is a scrub that examines them.
    suspects: Mutex<BTreeSet<u64>>,
    on_damage: OnceLock<OnDamage>,
    /// Objects that the scrub could not read, and whether a part of each was fetched since.
    watched: Mutex<BTreeMap<u64, bool>>,
}

/// The files of a cache.
#[derive(Debug, Default)]
struct Files {
    /// Those that readers use, the one that was opened last first.
    recent: VecDeque<Arc<ObjectFile>>,
    /// Those that are kept whole, or will be, by the numbers of their objects.
    kept: BTreeMap<u64, Kept>,
    /// The log was closed: the directory is another handle's.
    is_closed: bool,
}

/// Wakes the scrub that examines objects in which readers have met damage.
struct OnDamage(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for OnDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDamage")
    }
}

impl ObjectCache {
    /// A cache of at most `bytes_max` bytes for the log in `disk`. Numbers of objects are unique in it, also in that of a branch.
    /// Removes what an earlier one left, except objects that were kept whole, if this one `keeps` objects.
    pub(crate) fn new(
        vault: Arc<dyn Vault>,
        disk: Arc<dyn Disk>,
        maps: bool,
        bytes_max: u64,
        keeps: bool,
    ) -> Self {
        let mut kept = BTreeMap::new();
        for name in disk.list().unwrap_or_default().into_iter().filter(|name| name.ends_with(SUFFIX)) {
            match whole::found(&*disk, &name).filter(|_| keeps) {
                Some((number, whole)) => _ = kept.insert(number, whole),
                None => remove(&*disk, &name),
            }
        }
        Self {
            vault,
            disk,
            maps,
            bytes_max,
            bytes: AtomicU64::new(0),
            files: Mutex::new(Files { kept, ..Files::default() }),
            closing: Condvar::new(),
            device: OnceLock::new(),
            fetchers: Fetchers::default(),
            fetched: AtomicU64::new(0),
            fill_failures: AtomicU64::new(0),
            made: AtomicU64::new(0),
            suspects: Mutex::default(),
            on_damage: OnceLock::new(),
            watched: Mutex::default(),
        }
    }

    /// Lets readers fetch ahead, by threads of this cache.
    pub(crate) fn start_fetching(&self) {
        self.fetchers.start(self.disk.path());
    }

    /// Bytes that were fetched from the object store since the log was opened, and bytes that the cache holds.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.fetched.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Opens object `number`, which is one of the log `owner` and has `bytes` bytes.
    ///
    /// # Errors
    /// `Io`: the file could not be made.
    pub(crate) fn open(
        self: &Arc<Self>,
        owner: LogId,
        number: u64,
        bytes: usize,
        chunk_bytes: usize,
    ) -> Result<Arc<ObjectFile>> {
        let files = &mut *lock(&self.files);
        if let Some(file) = self.open_kept(files, (owner, number), bytes, chunk_bytes) {
            return Ok(file);
        }
        let recent = &mut files.recent;
        if let Some(n) = recent.iter().position(|file| file.number == number)
            && let Some(file) = recent.remove(n)
        {
            recent.push_front(file.clone());
            return Ok(file);
        }
        while files.recent.len() >= FILES_MAX
            && let Some(spare) = files.take_spare(|_| true)
        {
            self.forget(files, &spare);
        }
        let file = Arc::new(ObjectFile::make(self, files, (owner, number), bytes, chunk_bytes)?);
        files.recent.push_front(file.clone());
        Ok(file)
    }

    /// Whether the object store has returned something since the log was opened. If it has not, an object is tried, at once
    /// or by a thread.
    pub(crate) fn has_fetched(
        self: &Arc<Self>,
        owner: LogId,
        number: u64,
        bytes: usize,
        chunk_bytes: usize,
    ) -> bool {
        let has_fetched = || self.fetched.load(Ordering::Relaxed) > 0;
        if has_fetched() {
            return true;
        }
        match self.open(owner, number, bytes, chunk_bytes) {
            Ok(file) if self.fetchers.are_started() => file.will_need(0..1),
            Ok(file) => drop(file.ensure(0..1)), // the next call tries again
            Err(error) => tracing::debug!(%error, "no object can be tried"),
        }
        has_fetched()
    }

    /// As [`Self::has_fetched`], and tries the object at once if nothing was returned yet. Its bytes need not be known. If it was discarded
    /// and deleted meanwhile, the root of its log is as good: it is in no other place. An older copy of the place has it, too, so the
    /// store has to say that all objects up to this one are discarded; unless it cannot, being the objects as the log's own servers have
    /// them.
    ///
    /// # Errors
    /// Those of the object store. `Unavailable`: it is another one, without the log's root.
    pub(crate) fn try_object(&self, owner: LogId, number: u64) -> Result<()> {
        if self.fetched.load(Ordering::Relaxed) == 0 {
            let root = root_name(owner);
            // A store without the log's root is another one.
            let lacked = |error| match self.vault.size(&root) {
                Ok(None) => Error::new(ErrorKind::Unavailable, not_there(&root)),
                _ => error,
            };
            let got = match self.vault.get(&object_name(owner, number), 0..1) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    match newest_begin(&*self.vault, owner) {
                        Err(unknown) if unknown.kind() == ErrorKind::Unsupported => {}
                        begin => {
                            if begin?.is_none_or(|begin| begin <= number) {
                                return Err(lacked(error));
                            }
                        }
                    }
                    self.vault.get(&root, 0..1).map_err(|_| lacked(error))?
                }
                got => got?,
            };
            self.fetched.fetch_add(got.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts bytes that were fetched to a file. Then removes the files that were opened longest ago until the cache is within
    /// its bound; never the newest one.
    fn add(&self, file: &ObjectFile, bytes: usize) {
        self.fetched.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(fetched) = lock(&self.watched).get_mut(&file.number) {
            *fetched = true;
        }
        let mut files = lock(&self.files);
        if file.is_discarded() {
            return;
        }
        file.held.fetch_add(bytes as u64, Ordering::Relaxed);
        if file.is_kept.load(Ordering::Relaxed) {
            return;
        }
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        while self.bytes.load(Ordering::Relaxed) > self.bytes_max && files.recent.len() > 1 {
            if let Some(file) = files.recent.pop_back() {
                self.forget(&files, &file);
            }
        }
    }

    /// The names of its files that it does not keep whole, or not yet.
    #[cfg(feature = "testing")]
    pub(crate) fn cached_names(&self) -> BTreeSet<String> {
        let files = lock(&self.files);
        let filling = files.kept.values().filter_map(Kept::filling);
        files.recent.iter().chain(filling).map(|file| file.file_name()).collect()
    }

    /// The objects in which readers have met damage since the last call.
    pub(crate) fn take_suspects(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.suspects.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has damage that readers meet collected, and this called for each object.
    pub(crate) fn on_damage(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_damage.set(OnDamage(Box::new(wake)));
    }

    /// Has it noted which of these objects are fetched, in part, from now on; and of no others.
    pub(crate) fn watch(&self, objects: &BTreeSet<u64>) {
        let mut watched = lock(&self.watched);
        watched.retain(|number, _| objects.contains(number));
        objects.iter().for_each(|number| _ = watched.entry(*number).or_insert(false));
    }

    /// Of the objects that are watched those of which a part was fetched since the last call.
    pub(crate) fn take_fetched(&self) -> Vec<u64> {
        let mut watched = lock(&self.watched);
        let fetched = |(number, fetched): (&u64, &mut bool)| std::mem::take(fetched).then_some(*number);
        watched.iter_mut().filter_map(fetched).collect()
    }

    /// The object store.
    pub(crate) fn vault(&self) -> &dyn Vault {
        &*self.vault
    }

    /// An object does not have what it has to have: the scrub examines it soon.
    pub(crate) fn suspect(&self, number: u64) {
        let Some(OnDamage(wake)) = self.on_damage.get() else { return };
        let is_new = self.suspects.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        if is_new {
            wake();
        }
    }

    /// Takes a file out of the account, and its name from the disk. The caller holds the lock of the files.
    fn forget(&self, files: &Files, file: &ObjectFile) {
        if file.discarded.swap(true, Ordering::Relaxed) {
            return;
        }
        if !file.is_kept.load(Ordering::Relaxed) {
            self.bytes.fetch_sub(file.held.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if !files.is_closed {
            remove(&*self.disk, &file.file_name());
        }
    }
}

fn remove(disk: &dyn Disk, name: &str) {
    if let Err(error) = disk.remove(name) {
        tracing::warn!(%name, path = %disk.path().display(), %error, "a cached object could not be removed");
    }
}

impl Drop for ObjectCache {
    fn drop(&mut self) {
        self.fetchers.stop();
        self.close();
    }
}

/// The states of a chunk.
const ABSENT: u8 = 0;
const FETCHING: u8 = 1;
const HERE: u8 = 2;

/// An object whose chunks are fetched when they are read. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    cache: Weak<ObjectCache>,
    vault: Arc<dyn Vault>,
    number: u64,
    /// Its name in the object store.
    name: String,
    /// The name of the object that says which log this is.
    root: String,
    /// The name of its file. It changes once it is whole.
    file_name: Mutex<String>,
    file: Arc<dyn DiskFile>,
    map: Option<Map>,
    bytes: usize,
    chunk_bytes: usize,
    chunks: Vec<AtomicU8>,
    /// How far a reader can read ahead.
    ahead_max: usize,
    /// Chunks that a thread fetches now, and the failures that are passed on to those who wait for it. A chunk's state changes under this
    /// lock.
    fetching: Mutex<BTreeMap<usize, Arc<OnceLock<Error>>>>,
    changed: Condvar,
    /// Bytes of its chunks that are here.
    held: AtomicU64,
    /// It is kept whole, or will be: it does not count as a part of the cache, and never leaves it for others. Changes under the
    /// lock of the cache's files.
    is_kept: AtomicBool,
    discarded: AtomicBool,
}

impl ObjectFile {
    fn make(
        cache: &Arc<ObjectCache>,
        files: &mut Files,
        (owner, number): (LogId, u64),
        bytes: usize,
        chunk_bytes: usize,
    ) -> Result<Self> {
        let (file_name, file) = loop {
            // A name of its own: a file of the same object may be about to lose its.
            let made = cache.made.fetch_add(1, Ordering::Relaxed);
            let closed = if files.is_closed { "closed-" } else { "" };
            let file_name = format!("{number:020}-{closed}{made}{SUFFIX}");
            let file = cache.write_with_room(Some(files), None, || {
                let file = cache.disk.create(&file_name)?;
                // The whole length, almost without space: what is not fetched takes none.
                match file.write_at(bytes as u64 - 1, &[IoSlice::new(&[0])]) {
                    Ok(()) => Ok(file),
                    Err(error) => {
                        remove(&*cache.disk, &file_name);
                        Err(error)
                    }
                }
            });
            match file {
                // Of a reader that has outlived its handle of this directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let path = || cache.disk.path().join(&file_name);
                    let file = file.map_err(|e| Error::io("make", &path(), e))?;
                    break (file_name, file);
                }
            }
        };
        if files.is_closed {
            remove(&*cache.disk, &file_name);
        }
        Ok(Self::of(cache, (owner, number), (file_name, file), bytes, (chunk_bytes, ABSENT)))
    }

    /// The object whose chunks are all in this state in a file.
    fn of(
        cache: &Arc<ObjectCache>,
        (owner, number): (LogId, u64),
        (file_name, file): (String, Arc<dyn DiskFile>),
        bytes: usize,
        (chunk_bytes, state): (usize, u8),
    ) -> Self {
        let map = if cache.maps { file.map().ok() } else { None };
        Self {
            cache: Arc::downgrade(cache),
            vault: cache.vault.clone(),
            number,
            name: object_name(owner, number),
            root: root_name(owner),
            file_name: Mutex::new(file_name),
            file,
            map,
            bytes,
            chunk_bytes,
            chunks: (0..bytes.div_ceil(chunk_bytes)).map(|_| AtomicU8::new(state)).collect(),
            ahead_max: usize::try_from(cache.bytes_max / 2).unwrap_or(usize::MAX),
            fetching: Mutex::default(),
            changed: Condvar::new(),
            held: AtomicU64::new(0),
            is_kept: AtomicBool::new(false),
            discarded: AtomicBool::new(false),
        }
    }

    fn file_name(&self) -> String {
        lock(&self.file_name).clone()
    }

    /// Its name in the object store, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }

    /// Its mapping, if readers map files.
    pub(crate) fn map(&self) -> Option<&Map> {
        self.map.as_ref()
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// How many bytes a reader can fetch ahead, so that the cache keeps them until they are read: half of what it holds.
    pub(crate) fn ahead_max(&self) -> usize {
        self.ahead_max
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Takes it out of the cache: the next reader fetches it again.
    pub(crate) fn discard(&self) {
        if let Some(cache) = self.cache.upgrade() {
            cache.suspect(self.number);
            let mut files = lock(&cache.files);
            files.recent.retain(|file| !std::ptr::eq(&**file, self));
            if files.kept.get(&self.number).is_some_and(|kept| kept.is(self)) {
                files.kept.remove(&self.number);
            }
            cache.forget(&files, self);
        }
    }

    /// Fetches what is not here of a range. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Vault`]; `Corrupt`: the object is missing in the object store, or too short. `Io`: the cache could not be
    /// written.
    pub(crate) fn ensure(&self, range: Range<usize>) -> Result<()> {
        for chunk in self.chunks_of(range) {
            self.ensure_chunk(chunk)?;
        }
        Ok(())
    }

    /// Has what is not here of a range fetched by other threads. Advice only.
    pub(crate) fn will_need(self: &Arc<Self>, range: Range<usize>) {
        let Some(cache) = self.cache.upgrade() else { return };
        for chunk in self.chunks_of(range) {
            if self.chunks[chunk].load(Ordering::Relaxed) == ABSENT {
                cache.fetchers.push(self, chunk);
            }
        }
    }

    /// Whether a range is here. If it is not, other threads fetch it; without threads, this one does.
    ///
    /// # Errors
    /// Without threads those of [`Self::ensure`].
    pub(crate) fn is_here(self: &Arc<Self>, range: Range<usize>) -> Result<bool> {
        let is_here = |chunk: usize| self.chunks[chunk].load(Ordering::Acquire) == HERE;
        if self.chunks_of(range.clone()).all(is_here) {
            return Ok(true);
        }
        match self.cache.upgrade().is_some_and(|cache| cache.fetchers.are_started()) {
            true => self.will_need(range.clone()),
            false => self.ensure(range.clone())?,
        }
        Ok(self.chunks_of(range).all(is_here))
    }

    fn chunks_of(&self, range: Range<usize>) -> Range<usize> {
        let end = range.end.min(self.bytes);
        if range.start >= end {
            0..0
        } else {
            range.start / self.chunk_bytes..(end - 1) / self.chunk_bytes + 1
        }
    }

    /// Fetches a chunk, or waits for the thread that fetches it. If that thread fails, so do those who wait for it: each of them would else
    /// wait for the object store once more, one after the other.
    fn ensure_chunk(&self, chunk: usize) -> Result<()> {
        let state = &self.chunks[chunk];
        if state.load(Ordering::Acquire) == HERE {
            return Ok(());
        }
        let mut chunks = lock(&self.fetching);
        let failure = loop {
            if state.load(Ordering::Acquire) == HERE {
                return Ok(());
            }
            let Some(failure) = chunks.get(&chunk).cloned() else {
                break chunks.entry(chunk).or_default().clone();
            };
            while chunks.get(&chunk).is_some_and(|now| Arc::ptr_eq(now, &failure)) {
                chunks = self.changed.wait(chunks).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(error) = failure.get() {
                return Err(error.clone());
            }
        };
        state.store(FETCHING, Ordering::Relaxed);
        drop(chunks);
        let mut fetching = Fetching { file: self, chunk, is_here: false };
        let fetched = self.fetch(chunk).inspect_err(|error| _ = failure.set(error.clone()));
        fetching.is_here = fetched.is_ok();
        fetched
    }

    fn fetch(&self, chunk: usize) -> Result<()> {
        let range = chunk * self.chunk_bytes..((chunk + 1) * self.chunk_bytes).min(self.bytes);
        let mut at = range.start;
        let mut write = |piece: Bytes| {
            let end = at + piece.len();
            if end > range.end {
                return Err(Error::new(ErrorKind::OutOfRange, "more bytes came"));
            }
            let write = || self.file.write_at(at as u64, &[IoSlice::new(&piece)]);
            let written = match self.cache.upgrade() {
                Some(cache) => cache.write_with_room(None, Some(self), write),
                None => write(),
            };
            at = end;
            written.map_err(|e| Error::io("write", &PathBuf::from(self.file_name()), e))
        };
        let got = self.vault.get_pieces(&self.name, range.start as u64..range.end as u64, &mut write);
        let got = got.and_then(|()| match at == range.end {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutOfRange, format!("{} bytes came", at - range.start))),
        });
        got.map_err(|error| match error.kind() {
            // Not one object, but all of them.
            ErrorKind::NotFound if matches!(self.vault.size(&self.root), Ok(None)) => {
                Error::new(ErrorKind::Unavailable, not_there(&self.root))
            }
            ErrorKind::NotFound | ErrorKind::OutOfRange => {
                if let Some(cache) = self.cache.upgrade() {
                    cache.suspect(self.number);
                }
                let what = format!("the object store does not have it whole: {error}");
                Error::corrupt(&self.path(), range.start as u64, what)
            }
            _ => error,
        })?;
        if let Some(cache) = self.cache.upgrade() {
            cache.add(self, range.len());
        }
        Ok(())
    }
}

/// A chunk that is being fetched. Its state changes when this is dropped, also by a panic in the program's vault: no reader waits
/// for ever.
struct Fetching<'a> {
    file: &'a ObjectFile,
    chunk: usize,
    is_here: bool,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        let mut chunks = lock(&self.file.fetching);
        let state = if self.is_here { HERE } else { ABSENT };
        self.file.chunks[self.chunk].store(state, Ordering::Release);
        chunks.remove(&self.chunk);
        self.file.changed.notify_all();
    }
}

impl Chunks for ObjectFile {
    fn fetch_chunk(&self, chunk: usize) -> Result<()> {
        self.ensure_chunk(chunk)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::deletion::say_begin;
    use super::super::names::root_text;
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::vault::{HookedVault, MemoryVault};
    use std::sync::atomic::AtomicUsize;

    const LOG: LogId = LogId(7);
    const BYTES: usize = 1000;

    /// The root of a log was enough, and an older copy of the store has it, too: a copy of the log gave up files whose records that store
    /// does not have.
    #[test]
    fn root_of_a_log_is_enough_only_if_the_object_is_discarded() {
        let vault = Arc::new(MemoryVault::default());
        vault.put(&root_name(LOG), &[root_text(LOG).into()]).unwrap();
        let disk = Arc::new(SimDisk::default());
        let tried = |number| {
            let cache = ObjectCache::new(vault.clone(), disk.clone(), false, 64 << 20, false);
            cache.try_object(LOG, number).map_err(|error| error.kind())
        };
        assert_eq!(tried(3), Err(ErrorKind::NotFound));
        say_begin(&*vault, LOG, 3).unwrap();
        assert_eq!((tried(2), tried(3)), (Ok(()), Err(ErrorKind::NotFound)));
        vault.put(&object_name(LOG, 3), &[vec![1; BYTES].into()]).unwrap();
        assert_eq!(tried(3), Ok(()));
        vault.delete(&root_name(LOG)).unwrap();
        assert_eq!(tried(2), Err(ErrorKind::Unavailable));
    }

    /// The object store is silent for long, and fails: threads that waited for a chunk began to fetch it one after the other.
    #[test]
    fn readers_share_a_failure() {
        const OTHERS: usize = 5;
        let below = Arc::new(MemoryVault::default());
        below.put(&root_name(LOG), &[root_text(LOG).into()]).unwrap();
        below.put(&object_name(LOG, 0), &[vec![1; BYTES].into()]).unwrap();
        let vault = Arc::new(HookedVault::new(below));
        let (gets, fails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, failing) = (gets.clone(), fails.clone());
        vault.set(move |call, _| {
            if call != "get" {
                return Ok(());
            }
            counted.fetch_add(1, Ordering::SeqCst);
            while !failing.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Err(Error::new(ErrorKind::Unavailable, "no answer"))
        });
        let disk = Arc::new(SimDisk::default());
        let cache = Arc::new(ObjectCache::new(vault.clone(), disk, false, 64 << 20, false));
        let file = cache.open(LOG, 0, BYTES, CHUNK_BYTES).unwrap();
        let read = || file.ensure(0..BYTES);
        std::thread::scope(|scope| {
            let first = scope.spawn(read);
            while gets.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let others: Vec<_> = (0..OTHERS).map(|_| scope.spawn(read)).collect();
            let waits = || lock(&file.fetching).get(&0).map_or(0, Arc::strong_count) == 2 + OTHERS;
            while !waits() {
                std::thread::yield_now();
            }
            fails.store(true, Ordering::SeqCst);
            for thread in others.into_iter().chain([first]) {
                assert_eq!(thread.join().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
            }
        });
        assert_eq!(gets.load(Ordering::SeqCst), 1, "all of them waited for the one");
        vault.set(|_, _| Ok(()));
        read().unwrap();
    }

    /// Each small object took a descriptor until the cache was full of bytes: the process ran out of them.
    #[test]
    fn few_files_are_open_however_small_they_are() {
        let vault = Arc::new(MemoryVault::default());
        vault.put(&object_name(LOG, 0), &[vec![1; BYTES].into()]).unwrap();
        let disk = Arc::new(SimDisk::default());
        let cache = Arc::new(ObjectCache::new(vault, disk.clone(), false, 64 << 20, false));
        let read = cache.open(LOG, 0, BYTES, CHUNK_BYTES).unwrap();
        for number in 1..=2 * FILES_MAX as u64 {
            cache.open(LOG, number, BYTES, CHUNK_BYTES).unwrap();
        }
        assert_eq!(disk.list().unwrap().len(), FILES_MAX);
        assert!(!read.is_discarded(), "a reader has it");
        read.ensure(0..BYTES).unwrap();
        // Readers have more open than that.
        let all: Vec<_> = (0..=FILES_MAX as u64)
            .map(|number| cache.open(LOG, number, BYTES, CHUNK_BYTES).unwrap())
            .collect();
        assert_eq!(disk.list().unwrap().len(), FILES_MAX);
        assert_eq!(all.iter().filter(|file| file.is_discarded()).count(), 1);
    }

    /// A reader that outlived its handle took the files of the next handle of the directory away, or was in their way.
    #[test]
    fn closed_cache_leaves_the_directory_to_the_next_one() {
        let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
        let disk = Arc::new(SimDisk::default());
        let names = || -> Vec<String> {
            disk.list().unwrap().into_iter().filter(|name| name.ends_with(SUFFIX)).collect()
        };
        let make = || Arc::new(ObjectCache::new(vault.clone(), disk.clone(), false, 64 << 20, false));
        let open =
            |cache: &Arc<ObjectCache>, number| cache.open(LOG, number, CHUNK_BYTES, CHUNK_BYTES).unwrap();
        let first = make();
        let _read = open(&first, 7);
        first.close();
        assert_eq!(names(), [""; 0]);
        let second = make();
        let _read = open(&second, 7);
        let seven = names();
        assert_eq!(seven.len(), 1);
        // The names that the first one has in mind for these are taken.
        let _read = (open(&first, 8), open(&second, 8), open(&first, 9), open(&second, 9));
        assert_eq!(names().len(), 3);
        drop(first);
        assert_eq!(names().len(), 3);
        assert!(names().contains(&seven[0]));
        drop(second);
        assert_eq!(names(), [""; 0]);
    }
}
