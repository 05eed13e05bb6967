//! Spare files: files that a log can do without, because what is in them is elsewhere, too. They give way where the disk is full.
//!
//! Must not know: what is in them.

use super::{Disk, Space};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Files of a log that it can do without. `Send + Sync`; calls block for the disk.
pub(crate) trait SpareFiles: Debug + Send + Sync {
    /// A name for them, for the log.
    fn name(&self) -> &'static str;

    /// The disk that they are on. None: it is not known.
    fn device(&self) -> Option<u64>;

    /// Removes the one that is missed least, and returns its size. None: there is none.
    fn remove_one(&self) -> Option<u64>;
}

/// The spare files of all logs in this process: they can be on one disk.
static ALL: Mutex<Vec<Weak<dyn SpareFiles>>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Weak<dyn SpareFiles>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has these files give way from now on.
pub(crate) fn register(files: Weak<dyn SpareFiles>) {
    let mut all = all();
    all.retain(|files| files.strong_count() > 0);
    all.push(files);
}

/// Removes spare files of any log on the disk of `disk`, one log after the other, until `bytes` are free. No more than
/// twice as much: the disk may not show at once what became free. False: nothing was removed. Blocks for the disk.
pub(crate) fn make_room(disk: &dyn Disk, bytes: u64) -> bool {
    let Some(Space { device, .. }) = disk.space().ok().flatten() else { return false };
    let mut left: Vec<_> = all().iter().filter_map(Weak::upgrade).collect();
    left.retain(|files| files.device() == Some(device));
    let (mut removed, mut names) = (0, BTreeSet::new());
    while !left.is_empty() && removed < 2 * bytes {
        left.retain(|files| {
            let is_enough =
                removed > 0 && disk.space().is_ok_and(|space| space.is_some_and(|s| s.free >= bytes));
            let gone = if is_enough || removed >= 2 * bytes { None } else { files.remove_one() };
            removed += gone.unwrap_or(0);
            names.extend(gone.map(|_| files.name()));
            gone.is_some()
        });
    }
    if removed > 0 {
        let path = disk.path().display();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        tracing::info!(%path, removed, files = names, "the disk is full: files whose contents are elsewhere, too, were removed");
    }
    removed > 0
}
