//! Object access: makes objects from the files here, and puts them into the object store, checks them there, and deletes them.
//!
//! Must not know: who leads.

use super::object_look::{Look, look};
use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::store::format::block::BlockHeader;
use crate::store::format::geometry::FOOTER_BYTES;
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::Footer;
use crate::store::object_file::{MadeObject, Stretch};
use crate::store::object_maker::make;
use crate::store::objects::deletion::{delete_below, say_begin};
use crate::store::objects::names::{Lineage, not_there, object_name, root_name, root_text, salt};
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::types::{LogId, NodeId};
use crate::vault::Vault;
use std::sync::atomic::AtomicBool;

/// Makes objects from a replica's own files.
#[derive(Clone, Debug)]
pub(crate) struct ObjectMaker {
    pub(crate) archive: Archive,
    pub(crate) options: Options,
    pub(crate) node: NodeId,
}

impl ObjectMaker {
    /// Makes the file of an object.
    ///
    /// # Errors
    /// `NotFound`: not all of it is in the files here. `Corrupt`, `Io`, `TooLarge`.
    pub(crate) fn make(&self, stretch: &Stretch) -> Result<MadeObject> {
        make(&self.archive, stretch, self.opening(stretch.begin)?)
    }

    /// The opening of an object that begins at `begin`: the state after all entries before it.
    pub(super) fn opening(&self, begin: Base) -> Result<(BlockHeader, Vec<u8>)> {
        let Self { archive, options, node } = self;
        let sequencer = Sequencer::new(Owner::Node(*node), Membership::default(), options);
        let mut replayed = Replayed { sequencer, options };
        if !archive.replay(begin.raft, begin.raft, &mut replayed)? || replayed.sequencer.end() != begin {
            let what =
                format!("entry {} is not in the files of {} any more", begin.raft, archive.path().display());
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        Ok(replayed.sequencer.object_opening())
    }
}

/// Checks that the object store is the one with this log's objects. `has_begun`: the log has, or had, objects, so it has to be
/// there. Else it is made.
pub(super) fn check_root(vault: &dyn Vault, log: LogId, has_begun: bool) -> Result<()> {
    let (name, text) = (root_name(log), root_text(log));
    if has_begun {
        check_there(vault, log)?;
    } else if vault.create(&name, text.clone().into())? {
        return Ok(());
    }
    let there = vault.size(&name)?.unwrap_or(0);
    if there != text.len() as u64 || vault.get(&name, 0..there)? != text {
        let what = format!("{name} in the object store is not of this log: use another location");
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    Ok(())
}

/// Checks that the object store is still the one with this log's objects. A directory that is not mounted looks like an empty one,
/// and an object that went there would be lost once it is mounted again.
pub(super) fn check_there(vault: &dyn Vault, log: LogId) -> Result<()> {
    let name = root_name(log);
    if vault.size(&name)?.is_some() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, not_there(&name)))
}

/// Makes an object and puts it into the object store. `oldest`: the records of all objects before it are discarded.
pub(super) fn store(
    vault: &dyn Vault,
    maker: &ObjectMaker,
    stretch: &Stretch,
    oldest: bool,
) -> Result<StoredObject> {
    check_there(vault, stretch.log)?;
    let made = maker.make(stretch)?;
    if oldest {
        say_begin(vault, stretch.log, stretch.number)?;
    }
    put(vault, stretch, made)
}

fn put(vault: &dyn Vault, stretch: &Stretch, made: MadeObject) -> Result<StoredObject> {
    let (name, bytes) = (object_name(stretch.log, stretch.number), u64::from(made.object.bytes));
    // An object of this name has these bytes, is another history's, or has arrived damaged. Its footer tells, if that is sound.
    if let Some(there) = vault.size(&name)?
        && has_other_footer(vault, stretch, &made, there)?
    {
        let what = format!(
            "{name} in the object store has another footer: it is of another history of this log; use another location"
        );
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    // The object was checked for in the store with this log's objects, also if that was not mounted for a while.
    let is_there = || match planted!(109) {
        true => Ok(()),
        false => check_there(vault, stretch.log),
    };
    let stored =
        vault.put(&name, &made.pieces).and_then(|()| is_there()).and_then(|()| check(vault, &name, bytes));
    match stored {
        Err(error) if !planted!(97) => Err(error),
        _ => Ok(made.object),
    }
}

/// Whether the object in the store, of this size, has a sound footer that says something else than the made one. A damaged one is replaced.
fn has_other_footer(vault: &dyn Vault, stretch: &Stretch, made: &MadeObject, bytes: u64) -> Result<bool> {
    let Stretch { log, number, .. } = *stretch;
    let Some(at) = bytes.checked_sub(FOOTER_BYTES as u64) else { return Ok(false) };
    let there = match vault.get(&object_name(log, number), at..bytes) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange | ErrorKind::Io) => {
            return Ok(false);
        }
        there => there?,
    };
    if made.pieces.last().is_some_and(|footer| *footer == there) {
        return Ok(false);
    }
    let there = <[u8; FOOTER_BYTES]>::try_from(&*there);
    Ok(there.is_ok_and(|footer| Footer::parse(&footer, number + 1, salt(log, number)).is_ok()))
}

/// Whether the object store has an object as it was put: of this size, and if `whole`, to the last byte.
pub(super) fn is_as_put(vault: &dyn Vault, name: &str, object: &StoredObject, whole: bool) -> Result<bool> {
    match whole {
        true => Ok(matches!(look(vault, name, object, &AtomicBool::new(false))?, Look::Sound)),
        false => Ok(vault.size(name)? == Some(object.bytes.into())),
    }
}

/// Checks that the object store has an object of this size.
fn check(vault: &dyn Vault, name: &str, bytes: u64) -> Result<()> {
    if vault.size(name)? == Some(bytes) {
        return Ok(());
    }
    let what = format!("{name} is not in the object store as it was put there");
    Err(Error::new(ErrorKind::Unavailable, what))
}

/// Deletes the log's own objects below a number that no pin keeps, and says so. Returns how many they were.
pub(super) fn delete(vault: &dyn Vault, lineage: &Lineage, below: u64) -> Result<u64> {
    check_there(vault, lineage.log)?;
    delete_below(vault, lineage, below)
}
