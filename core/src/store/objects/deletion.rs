//! Deletion of objects whose records are discarded, outside pins.
//!
//! ```text
//!  deletion below n                      pin of objects a to b
//!  1  make begin n                       1  make the pin
//!  2  read all pins                      2  read the highest begin: is it above a? then give up, and remove the pin
//!  3  delete objects below n             3  look whether all of a to b are there
//!     that no pin keeps
//! ```
//!
//! Invariants:
//! - an object is deleted only below a begin that was made before, and only if a list of pins that was read after that has none
//!   that keeps it;
//! - so no object under a pin is deleted. If a deletion below n has not seen the pin, the pin was made after the deletion read the
//!   pins, so its maker sees the begin n. The pin holds only if a >= n;
//! - the highest begin is never deleted;
//! - of a branch only its own objects are deleted. Those of its ancestors are kept by a pin there, which goes by the same rules: once a
//!   begin says that all of them are discarded, and no pin of the branch keeps one.
//!
//! Both rely on a store that lists what was written before, as S3, Google Cloud Storage, Azure and file systems do.
//!
//! Must not know: which records are discarded.

use super::names::{
    Lineage, begin_name, begin_number, begin_text, begins, folder, object_name, object_number,
};
use super::pins;
use crate::error::{ErrorKind, Result};
use crate::types::LogId;
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::ops::Range;

/// Records in the object store that the records of all objects below a number are discarded: no object says so of a discard that
/// comes after it, and without it nobody could tell a deleted object from a lost one. An object before the oldest one may be
/// missing for another reason, too: it was discarded before it was stored. On a full disk it has no text: nobody reads that, and then
/// deletion can make room.
pub(crate) fn say_begin(vault: &dyn Vault, log: LogId, number: u64) -> Result<()> {
    if number == 0 || planted!(99) {
        return Ok(());
    }
    let name = begin_name(log, number);
    match vault.create(&name, begin_text(log, number).into()) {
        // A directory store writes a file first, also for a begin that is there.
        Err(error) if error.kind() == ErrorKind::Io && vault.size(&name)?.is_none() => {
            vault.create(&name, Bytes::new())?;
        }
        Err(error) if error.kind() != ErrorKind::Io => return Err(error),
        _ => {}
    }
    Ok(())
}

/// The number below which the object store says that all records are discarded.
pub(crate) fn newest_begin(vault: &dyn Vault, log: LogId) -> Result<Option<u64>> {
    let begins = vault.list(&begins(log))?;
    Ok(begins.iter().filter_map(|begin| begin_number(log, &begin.name)).max())
}

/// Deletes the log's own objects below a number that no pin keeps, and says so. Returns how many they were. Ancestors of a branch, none
/// of whose objects is needed, may delete theirs then.
///
/// # Errors
/// Those of [`Vault`]. `Unsupported`: a pin cannot be read; nothing was deleted.
pub(crate) fn delete_below(vault: &dyn Vault, lineage: &Lineage, below: u64) -> Result<u64> {
    let log = lineage.log;
    say_begin(vault, log, below)?;
    for begin in lower_begins(vault, log, below)? {
        vault.delete(&begin.name)?;
    }
    let unneeded = unneeded_below(vault, log, below)?;
    for object in &unneeded {
        vault.delete(&object.name)?;
    }
    for number in (0..below).filter(|number| planted!(104) && *number < lineage.own_from()) {
        vault.delete(&object_name(lineage.owner(number), number))?;
    }
    if lineage.ancestors.iter().any(|ancestor| ancestor.below <= below) {
        release_ancestors(vault, lineage, below)?;
    }
    Ok(unneeded.len() as u64)
}

/// Removes the branch's pins in ancestors whose objects are all below a number, unless a pin of the branch keeps one of them. The store
/// has to have a begin of this number already.
fn release_ancestors(vault: &dyn Vault, lineage: &Lineage, below: u64) -> Result<()> {
    let own = pins::all(vault, lineage.log)?;
    let is_kept = |part: &Range<u64>| {
        own.iter().any(|pin| pin.first_object < part.end && part.start <= pin.last_object && !planted!(108))
    };
    for (ancestor, _) in lineage.parts().filter(|(_, part)| part.end <= below && !is_kept(part)) {
        let pin = pins::object_name(ancestor, &pins::branch_pin(lineage.log));
        if vault.size(&pin)?.is_some() {
            vault.delete(&pin)?;
        }
    }
    Ok(())
}

/// The begins below a number.
fn lower_begins(vault: &dyn Vault, log: LogId, below: u64) -> Result<Vec<ObjectInfo>> {
    let mut begins = vault.list(&begins(log))?;
    begins.retain(|begin| begin_number(log, &begin.name).is_some_and(|number| number < below));
    Ok(begins)
}

/// The objects below a number that no pin keeps. The store has to have a begin of this number, or a higher one, already.
fn unneeded_below(vault: &dyn Vault, log: LogId, below: u64) -> Result<Vec<ObjectInfo>> {
    let below = below + u64::from(planted!(94));
    let mut objects = vault.list(&folder(log))?;
    objects.retain(|object| object_number(log, &object.name).is_some_and(|number| number < below));
    if objects.is_empty() || planted!(101) {
        return Ok(objects);
    }
    let pins = pins::all(vault, log)?;
    let is_kept = |number| pins.iter().any(|pin| pin.keeps(number));
    objects.retain(|object| object_number(log, &object.name).is_some_and(|number| !is_kept(number)));
    Ok(objects)
}

/// Whether a pin keeps an object. For one below the highest begin that is about to be deleted.
pub(crate) fn is_pinned(vault: &dyn Vault, log: LogId, number: u64) -> Result<bool> {
    Ok(pins::all(vault, log)?.iter().any(|pin| pin.keeps(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::vault::{MemoryVault, pass_on};

    /// A directory on a full disk. An object is written before it is seen that there is one of its name.
    #[derive(Debug, Default)]
    struct FullVault {
        below: MemoryVault,
    }

    impl FullVault {
        fn write(bytes: &[Bytes]) -> Result<()> {
            match bytes.concat().is_empty() {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Io, "No space left on device (os error 28)")),
            }
        }
    }

    impl Vault for FullVault {
        pass_on!(below: get, size, list, delete);

        fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
            Self::write(pieces)?;
            self.below.put(name, pieces)
        }

        fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
            Self::write(std::slice::from_ref(&bytes))?;
            self.below.create(name, bytes)
        }
    }

    /// The objects stayed, because the disk had no room for the text that says that they go.
    #[test]
    fn objects_go_from_a_full_disk() {
        let (log, vault) = (LogId(7), FullVault::default());
        for number in 0..4 {
            vault.below.put(&object_name(log, number), &["object".into()]).unwrap();
        }
        vault.below.put(&begin_name(log, 1), &[begin_text(log, 1).into()]).unwrap();
        // The begin of the first deletion is there already.
        for (below, left) in [(1, 3), (3, 1)] {
            delete_below(&vault, &Lineage::of(log), below).unwrap();
            assert_eq!(vault.list(&folder(log)).unwrap().len(), left);
            assert_eq!(newest_begin(&vault, log).unwrap(), Some(below));
        }
    }
}
