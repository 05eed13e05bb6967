//! Cached objects on a full disk: which files give way for others, and which stay.

use super::Check;
use crate::disk::Disk;
use crate::disk::sim::SimDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::store::objects::cache::{ObjectCache, ObjectFile, SORTED_CHUNK_BYTES};
use crate::store::objects::names::{object_name, root_name, root_text};
use crate::types::LogId;
use crate::vault::{MemoryVault, Vault};
use std::collections::BTreeSet;
use std::sync::Arc;

const LOG: LogId = LogId(7);
/// Two chunks.
const OBJECT_BYTES: usize = 300 << 10;
const OBJECTS: u64 = 5;

/// Objects, and a cache of them on a disk.
fn cache() -> Result<(SimDisk, Arc<ObjectCache>)> {
    let (disk, vault) = (SimDisk::default(), MemoryVault::default());
    vault.put(&root_name(LOG), &[root_text(LOG).into()])?;
    for number in 0..OBJECTS {
        vault.put(&object_name(LOG, number), &[vec![number as u8; OBJECT_BYTES].into()])?;
    }
    let disks: Arc<dyn Disk> = Arc::new(disk.clone());
    Ok((disk, Arc::new(ObjectCache::new(Arc::new(vault), disks, false, 64 << 20, false))))
}

/// Has an object read, whole.
fn read(cache: &Arc<ObjectCache>, number: u64) -> Result<Arc<ObjectFile>> {
    let file = cache.open(LOG, number, OBJECT_BYTES, SORTED_CHUNK_BYTES)?;
    file.ensure(0..OBJECT_BYTES)?;
    Ok(file)
}

/// A reader of another object needs room on a full disk. A file that no reader has open goes, also if others were opened before it, and only
/// as many as have to. If readers have all of them open, removing them makes no room: they stay, except for one.
pub(super) fn cached_files_give_way_in_order() -> Check {
    let wrong = |error: Error| error.to_string();
    let (disk, cache) = cache().map_err(wrong)?;
    let mut open = vec![read(&cache, 0).map_err(wrong)?];
    for number in [1, 2] {
        drop(read(&cache, number).map_err(wrong)?);
    }
    disk.limit_space(Some(disk.space_used()));
    open.push(read(&cache, 3).map_err(|error| format!("a reader is refused: {error}"))?);
    let has =
        |number: u64| cache.cached_names().iter().any(|name| name.starts_with(&format!("{number:020}-")));
    let there: Vec<_> = (0..OBJECTS).map(has).collect();
    if there != [true, false, true, true, false] {
        return Err(format!("other files have given way than the oldest one that is not open: {there:?}"));
    }
    open.push(read(&cache, 2).map_err(wrong)?);
    match read(&cache, 4) {
        Err(error) if error.kind() == ErrorKind::Io => {}
        found => return Err(format!("there is room for one more: {found:?}")),
    }
    let left = cache.cached_names();
    if left.len() < 2 {
        return Err(format!("files have gone for nothing: {left:?} are left"));
    }
    let files: BTreeSet<_> = disk.list().map_err(|error| error.to_string())?.into_iter().collect();
    if files == left { Ok(()) } else { Err(format!("a file that could not be made stays: {files:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scrub learns which objects that it could not read have been fetched in part since, and of no others.
    #[test]
    fn what_is_fetched_is_noted() {
        let (_, cache) = cache().unwrap();
        read(&cache, 1).unwrap();
        cache.watch(&BTreeSet::from([1, 2, 3]));
        assert!(cache.take_fetched().is_empty());
        let file = read(&cache, 2).unwrap();
        cache.watch(&BTreeSet::from([2, 3]));
        assert_eq!(cache.take_fetched(), [2]);
        file.ensure(0..OBJECT_BYTES).unwrap();
        read(&cache, 4).unwrap();
        assert!(cache.take_fetched().is_empty(), "it was here, or nobody asked for it");
    }
}
