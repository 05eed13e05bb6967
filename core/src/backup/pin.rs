//! Pins: keep what a log has in an object store, whatever it discards later.
//!
//! ```text
//!  objects that the log is made of ──> pin made ──> nothing of it is being deleted, all of it is there? ──yes──> it holds
//!                                                            └──no──> pin removed, from the beginning
//! ```
//!
//! Invariants: `store/objects/deletion.rs` has the protocol between pins and deletion. A crash before the last step leaves a pin
//! that nobody was told of. It keeps objects until it is removed, and may lack some: [`Pin::missing`].
//!
//! Must not know: the network, which object store it is.

use crate::backup::fetch::{footer_at, objects_of, opening_at};
use crate::backup::slices::SliceChain;
use crate::backup::{Backup, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::{folder, object_number, root_name};
use crate::store::objects::pins;
use crate::types::{Index, LogId, Timestamp};
use crate::vault::{ObjectInfo, Vault};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

pub use crate::store::objects::pins::{PIN_NAME_BYTES_MAX, PINS_MAX, Pin};

/// How often a pin is made again because its objects were discarded meanwhile.
const ATTEMPTS: u32 = 5;

impl Pin {
    /// Makes a pin: it keeps all objects that the log is made of now, or those up to the one with record `upto`, from deletion
    /// until [`Self::remove`]. No replica is needed. Blocks for the network.
    ///
    /// ```
    /// use chiplog::backup::Pin;
    /// let vault = chiplog::vault::MemoryVault::default();
    /// let error = Pin::make(&vault, chiplog::LogId(7), "before-upgrade", None).unwrap_err();
    /// assert_eq!(error.kind(), chiplog::ErrorKind::NotFound); // it has no objects
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`: there is a pin of this name. `InvalidArgument`: the name is impossible. `NotFound`: the log has no
    /// objects there. `Discarded`, `OutOfRange`: record `upto` is in none of them. `Busy`: there are [`PINS_MAX`] pins, or the log
    /// discards too fast. `Corrupt`: an object is missing or damaged. Those of [`Vault`]: after `Unavailable` the pin may be there.
    pub fn make(vault: &dyn Vault, log: LogId, name: &str, upto: Option<Index>) -> Result<Self> {
        let by = RandomState::new().build_hasher().finish();
        Self::make_as(vault, log, name, upto, Options::default().clock.now(), by)
    }

    /// As [`Self::make`], at this time, and with this number, which no other maker of a pin of this name has.
    pub(crate) fn make_as(
        vault: &dyn Vault,
        log: LogId,
        name: &str,
        upto: Option<Index>,
        made: Timestamp,
        by: u64,
    ) -> Result<Self> {
        pins::check_name(name)?;
        let object = pins::object_name(log, name);
        let root = root_name(log);
        if vault.size(&root)?.is_none() {
            let what =
                format!("log {:032x} has no objects in the object store: {root} is missing there", log.0);
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        for attempt in 1..=ATTEMPTS {
            let covered = match Covered::find(vault, log, upto) {
                // An object was deleted after it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound && attempt < ATTEMPTS => continue,
                covered => covered?,
            };
            let Covered { first_object, last_object, first, last } = covered;
            let pin = Self { name: name.to_owned(), first_object, last_object, first, last, made, by };
            if pins::count(vault, log)? >= PINS_MAX {
                let what =
                    format!("log {:032x} has {PINS_MAX} pins, and can have no more: remove some", log.0);
                return Err(Error::new(ErrorKind::Busy, what));
            }
            if !vault.create(&object, pin.text(log))? {
                let what = format!("log {:032x} has a pin {name} already: choose another name", log.0);
                return Err(Error::new(ErrorKind::AlreadyExists, what));
            }
            let holds = pin.holds(vault, log);
            if matches!(holds, Ok(true)) {
                return Ok(pin);
            }
            // Nobody but this call knows of it.
            let removed = vault.delete(&object);
            if let Err(error) = holds.and(removed) {
                let what = format!("the pin {name} may have been made; remove it and try again: {error}");
                return Err(Error::with_source(error.kind(), what, &error));
            }
        }
        let what =
            format!("log {:032x} discards the objects that the pin {name} is to keep: try again", log.0);
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// Whether the pin, which exists now, keeps what it says. False: a deletion that does not know of it may have begun, of objects
    /// or of the whole log.
    fn holds(&self, vault: &dyn Vault, log: LogId) -> Result<bool> {
        if vault.size(&root_name(log))?.is_none() {
            return Ok(false);
        }
        if newest_begin(vault, log)?.is_some_and(|begin| begin > self.first_object) && !planted!(102) {
            return Ok(false);
        }
        Ok(self.missing(vault, log)? == 0)
    }

    /// How many of its objects are not in the object store. Not 0: they are lost, or its maker was interrupted and never said
    /// that the pin was made. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Vault`].
    pub fn missing(&self, vault: &dyn Vault, log: LogId) -> Result<u64> {
        let there = vault.list(&folder(log))?;
        let there: BTreeSet<u64> =
            there.iter().filter_map(|object| object_number(log, &object.name)).collect();
        let kept = there.range(self.first_object..=self.last_object).count() as u64;
        Ok((self.last_object - self.first_object + 1).saturating_sub(kept))
    }

    /// The pins of a log, in the order of their names. Blocks for the network.
    ///
    /// # Errors
    /// `Unsupported`: a pin is damaged, or of a newer format. Those of [`Vault`].
    pub fn list(vault: &dyn Vault, log: LogId) -> Result<Vec<Self>> {
        pins::all(vault, log)
    }

    /// Removes a pin, also one that cannot be read. Its objects below the log's begin are deleted with those of the next discard.
    /// Blocks for the network.
    ///
    /// # Errors
    /// `NotFound`: there is no pin of this name. `InvalidArgument`: the name is impossible. Those of [`Vault`].
    pub fn remove(vault: &dyn Vault, log: LogId, name: &str) -> Result<()> {
        pins::check_name(name)?;
        let object = pins::object_name(log, name);
        if vault.size(&object)?.is_none() {
            return Err(no_pin(log, name));
        }
        vault.delete(&object)
    }
}

impl Backup {
    /// Makes a backup in `dest`, which must be missing or empty, of exactly the objects that a pin keeps, also if the log has
    /// discarded their records meanwhile. Else as [`Self::fetch`].
    ///
    /// # Errors
    /// `NotFound`: there is no pin of this name. `Corrupt`: one of its objects is missing or damaged. Those of [`Self::fetch`].
    pub fn fetch_pin(
        vault: &dyn Vault,
        log: LogId,
        name: &str,
        dest: impl AsRef<Path>,
        progress: Progress<'_>,
    ) -> Result<Self> {
        pins::check_name(name)?;
        let pin = pins::read(vault, log, name)?.ok_or_else(|| no_pin(log, name))?;
        let found = vault.list(&folder(log))?.into_iter();
        let numbered = |object: ObjectInfo| Some((object_number(log, &object.name)?, object));
        let mut objects: Vec<_> =
            found.filter_map(numbered).filter(|(number, _)| pin.keeps(*number)).collect();
        objects.sort_unstable_by_key(|(number, _)| *number);
        let mut there = objects.iter().map(|(number, _)| *number);
        if let Some(missing) =
            (pin.first_object..=pin.last_object).find(|wanted| there.next() != Some(*wanted))
        {
            let what = format!(
                "object {missing} of log {:032x} is missing in the object store, and pin {name} should keep it: it was lost, or the \
                 pin was never finished",
                log.0
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Self::make_of(vault, log, &objects, &SliceChain::default(), dest.as_ref(), progress)
    }
}

fn no_pin(log: LogId, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("log {:032x} has no pin {name}", log.0))
}

/// The objects that a pin would keep.
pub(crate) struct Covered {
    pub(crate) first_object: u64,
    pub(crate) last_object: u64,
    pub(crate) first: Index,
    pub(crate) last: Index,
}

impl Covered {
    /// The objects that the log is made of, up to the one with record `upto`.
    pub(crate) fn find(vault: &dyn Vault, log: LogId, upto: Option<Index>) -> Result<Self> {
        let objects = objects_of(vault, log)?;
        if let Some((newest, _)) = objects.last()
            && newest_begin(vault, log)?.is_some_and(|begin| begin > *newest)
        {
            let what = format!("all records of log {:032x} that are in objects are discarded", log.0);
            return Err(Error::new(ErrorKind::Discarded, what));
        }
        let end_of = |at: usize| footer_at(vault, log, &objects[at]).map(|footer| footer.next);
        let last = match upto {
            None => objects.len() - 1,
            Some(upto) => first_with(objects.len(), |at| Ok(end_of(at)? > upto))?.ok_or_else(|| {
                let what = format!("record {upto} of log {:032x} is in no object yet", log.0);
                Error::new(ErrorKind::OutOfRange, what)
            })?,
        };
        // No object knows of a discard after it.
        let first = footer_at(vault, log, &objects[0])?.first;
        let opening = opening_at(vault, log, &objects[last])?;
        let first = if opening.objects.is_empty() { first } else { opening.log_first.max(first) };
        if let Some(upto) = upto.filter(|upto| *upto < first) {
            let what = format!("record {upto} of log {:032x} is discarded: the first one is {first}", log.0);
            return Err(Error::new(ErrorKind::Discarded, what));
        }
        let next = end_of(last)?;
        let last_record = Index(next.get().saturating_sub(1));
        Ok(Self { first_object: objects[0].0, last_object: objects[last].0, first, last: last_record })
    }
}

/// The first of `count` for which this holds, if it holds for all behind it.
fn first_with(count: usize, mut holds: impl FnMut(usize) -> Result<bool>) -> Result<Option<usize>> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match holds(middle)? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Ok((low < count).then_some(low))
}
