//! Objects that are kept whole: files beside the log's segments with all bytes of an object, which stay over restarts, so that readers
//! of these records need no object store.
//!
//! ```text
//! keep ──> N-0.object, a cached file ──all chunks──> checked by the caller ──synced, renamed──> N-LOG.object
//! ```
//!
//! Invariants:
//! - a file with the name of a whole object has all its bytes, durably: it gets that name after its sync. So a crash leaves it, or a
//!   cached file, which the next opening removes;
//! - the bytes of such a file are read as those of any cached file: every block and batch is checked. Where a check fails, the file goes;
//! - once the log is closed no name is made, moved or removed: the directory can be another handle's;
//! - where the disk is full they give way, the oldest first, after the cached files.
//!
//! Must not know: which objects are kept, and why.

use super::{Files, HERE, ObjectCache, ObjectFile, SUFFIX, lock, remove};
use crate::disk::Disk;
use crate::disk::spare_files::{SpareFiles, register};
use crate::error::{Error, Result};
use crate::types::LogId;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// A file that is kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// Its chunks are being fetched.
    Filling(Arc<ObjectFile>),
    /// The file of an object of the log `owner` with all its bytes. It is open as long as a reader has it.
    Whole { owner: LogId, bytes: u64, open: Weak<ObjectFile> },
}

impl Kept {
    /// Whether it is this file.
    pub(super) fn is(&self, file: &ObjectFile) -> bool {
        match self {
            Self::Filling(filling) => std::ptr::eq(&**filling, file),
            Self::Whole { open, .. } => std::ptr::eq(open.as_ptr(), file),
        }
    }

    /// The file whose chunks are being fetched.
    pub(super) fn filling(&self) -> Option<&Arc<ObjectFile>> {
        match self {
            Self::Filling(file) => Some(file),
            Self::Whole { .. } => None,
        }
    }

    /// The bytes that it takes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Filling(file) => file.held.load(Ordering::Relaxed),
            Self::Whole { bytes, .. } => *bytes,
        }
    }
}

/// The file name of an object that is kept whole.
fn whole_name(owner: LogId, number: u64) -> String {
    format!("{number:020}-{:032x}{SUFFIX}", owner.0)
}

/// The object in the name of a file that is kept whole; None for other names, also for those of cached files.
fn in_whole_name(name: &str) -> Option<(LogId, u64)> {
    let (number, owner) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let (number, owner) = (number.parse().ok()?, LogId(u128::from_str_radix(owner, 16).ok()?));
    (whole_name(owner, number) == name).then_some((owner, number))
}

/// Whether this is the name of an object's file, cached or kept whole.
pub(crate) fn is_object_file(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// The object that was kept whole in a file of this name.
pub(super) fn found(disk: &dyn Disk, name: &str) -> Option<(u64, Kept)> {
    let (owner, number) = in_whole_name(name)?;
    let bytes = disk.open(name, false).and_then(|file| file.len()).ok()?;
    Some((number, Kept::Whole { owner, bytes, open: Weak::new() }))
}

/// An object that is kept, or will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptObject {
    pub(crate) number: u64,
    /// The bytes that are here.
    pub(crate) bytes: u64,
    pub(crate) is_whole: bool,
}

impl ObjectCache {
    /// Has its files give way where the disk is full.
    pub(crate) fn give_way(self: &Arc<Self>) {
        if let Ok(Some(space)) = self.disk.space() {
            let _ = self.device.set(space.device);
            let files: Arc<dyn SpareFiles> = self.clone();
            register(Arc::downgrade(&files));
        }
    }

    /// Begins to keep an object, one of the log `owner`. Chunks that readers have fetched count.
    ///
    /// # Errors
    /// `Io`: the file could not be made.
    pub(crate) fn keep(
        self: &Arc<Self>,
        owner: LogId,
        number: u64,
        bytes: usize,
        chunk_bytes: usize,
    ) -> Result<Arc<ObjectFile>> {
        let files = &mut *lock(&self.files);
        if let Some(Kept::Filling(file)) = files.kept.get(&number) {
            return Ok(file.clone());
        }
        let at = files.recent.iter().position(|file| file.number == number);
        let file = match at.and_then(|n| files.recent.remove(n)) {
            Some(file) => {
                self.bytes.fetch_sub(file.held.load(Ordering::Relaxed), Ordering::Relaxed);
                file
            }
            None => Arc::new(ObjectFile::make(self, files, (owner, number), bytes, chunk_bytes)?),
        };
        file.is_kept.store(true, Ordering::Relaxed);
        files.kept.insert(number, Kept::Filling(file.clone()));
        Ok(file)
    }

    /// The objects that are kept, oldest first.
    pub(crate) fn kept(&self) -> Vec<KeptObject> {
        let files = lock(&self.files);
        let kept = files.kept.iter().map(|(number, kept)| {
            let is_whole = matches!(kept, Kept::Whole { .. });
            KeptObject { number: *number, bytes: kept.bytes(), is_whole }
        });
        kept.collect()
    }

    /// Bytes of objects that are kept, and how many attempts to keep one have failed.
    pub(crate) fn kept_figures(&self) -> (u64, u64) {
        let bytes = lock(&self.files).kept.values().map(Kept::bytes).sum();
        (bytes, self.fill_failures.load(Ordering::Relaxed))
    }

    /// Notes that an attempt to keep an object has failed.
    pub(crate) fn count_fill_failure(&self) {
        self.fill_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// An object that is kept, for a reader.
    pub(super) fn open_kept(
        self: &Arc<Self>,
        files: &mut Files,
        (owner, number): (LogId, u64),
        bytes: usize,
        chunk_bytes: usize,
    ) -> Option<Arc<ObjectFile>> {
        let (of, has, open) = match files.kept.get_mut(&number)? {
            Kept::Filling(file) => return Some(file.clone()),
            Kept::Whole { owner, bytes, open } => (*owner, *bytes, open),
        };
        if let Some(file) = open.upgrade() {
            return Some(file);
        }
        let name = whole_name(of, number);
        let is_it = (of, has) == (owner, bytes as u64);
        match self.disk.open(&name, false).and_then(|file| file.len().map(|length| (file, length))) {
            Ok((file, length)) if is_it && length == has => {
                let file = ObjectFile::of(self, (owner, number), (name, file), bytes, (chunk_bytes, HERE));
                file.is_kept.store(true, Ordering::Relaxed);
                let file = Arc::new(file);
                *open = Arc::downgrade(&file);
                Some(file)
            }
            // There may be no descriptor for it now. The file is sound as far as is known.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(%name, %error, "an object that is kept cannot be opened now; it is fetched");
                None
            }
            _ => {
                tracing::warn!(%name, "the file of an object that is kept is missing, cut off, or another one's; it is fetched again");
                files.kept.remove(&number);
                if !files.is_closed {
                    remove(&*self.disk, &name);
                }
                None
            }
        }
    }

    /// Gives a file whose chunks are all here, and were checked, the name of a whole object. False: it is not kept any more.
    ///
    /// # Errors
    /// `Io`: the file stays a cached one.
    pub(crate) fn make_whole(&self, owner: LogId, file: &Arc<ObjectFile>) -> Result<bool> {
        let io = |doing, name: &str, e| Error::io(doing, Path::new(name), e);
        if !planted!(148) {
            file.file.sync().map_err(|e| io("sync", &file.file_name(), e))?;
        }
        {
            let files = &mut *lock(&self.files);
            if files.is_closed || !files.kept.get(&file.number).is_some_and(|kept| kept.is(file)) {
                return Ok(false);
            }
            let name = whole_name(owner, file.number);
            let mut old = lock(&file.file_name);
            self.disk.rename(&old, &name).map_err(|e| io("rename", &old, e))?;
            *old = name;
            let whole = Kept::Whole { owner, bytes: file.bytes as u64, open: Arc::downgrade(file) };
            files.kept.insert(file.number, whole);
        }
        // Without it a crash can leave the cached file's name: then the object is fetched again.
        if let Err(error) = self.disk.sync_dir() {
            tracing::debug!(path = %self.disk.path().display(), %error, "the name of an object that is kept may be lost in a crash");
        }
        Ok(true)
    }

    /// Keeps an object no longer. Readers that have it open go on in it.
    pub(crate) fn let_go(&self, number: u64) {
        let files = &mut *lock(&self.files);
        if files.is_closed {
            return;
        }
        let (file, name) = match files.kept.remove(&number) {
            Some(Kept::Filling(file)) => (Some(file), None),
            Some(Kept::Whole { owner, open, .. }) => (open.upgrade(), Some(whole_name(owner, number))),
            None => (None, None),
        };
        match (file, name) {
            (Some(file), _) => self.forget(files, &file),
            (None, Some(name)) => remove(&*self.disk, &name),
            (None, None) => {}
        }
    }

    /// Keeps objects that are not whole no longer.
    pub(crate) fn let_go_unfinished(&self) {
        let kept = self.kept();
        kept.iter().filter(|kept| !kept.is_whole).for_each(|kept| self.let_go(kept.number));
    }

    /// The log is closed: its cached files lose their names, and from now on no file of an object that is kept is made, moved or removed.
    pub(crate) fn close(&self) {
        let mut files = lock(&self.files);
        if !std::mem::replace(&mut files.is_closed, true) {
            let filling = files.kept.values().filter_map(Kept::filling);
            files.recent.iter().chain(filling).for_each(|file| remove(&*self.disk, &file.file_name()));
        }
        drop(files);
        self.closing.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.files).is_closed
    }

    /// Waits for this long. True: the log was closed.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let files = lock(&self.files);
        let waited = self.closing.wait_timeout_while(files, time, |files| !files.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }
}

impl SpareFiles for ObjectCache {
    fn name(&self) -> &'static str {
        "objects of the object store"
    }

    fn device(&self) -> Option<u64> {
        self.device.get().copied()
    }

    /// Removes the cached file that is missed least; without one, keeps the oldest object no longer.
    fn remove_one(&self) -> Option<u64> {
        let oldest = {
            let mut files = lock(&self.files);
            if files.is_closed {
                return None;
            }
            if let Some(file) = files.take_spare(|_| !planted!(132)) {
                let bytes = file.held.load(Ordering::Relaxed);
                self.forget(&files, &file);
                return Some(bytes);
            }
            let oldest = files.kept.first_key_value()?;
            (*oldest.0, oldest.1.bytes())
        };
        self.let_go(oldest.0);
        Some(oldest.1)
    }
}

impl ObjectFile {
    /// The ranges of its chunks.
    pub(crate) fn chunk_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let range = |at: usize| at..(at + self.chunk_bytes).min(self.bytes);
        (0..self.bytes).step_by(self.chunk_bytes).map(range)
    }

    /// The bytes of a range that is here.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn bytes_of(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        let read = self.file.read_at(range.start as u64, &mut bytes);
        read.map_err(|e| Error::io("read", Path::new(&self.file_name()), e))?;
        Ok(bytes)
    }
}
