//! Object access: makes objects from the files here, and puts them into the object store, checks them there, and deletes them.
//!
//! Invariants:
//! - an object that may be another history's is not replaced: its footer says so, or that cannot be read and this log is not known to have
//!   put the object, or has tried to, or the footer says nothing, and something of the object can be read that is not this log's;
//! - that a put was tried is known here whatever its answer was, as long as the object may be there;
//! - an object that counts as stored once it was read is put only if none is there, and replaced only after a look has found it wrong.
//!
//! Must not know: who leads.

use super::object_look::{Look, ObjectAt, Whose};
use super::object_root::check_there;
use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::store::format::block::BlockHeader;
use crate::store::format::objects::StoredObject;
use crate::store::object_file::{MadeObject, Stretch};
use crate::store::object_maker::make;
use crate::store::objects::deletion::{delete_below, say_begin};
use crate::store::objects::names::Lineage;
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
#[cfg(any(test, feature = "testing"))]
use crate::types::LogId;
use crate::types::NodeId;
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

/// How an object is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct HowToStore {
    /// The records of all objects before it are discarded.
    pub(super) oldest: bool,
    /// It counts as stored once it was read, whole.
    pub(super) whole: bool,
    /// The object of its name is known to be this log's, and could not be read for long: it is replaced.
    pub(super) replaces: bool,
    /// The log has put it: what is there is this log's, whatever it looks like.
    pub(super) is_put: bool,
}

/// The outcome of an object that was to be stored.
#[derive(Debug)]
pub(super) enum Put {
    Stored(StoredObject),
    /// It was to be put, or was put, and it is not known whether it is there: an answer was lost, perhaps.
    Tried(Error),
    /// The one that is there could not be read, although the object store works. `is_own`: it was put here.
    Unreadable {
        error: Error,
        is_own: bool,
    },
}

/// Makes an object and puts it into the object store.
pub(super) fn store(
    vault: &dyn Vault,
    maker: &ObjectMaker,
    stretch: &Stretch,
    how: HowToStore,
) -> Result<Put> {
    check_there(vault, stretch.log)?;
    let made = maker.make(stretch)?;
    if how.oldest {
        say_begin(vault, stretch.log, stretch.number)?;
    }
    let Stretch { log, number, .. } = *stretch;
    put(&ObjectAt { vault, log, owner: log, number }, made, how)
}

/// Puts an object. One that counts as stored once it was read replaces none that is there, unless that is wrong: a put that lands late
/// would replace what was read.
fn put(at: &ObjectAt<'_>, made: MadeObject, how: HowToStore) -> Result<Put> {
    let name = at.name();
    let mut whose = at.whose()?;
    if how.whole && matches!(whose, Whose::Missing) && !planted!(145) {
        match at.vault.create_of(&name, &made.pieces) {
            Ok(false) => whose = at.whose()?, // another put has landed meanwhile
            Err(error) if !planted!(97) => return tried(error),
            _ => return has_put(at, made),
        }
    }
    // An object of this name has these bytes, is another history's, or has arrived damaged. Its footer tells, if that is sound.
    match whose {
        Whose::Footer(ref footer) if !at.is_footer_of(footer, &made) => {
            let what = format!(
                "{name} in the object store has another footer: it is of another history of this log; use another location"
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        Whose::Unreadable(error) if !how.replaces => return Ok(Put::Unreadable { error, is_own: false }),
        Whose::Unreadable(_) | Whose::Nobodys if !how.is_put && !at.agrees_with(&made, &whose)? => {
            let why = whose.why();
            return Err(Error::new(ErrorKind::Diverged, not_replaced(&name, &why)));
        }
        _ => {}
    }
    if how.whole && !planted!(145) {
        match at.look_twice(&made.object, &AtomicBool::new(false))? {
            Look::Sound => return Ok(Put::Stored(made.object)),
            Look::Unreadable(error) if !how.replaces => return Ok(Put::Unreadable { error, is_own: false }),
            Look::Unreadable(_) | Look::Wrong(_) => {}
            Look::Interrupted => {
                return Err(Error::new(ErrorKind::Unavailable, format!("{name} was not read")));
            }
        }
    }
    match at.vault.put(&name, &made.pieces) {
        Err(error) if !planted!(97) => tried(error),
        _ => has_put(at, made),
    }
}

/// The outcome of a put that has failed like this: after a refusal the object is not there.
///
/// # Errors
/// This one.
fn tried(error: Error) -> Result<Put> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Io if !planted!(171) => Ok(Put::Tried(error)),
        _ => Err(error),
    }
}

/// Puts an object, and looks at it. `whole`: it counts as stored once it was read. True: it is sound.
///
/// # Errors
/// Those of [`Vault`]; `Diverged`: the one that is there may be another history's.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn put_and_look(
    vault: &dyn Vault,
    (log, number): (LogId, u64),
    made: MadeObject,
    whole: bool,
) -> Result<bool> {
    let (at, object) = (ObjectAt { vault, log, owner: log, number }, made.object);
    put(&at, made, HowToStore { oldest: false, whole, replaces: false, is_put: false })?;
    Ok(matches!(look_for_put(&at, &object, whole)?, Look::Sound))
}

/// An object was put: checks that it is there.
fn has_put(at: &ObjectAt<'_>, made: MadeObject) -> Result<Put> {
    if planted!(97) {
        return Ok(Put::Stored(made.object));
    }
    // The object was checked for in the store with this log's objects, also if that was not mounted for a while.
    let is_there = if planted!(109) { Ok(()) } else { check_there(at.vault, at.log) };
    Ok(match is_there.and_then(|()| at.size()) {
        Ok(Ok(Some(bytes))) if bytes == u64::from(made.object.bytes) => Put::Stored(made.object),
        Ok(Ok(_)) => {
            let what = format!("{} is not in the object store as it was put there", at.name());
            Put::Tried(Error::new(ErrorKind::Unavailable, what))
        }
        Ok(Err(error)) => Put::Unreadable { error, is_own: true },
        Err(error) => Put::Tried(error),
    })
}

/// The text about an object that does not say whose it is, and of which something that can be read is another than in this log.
pub(super) fn not_replaced(name: &str, why: &str) -> String {
    format!(
        "{name} in the object store does not say whose it is ({why}), and what can be read of it is not what this log has: it may be of \
         another history of this log, so it is not replaced; if no other cluster uses this location, delete it by the store's own means"
    )
}

/// Whether the object store has an object as it was put: of this size, and if `whole`, to the last byte. Otherwise why not.
///
/// # Errors
/// Those of [`Vault`] that say nothing of the object.
pub(super) fn look_for_put(at: &ObjectAt<'_>, object: &StoredObject, whole: bool) -> Result<Look> {
    if whole {
        return at.look_twice(object, &AtomicBool::new(false));
    }
    Ok(match at.size()? {
        Ok(Some(bytes)) if bytes == u64::from(object.bytes) => Look::Sound,
        Ok(Some(bytes)) => Look::Wrong(format!("it has {bytes} bytes, and not {}", object.bytes)),
        Ok(None) => Look::Wrong("it is missing".to_owned()),
        Err(error) => Look::Unreadable(error),
    })
}

/// Deletes the log's own objects below a number that no pin keeps, and says so. Returns how many they were.
pub(super) fn delete(vault: &dyn Vault, lineage: &Lineage, below: u64) -> Result<u64> {
    check_there(vault, lineage.log)?;
    delete_below(vault, lineage, below)
}
