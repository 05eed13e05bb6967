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

use crate::backup::downloads::Downloads;
use crate::backup::fetch::{Ends, Made};
use crate::backup::found::made_of;
use crate::backup::slices::SliceChain;
use crate::backup::stored::{Objects, footer_at, lineage_of, list_objects, opening_at};
use crate::backup::tail::Tail;
use crate::backup::{Backup, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::{Lineage, branch_name, root_name};
use crate::store::objects::pins;
use crate::types::{Index, LogId, Timestamp};
use crate::vault::Vault;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

pub use crate::store::objects::pins::{PIN_NAME_BYTES_MAX, PINS_MAX, Pin};

/// How often a pin is made again because its objects were discarded meanwhile.
pub(super) const ATTEMPTS: u32 = 5;

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
    /// `AlreadyExists`: there is a pin of this name. `InvalidArgument`: the name is impossible, or one of a branch's pin. `NotFound`: the
    /// log has no objects there. `Discarded`, `OutOfRange`: record `upto` is in none of them. `Busy`: there are [`PINS_MAX`] pins, or the
    /// log discards too fast. `Corrupt`: an object is missing or damaged. Those of [`Vault`]: after `Unavailable` the pin may be there.
    pub fn make(vault: &dyn Vault, log: LogId, name: &str, upto: Option<Index>) -> Result<Self> {
        if pins::branch_of_pin(name).is_some() {
            let what = format!("{name} can only be the name of a branch's pin: choose another name");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        Self::make_as(vault, log, name, upto, Options::default().clock.now(), another())
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
            pin.create(vault, log)?;
            let holds = pin.holds(vault, log);
            if matches!(holds, Ok(true)) {
                return Ok(pin);
            }
            // This call has not told anybody of the pin.
            if let Err(error) = holds.and(pins::delete_own(vault, log, name, by)) {
                let what = format!("the pin {name} may have been made; remove it and try again: {error}");
                return Err(Error::with_source(error.kind(), what, &error));
            }
        }
        let what =
            format!("log {:032x} discards the objects that the pin {name} is to keep: try again", log.0);
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// Puts the pin into the object store. It keeps its objects only if it [holds](Self::holds) then.
    ///
    /// # Errors
    /// `Busy`: there are too many pins. `AlreadyExists`: there is one of this name. Those of [`Vault`].
    pub(super) fn create(&self, vault: &dyn Vault, log: LogId) -> Result<()> {
        if pins::count(vault, log)? >= PINS_MAX {
            let what = format!("log {:032x} has {PINS_MAX} pins, and can have no more: remove some", log.0);
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if !vault.create(&pins::object_name(log, &self.name), self.text(log))? {
            let what = format!("log {:032x} has a pin {} already: choose another name", log.0, self.name);
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        Ok(())
    }

    /// The branch whose pin this is, which reads these objects. None: it is no branch's.
    ///
    /// ```
    /// # fn show(pin: &chiplog::backup::Pin) {
    /// let what = pin.branch().map_or("a pin".to_owned(), |log| format!("the pin of branch {:032x}", log.get()));
    /// # }
    /// ```
    pub fn branch(&self) -> Option<LogId> {
        pins::branch_of_pin(&self.name)
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
        let numbers = self.first_object..self.last_object.saturating_add(1);
        let there = list_objects(vault, &lineage_of(vault, log)?, &numbers)?;
        Ok((numbers.end - numbers.start).saturating_sub(there.len() as u64))
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
    /// `NotFound`: there is no pin of this name. `InvalidArgument`: the name is impossible. `Busy`: a branch reads its objects.
    /// `Corrupt`: the branch was finished meanwhile, and some of its objects were deleted. Those of [`Vault`].
    pub fn remove(vault: &dyn Vault, log: LogId, name: &str) -> Result<()> {
        let Some(branch) = pins::branch_of_pin(name) else { return Self::remove_by_force(vault, log, name) };
        let refuse_if_made = || match vault.size(&branch_name(branch))? {
            None => Ok(()),
            Some(_) => {
                let what = format!(
                    "{name} keeps objects of log {:032x} that log {:032x} reads, which is a branch of it. It goes by itself once that \
                     one has discarded all of their records, or with `chiplog tier gc --log-id {:032x} --all --delete` once its servers \
                     are gone",
                    log.0, branch.0, branch.0
                );
                Err(Error::new(ErrorKind::Busy, what))
            }
        };
        refuse_if_made()?;
        let pin = pins::read(vault, log, name)?;
        Self::remove_by_force(vault, log, name)?;
        if planted!(106) {
            return Ok(());
        }
        // The branch may have been finished between the look and the removal.
        refuse_if_made().map_err(|refused| {
            let Some(pin) = pin else { return refused };
            let made = pin.create(vault, log);
            let missing = made.and_then(|()| Ok((pin.missing(vault, log)?, pin.holds(vault, log)?)));
            let what = format!("the pin {name} of log {:032x}, which is a branch, was removed while that was made", branch.0);
            match missing {
                Ok((0, true)) => refused,
                Ok((0, false)) => {
                    let what = format!(
                        "{what}. It was made again, and a deletion that did not know of it can still be under way: look with \
                         `chiplog tier verify` whether the branch has all of its objects"
                    );
                    Error::new(ErrorKind::Busy, what)
                }
                Ok((missing, _)) => {
                    let what = format!("{what}, and {missing} of the objects that it reads were deleted");
                    Error::new(ErrorKind::Corrupt, what)
                }
                Err(error) => {
                    let what = format!("{what}, and it is not known whether it keeps the objects again: {error}");
                    Error::with_source(error.kind(), what, &error)
                }
            }
        })
    }

    /// As [`Self::remove`], also if it is the pin of a branch. That one loses the records in these objects, once they are deleted.
    ///
    /// ```
    /// use chiplog::backup::Pin;
    /// let vault = chiplog::vault::MemoryVault::default();
    /// let error = Pin::remove_by_force(&vault, chiplog::LogId(7), "no-such-pin").unwrap_err();
    /// assert_eq!(error.kind(), chiplog::ErrorKind::NotFound);
    /// ```
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument`, those of [`Vault`].
    pub fn remove_by_force(vault: &dyn Vault, log: LogId, name: &str) -> Result<()> {
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
        let lineage = lineage_of(vault, log)?;
        let objects = pin.objects(vault, &lineage)?;
        let (chain, tail) = (SliceChain::default(), Tail::default());
        let ends = Ends { chain: &chain, tail: &tail, is_short: false, replaced: None };
        let (dest, mut downloads) = (dest.as_ref(), Downloads::of_pin(pin.first_object));
        let made = Self::make_of(vault, &lineage, &objects, ends, (dest, &mut downloads), None, progress);
        let made = made.and_then(|made| match made {
            Made::Backup(backup) => Ok(backup),
            Made::Lacking(error) => Err(error),
        });
        if made.is_err() {
            downloads.abandon(dest);
        }
        made
    }
}

impl Pin {
    /// The objects that it keeps, in order.
    ///
    /// # Errors
    /// `Corrupt`: one is missing. Those of [`Vault`].
    pub(super) fn objects(&self, vault: &dyn Vault, lineage: &Lineage) -> Result<Objects> {
        let numbers = self.first_object..self.last_object.saturating_add(1);
        let objects = list_objects(vault, lineage, &numbers)?;
        let mut there = objects.iter().map(|(number, _)| *number);
        if let Some(missing) = numbers.into_iter().find(|wanted| there.next() != Some(*wanted)) {
            let what = format!(
                "object {missing} of log {:032x} is missing in the object store, and pin {} should keep it: it was lost, or the \
                 pin was never finished",
                lineage.owner(missing).0,
                self.name
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(objects)
    }
}

/// A random number, by which a pin is told from another one of its name.
pub(super) fn another() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(super) fn no_pin(log: LogId, name: &str) -> Error {
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
        let (lineage, mut objects) = made_of(vault, log)?;
        // The state in which a branch began is no object: nobody deletes it before the branch.
        objects.retain(|(_, object)| object.name != branch_name(log));
        if objects.is_empty() {
            let what = format!("log {:032x} has no objects in the object store yet", log.0);
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        if let Some((newest, _)) = objects.last()
            && newest_begin(vault, log)?.is_some_and(|begin| begin > *newest)
        {
            let what = format!("all records of log {:032x} that are in objects are discarded", log.0);
            return Err(Error::new(ErrorKind::Discarded, what));
        }
        let footer_of = |at: usize| footer_at(vault, lineage.owner(objects[at].0), &objects[at]);
        let end_of = |at: usize| footer_of(at).map(|footer| footer.next);
        let last = match upto {
            None => objects.len() - 1,
            Some(upto) => first_with(objects.len(), |at| Ok(end_of(at)? > upto))?.ok_or_else(|| {
                let what = format!("record {upto} of log {:032x} is in no object yet", log.0);
                Error::new(ErrorKind::OutOfRange, what)
            })?,
        };
        // No object knows of a discard after it.
        let first = footer_of(0)?.first;
        let opening = opening_at(vault, lineage.owner(objects[last].0), &objects[last])?;
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
pub(super) fn first_with(
    count: usize,
    mut holds: impl FnMut(usize) -> Result<bool>,
) -> Result<Option<usize>> {
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
