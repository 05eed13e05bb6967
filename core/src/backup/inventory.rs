//! Inventory: what a log has in an object store, what of it is needed, and for what.
//!
//! | part | needed by | deleted by |
//! |---|---|---|
//! | objects from the highest begin on | the log | - |
//! | objects below it, under a pin | the pin | - |
//! | other objects below it | nothing | [`Inventory::delete_unneeded`], or the log's leader |
//! | slices | the log | servers, once objects have their records |
//! | begins below the highest one | nothing | the same |
//! | names that no version of this program makes, or a later one does | unknown | - |
//!
//! Invariants: nothing is deleted that is not known to be unneeded. Objects go as a leader deletes them, so pins hold:
//! `store/objects/deletion.rs`. Of a whole log `root` goes first, and a pin is made only as long as it is there.
//!
//! Must not know: the network, which object store it is.

use crate::backup::pin::Covered;
use crate::error::{Error, ErrorKind, Result};
use crate::store::objects::deletion::delete_below;
use crate::store::objects::names::{
    begin_name, begin_number, log_folder, object_number, root_name, root_text,
};
use crate::store::objects::pins::{self, Pin};
use crate::store::objects::slice_names::SliceName;
use crate::types::{Index, LogId, Timestamp};
use crate::vault::Vault;

/// A number of objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObjectCount {
    pub objects: u64,
    pub bytes: u64,
}

impl ObjectCount {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// A list of all that a log has in an object store, and of what is needed.
///
/// ```
/// use chiplog::backup::Inventory;
/// let vault = chiplog::vault::MemoryVault::default();
/// let there = Inventory::take(&vault, chiplog::LogId(7))?;
/// assert!(!there.has_root && there.needed.objects == 0);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inventory {
    /// The log.
    pub log_id: LogId,
    /// Whether the object `root` is there. A log without it stores nothing.
    pub has_root: bool,
    /// The numbers of its oldest and its newest object. None: there is none.
    pub range: Option<(u64, u64)>,
    /// The records of all objects below this number are discarded.
    pub begin: u64,
    /// When the store was told so. None: never, or the store does not say when.
    pub begin_made: Option<Timestamp>,
    /// The objects that the log is made of.
    pub needed: ObjectCount,
    /// The objects of discarded records that pins keep.
    pub pinned: ObjectCount,
    /// The objects that nothing needs.
    pub unneeded: ObjectCount,
    /// The slices with the newest records.
    pub slices: ObjectCount,
    /// The begins that a higher one has replaced.
    pub old_begins: u64,
    /// Objects that this version does not know, and leaves alone.
    pub unknown: ObjectCount,
    /// The pins.
    pub pins: Vec<Pin>,
}

impl Inventory {
    /// Lists what a log has in an object store. Blocks for the network.
    ///
    /// # Errors
    /// `Unsupported`: a pin is damaged, or of a newer format: it could keep any object. Those of [`Vault`].
    pub fn take(vault: &dyn Vault, log: LogId) -> Result<Self> {
        let there = vault.list(&log_folder(log))?;
        let begins = there.iter().filter_map(|object| begin_number(log, &object.name));
        let begin = begins.clone().max().unwrap_or(0);
        let pins = pins::all(vault, log)?;
        let mut inventory = Self {
            log_id: log,
            has_root: false,
            range: None,
            begin,
            begin_made: if begin > 0 { vault.modified(&begin_name(log, begin))? } else { None },
            needed: ObjectCount::default(),
            pinned: ObjectCount::default(),
            unneeded: ObjectCount::default(),
            slices: ObjectCount::default(),
            old_begins: begins.filter(|number| *number < begin).count() as u64,
            unknown: ObjectCount::default(),
            pins,
        };
        let (root, pins) = (root_name(log), pins::folder(log));
        for object in &there {
            if let Some(number) = object_number(log, &object.name) {
                let (first, last) = inventory.range.unwrap_or((number, number));
                inventory.range = Some((first.min(number), last.max(number)));
                let is_kept = inventory.pins.iter().any(|pin| pin.keeps(number));
                let counted = match number >= begin {
                    true => &mut inventory.needed,
                    false if is_kept => &mut inventory.pinned,
                    false => &mut inventory.unneeded,
                };
                counted.add(object.bytes);
            } else if object.name == root {
                inventory.has_root = true;
            } else if SliceName::parse(log, &object.name).is_some() {
                inventory.slices.add(object.bytes);
            } else if begin_number(log, &object.name).is_none() && !object.name.starts_with(&pins) {
                inventory.unknown.add(object.bytes);
            }
        }
        Ok(inventory)
    }

    /// The first and the last record of the log that are in its objects. None: all of them are discarded, or there are none.
    /// Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`: an object is missing, or damaged. Those of [`Vault`].
    pub fn records(&self, vault: &dyn Vault) -> Result<Option<(Index, Index)>> {
        match Covered::find(vault, self.log_id, None) {
            Ok(Covered { first, last, .. }) => Ok(Some((first, last)).filter(|_| first <= last)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Discarded) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the objects and the begins that nothing needs. Returns how many objects. Pins that were made since hold. Blocks for
    /// the network.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn delete_unneeded(&self, vault: &dyn Vault) -> Result<u64> {
        match self.begin {
            0 => Ok(0),
            begin => delete_below(vault, self.log_id, begin),
        }
    }

    /// Deletes everything that a log has in an object store, for good. Records that no replica has are lost. Servers that run
    /// the log store nothing from then on. Objects that this version does not know go, too. Returns how many objects were deleted. An
    /// interrupted call can be repeated. Blocks for the network.
    ///
    /// ```
    /// use chiplog::backup::Inventory;
    /// let vault = chiplog::vault::MemoryVault::default();
    /// assert_eq!(Inventory::delete_log(&vault, chiplog::LogId(7))?, 0);
    /// # Ok::<(), chiplog::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`: a pin keeps objects of the log, or cannot be read; nothing was deleted. Those of [`Vault`].
    pub fn delete_log(vault: &dyn Vault, log: LogId) -> Result<u64> {
        let check_pins = || match pins::count(vault, log)? {
            0 => Ok(()),
            count => {
                let what = format!("log {:032x} has {count} pins: remove them first", log.0);
                Err(Error::new(ErrorKind::Busy, what))
            }
        };
        check_pins()?;
        let root = root_name(log);
        let had_root = vault.size(&root)?.is_some();
        vault.delete(&root)?;
        // The maker of a later pin sees that `root` is missing.
        if let Err(error) = check_pins() {
            if had_root {
                vault.create(&root, root_text(log).into())?;
            }
            return Err(error);
        }
        let there = vault.list(&log_folder(log))?;
        for object in &there {
            vault.delete(&object.name)?;
        }
        Ok(there.len() as u64 + u64::from(had_root))
    }
}
