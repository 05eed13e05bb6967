//! Room: on a full disk cached files give way for others.
//!
//! Invariants:
//! - a reader is refused a file, or a chunk, only once no cached file is left that makes room: those that no reader has open go first;
//! - none goes for nothing: once one has gone, and there is no more room than before, the others stay. A refused call is made again
//!   later, and by then a disk that shows late how much became free has shown it.
//!
//! Must not know: which objects there are.

use super::{Files, ObjectCache, ObjectFile, lock};
use crate::disk::is_no_space;
use std::io;
use std::sync::Arc;

impl Files {
    /// Takes the cached file that is missed least: of those that no reader has open, the one that was opened longest ago; of the others only if
    /// there is no such one. Only removing the former makes room at once.
    pub(super) fn take_spare(&mut self, can_go: impl Fn(&ObjectFile) -> bool) -> Option<Arc<ObjectFile>> {
        let oldest = |is_wanted: &dyn Fn(&Arc<ObjectFile>) -> bool| {
            self.recent.iter().rposition(|file| can_go(file) && is_wanted(file))
        };
        let closed = oldest(&|file| Arc::strong_count(file) == 1 && !planted!(174));
        let at = closed.or_else(|| oldest(&|_| true))?;
        self.recent.remove(at)
    }
}

impl ObjectCache {
    /// Writes to a file. On a full disk cached files give way for it, except the file itself, as long as that makes room. `files`: those
    /// of this cache, if the caller has locked them.
    pub(super) fn write_with_room<T>(
        &self,
        mut files: Option<&mut Files>,
        file: Option<&ObjectFile>,
        mut write: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let error = match write() {
                Err(error) if is_no_space(&error) && !(files.is_some() && planted!(172)) => error,
                written => return written,
            };
            let gone = match &mut files {
                Some(files) => self.make_way_for(files, file),
                None => self.make_way_for(&mut lock(&self.files), file),
            };
            match gone {
                None => return Err(error),
                Some(true) => {}
                Some(false) => return write(),
            }
        }
    }

    /// Removes a cached file, on a full disk, for another one. Whether there is more room than before, as far as the disk says. `None`: there
    /// is no file.
    fn make_way_for(&self, files: &mut Files, other: Option<&ObjectFile>) -> Option<bool> {
        let free = || self.disk.space().ok().flatten().map(|space| space.free);
        let before = free();
        let oldest = files.take_spare(|file| !other.is_some_and(|other| std::ptr::eq(file, other)))?;
        self.forget(files, &oldest);
        drop(oldest); // the bytes of a file that is open stay
        Some(before.zip(free()).is_none_or(|(before, now)| now > before) || planted!(173))
    }
}
