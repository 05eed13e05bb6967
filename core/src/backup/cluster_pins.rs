//! Cluster's pins: the pins of one name that all logs of a cluster have, and the set that says which ones these are. With it they
//! are a backup of the cluster.
//!
//! ```text
//! make:    pins of the groups, the catalogue, the default log ──> set      (a crash before leaves pins, and no backup)
//! remove:  set ──> pins of the groups, the catalogue, the default log      (the same)
//!
//! <default log id>/set/<name>   chiplog pins of a cluster
//!                               format 1
//!                               log <log id>
//!                               catalogue <log id>
//!                               group <number> <log id>          a line each, by number
//!                               by <16 hexadecimal digits>
//!                               sum <CRC-32C of all before this line, 8 hexadecimal digits>
//! ```
//!
//! A log of which nothing was stored has ` nothing` behind its id, and no pin. If nothing is left of a log that the store had, there is no
//! set.
//!
//! Invariants:
//! - all pins of a set have its random number `by`; no other pin has it;
//! - a set is made once, after all of its pins hold, and is removed before any of them. So pins of which some are missing, because the
//!   command was interrupted, have no set, and are no backup of a cluster.
//!
//! Must not know: what the logs have.

use crate::backup::pin::{another, no_pin};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::record::crc::Crc;
use crate::store::objects::cluster_logs::ClusterLogs;
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::{branch_name, log_folder, object_number, root_name};
use crate::store::objects::payloads::payload_id;
use crate::store::objects::pins::{self, Pin};
use crate::store::objects::slice_names::SliceName;
use crate::types::{Index, LogId};
use crate::vault::Vault;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const TITLE: &str = "chiplog pins of a cluster\n";
const FORMAT: u32 = 1;
const NOTHING: &str = " nothing";

/// The pins of one name of a cluster's logs, which are a backup of all of it in the object store. The object store has a list of them
/// beside the default log's objects.
///
/// ```
/// use chiplog::backup::ClusterPins;
/// let vault = chiplog::vault::MemoryVault::default();
/// assert_eq!(ClusterPins::find(&vault, chiplog::LogId(7), "nightly")?, None);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterPins {
    /// The name of the pins.
    pub name: String,
    /// The logs of the cluster.
    pub logs: ClusterLogs,
    /// Those of which nothing was stored. They have no pin.
    pub empty: BTreeSet<LogId>,
    by: u64,
}

impl ClusterPins {
    /// Pins what is stored of all logs of a cluster, of the default log up to a record. Returns the pins too: of the default log, the
    /// catalogue and the groups. Blocks for the network.
    ///
    /// # Errors
    /// As [`Pin::make`], of any of the logs. `NotFound`: also if nothing of one of the logs is there, not even its object `root`, so that
    /// it may be lost. After an error there is no such set, and none of its pins, as far as they could be removed.
    pub fn make(
        vault: &dyn Vault,
        logs: &ClusterLogs,
        name: &str,
        upto: Option<Index>,
    ) -> Result<(Self, Vec<(LogId, Pin)>)> {
        pins::check_name(name)?;
        if pins::branch_of_pin(name).is_some() {
            let what = format!("{name} can only be the name of a branch's pin: choose another name");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let object = object_name(logs.log_id, name);
        if vault.size(&object)?.is_some() {
            return Err(exists(logs.log_id, name));
        }
        let mut set =
            Self { name: name.to_owned(), logs: logs.clone(), empty: BTreeSet::new(), by: another() };
        let mut made = Vec::new();
        let outcome = set.make_pins(vault, upto, &mut made).and_then(|()| match made.is_empty() {
            false => vault.create(&object, set.text()),
            true => {
                let what = format!("log {:032x} and its named logs have no objects", logs.log_id.0);
                Err(Error::new(ErrorKind::NotFound, what))
            }
        });
        let error = match outcome {
            Ok(true) => {
                made.reverse();
                return Ok((set, made));
            }
            Ok(false) => exists(logs.log_id, name),
            Err(error) => error,
        };
        // The caller gets the first error. `chiplog tier pins` shows what could not be removed.
        let _ = set.remove_own(vault);
        Err(error)
    }

    /// Removes this set and its pins, and none of the same names that another command has made since. Removes as much as it can. Blocks for
    /// the network.
    ///
    /// # Errors
    /// The first of those of [`Vault`]; `Unsupported`: a pin cannot be read. If the set cannot be removed, its pins stay, too.
    pub fn remove_own(&self, vault: &dyn Vault) -> Result<()> {
        let log = self.logs.log_id;
        // Its pins go only after it.
        match read(vault, log, &self.name) {
            Ok(Some(there)) if there == *self => vault.delete(&object_name(log, &self.name))?,
            Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                return Err(error);
            }
            _ => {}
        }
        let mut outcome = Ok(());
        for (_, log) in self.logs.parts() {
            outcome = outcome.and(pins::delete_own(vault, log, &self.name, self.by));
        }
        outcome
    }

    fn make_pins(
        &mut self,
        vault: &dyn Vault,
        upto: Option<Index>,
        made: &mut Vec<(LogId, Pin)>,
    ) -> Result<()> {
        let now = Options::default().clock.now();
        // The groups first: the catalogue then knows at least the logs that are in them.
        for (_, log) in self.logs.parts() {
            let upto = upto.filter(|_| log == self.logs.log_id);
            // Each error of a pin is one of the set: it never means that a log has nothing.
            if upto.is_none() && is_empty(vault, log)? {
                self.empty.insert(log);
                continue;
            }
            made.push((log, Pin::make_as(vault, log, &self.name, upto, now, self.by)?));
        }
        Ok(())
    }

    /// The set of pins of this name; None: there is none for this default log. Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged, or one of its pins is missing or another one. `Unsupported`: it, or a pin, is of a newer format. Those
    /// of [`Vault`].
    pub fn find(vault: &dyn Vault, log: LogId, name: &str) -> Result<Option<Self>> {
        Self::find_without(vault, log, name, &[])
    }

    /// The same for a fetch that leaves logs out, whose pins can be missing or damaged: `without` has names as in [`ClusterLogs::parts`].
    ///
    /// # Errors
    /// Those of [`Self::find`]. A name that is no log's is none.
    pub fn find_without(vault: &dyn Vault, log: LogId, name: &str, without: &[&str]) -> Result<Option<Self>> {
        let Some(set) = read(vault, log, name)? else { return Ok(None) };
        let wanted = set
            .logs
            .parts()
            .into_iter()
            .filter(|(part, log)| !set.empty.contains(log) && !without.contains(&part.as_str()));
        for (part, log) in wanted {
            let pin = pins::read(vault, log, name)
                .map_err(|error| Error::with_source(error.kind(), format!("{part}: {error}"), &error))?;
            if pin.is_none_or(|pin| pin.by != set.by) {
                let what = format!(
                    "{part}: pin {name} of log {:032x} is missing, or was made by another command: without it this is no backup of \
                     the cluster. Each of its logs has what its own pin keeps",
                    log.0
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
        }
        Ok(Some(set))
    }

    /// The set of pins of this name, whatever became of its pins. Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged. `Unsupported`: it is of a newer format. Those of [`Vault`].
    pub fn read(vault: &dyn Vault, log: LogId, name: &str) -> Result<Option<Self>> {
        read(vault, log, name)
    }

    /// The names of the sets that the object store has of a cluster with this default log. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Vault`].
    pub fn names(vault: &dyn Vault, log: LogId) -> Result<Vec<String>> {
        let (folder, found) = (sets(log), vault.list(&sets(log))?);
        let names = found.iter().filter_map(|at| at.name.strip_prefix(&folder));
        Ok(names.filter(|name| pins::check_name(name).is_ok()).map(str::to_owned).collect())
    }

    /// Whether this pin of one of the logs was made with the others of the set.
    pub fn has(&self, log: LogId, pin: &Pin) -> bool {
        let is_of_log = self.logs.parts().iter().any(|(_, part)| *part == log) && !self.empty.contains(&log);
        is_of_log && pin.name == self.name && pin.by == self.by
    }

    /// Removes the pins of this name that were made of a cluster's logs together, or the default log's alone. Those of named logs that
    /// another command made stay. A call that was interrupted can be repeated. `force`: as [`Pin::remove_by_force`], of the default
    /// log. Returns the logs whose pins were removed. Blocks for the network.
    ///
    /// # Errors
    /// `NotFound`: there is none; says which named logs have pins of this name. Those of [`Pin::remove`].
    pub fn remove(vault: &dyn Vault, log: LogId, name: &str, force: bool) -> Result<Vec<LogId>> {
        pins::check_name(name)?;
        let object = object_name(log, name);
        let is_damaged = |error: &Error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported);
        let (set, had_set) = match read(vault, log, name) {
            Err(error) if is_damaged(&error) => (None, true),
            set => set.map(|set| (set.clone(), set.is_some()))?,
        };
        // The logs, and the number of the pins that go. The default log's is the last one, so a repeated call finds it here.
        let own = match pins::read(vault, log, name) {
            Err(error) if !is_damaged(&error) => return Err(error),
            own => own,
        };
        let by = set.as_ref().map(|set| set.by).or_else(|| own.as_ref().ok()?.as_ref().map(|pin| pin.by));
        let logs = match &set {
            Some(set) => Some(set.logs.clone()),
            None => match ClusterLogs::find(vault, log) {
                Err(error) if is_damaged(&error) => None,
                logs => logs?,
            },
        };
        if had_set {
            vault.delete(&object)?;
        }
        let named = logs.iter().flat_map(|logs| logs.groups.values().chain([&logs.catalogue]));
        let (mut removed, mut others) = (Vec::new(), Vec::new());
        for named in named.copied() {
            match pins::read(vault, named, name)? {
                Some(pin) if by == Some(pin.by) => {
                    Pin::remove(vault, named, name)?;
                    removed.push(named);
                }
                Some(_) => others.push(format!("{:032x}", named.0)),
                None => {}
            }
        }
        let has_own = own.as_ref().map_or(true, Option::is_some);
        let is_of_set = set.as_ref().is_none_or(|set| !set.empty.contains(&log));
        if has_own && is_of_set {
            match force {
                true => Pin::remove_by_force(vault, log, name)?,
                false => Pin::remove(vault, log, name)?,
            }
            removed.push(log);
        }
        removed.reverse();
        match removed.is_empty() && !had_set {
            false => Ok(removed),
            true if others.is_empty() => Err(no_pin(log, name)),
            true => {
                let what = format!(
                    "log {:032x} has no pin {name}. Named logs have pins of this name that were made alone, or by a command that was \
                     interrupted: remove each with --log-id: {}",
                    log.0,
                    others.join(", ")
                );
                Err(Error::new(ErrorKind::NotFound, what))
            }
        }
    }

    fn text(&self) -> Bytes {
        let of =
            |log: LogId| format!("{:032x}{}", log.0, if self.empty.contains(&log) { NOTHING } else { "" });
        let mut text = format!(
            "{TITLE}format {FORMAT}\nlog {}\ncatalogue {}\n",
            of(self.logs.log_id),
            of(self.logs.catalogue)
        );
        for (group, id) in &self.logs.groups {
            text += &format!("group {group} {}\n", of(*id));
        }
        text += &format!("by {:016x}\n", self.by);
        let sum = Crc::new().add(text.as_bytes()).sum();
        format!("{text}sum {sum:08x}\n").into()
    }

    /// The reverse of [`Self::text`].
    fn parse(log: LogId, name: &str, bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.strip_prefix(TITLE)?.strip_prefix(&format!("format {FORMAT}\n"))?.lines();
        let mut empty = BTreeSet::new();
        let mut id = |text: &str| {
            let (digits, is_empty) = text.strip_suffix(NOTHING).map_or((text, false), |id| (id, true));
            let id = LogId(u128::from_str_radix(digits, 16).ok()?);
            empty.extend(is_empty.then_some(id));
            Some(id)
        };
        let default = id(lines.next()?.strip_prefix("log ")?)?;
        let catalogue = id(lines.next()?.strip_prefix("catalogue ")?)?;
        let mut groups = BTreeMap::new();
        let by = loop {
            let line = lines.next()?;
            if let Some(by) = line.strip_prefix("by ") {
                break u64::from_str_radix(by, 16).ok()?;
            }
            let (number, group) = line.strip_prefix("group ")?.split_once(' ')?;
            groups.insert(number.parse().ok().filter(|number| *number > 0)?, id(group)?);
        };
        let logs = ClusterLogs::new(default, catalogue, groups);
        let set = Self { name: name.to_owned(), logs, empty, by };
        (set.text() == bytes && default == log).then_some(set)
    }
}

/// Whether a log has no records that a pin could keep: no objects, or only those of discarded records.
///
/// # Errors
/// `NotFound`: it has records, and no object with them; or there is nothing of it, not even `root`. `Corrupt`: it has objects and no
/// `root`, or pins and no objects.
fn is_empty(vault: &dyn Vault, log: LogId) -> Result<bool> {
    // A branch may have none of its own.
    if vault.size(&branch_name(log))?.is_some() {
        return Ok(false);
    }
    let begin = newest_begin(vault, log)?.unwrap_or(0);
    let there = vault.list(&log_folder(log))?;
    let is_object = |name: &str| object_number(log, name).is_some_and(|number| number >= begin);
    let is_slice = |name: &str| SliceName::parse(log, name).is_some() || payload_id(log, name).is_some();
    let has_objects = there.iter().any(|at| is_object(&at.name));
    if has_objects && vault.size(&root_name(log))?.is_none() {
        let what = format!(
            "log {:032x} has objects, and {} is missing: docs/tiers.md says how to make it again",
            log.0,
            root_name(log)
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    if !has_objects && there.iter().any(|at| is_slice(&at.name)) {
        let what = format!(
            "log {:032x} has records in slices, and no object, and pins keep objects alone: `chiplog tier backup` puts them into one",
            log.0
        );
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    if !has_objects && vault.size(&root_name(log))?.is_none() {
        return Err(Error::new(ErrorKind::NotFound, format!("log {:032x}: {}", log.0, no_root(log))));
    }
    let is_any_object = |name: &str| object_number(log, name).is_some();
    let has_pins = there.iter().any(|at| at.name.starts_with(&pins::folder(log)));
    if has_pins && !there.iter().any(|at| is_any_object(&at.name)) {
        let what = format!(
            "log {:032x} has pins, and no object is left of it: they were lost. If a command was interrupted that made the first pin, \
             remove that pin",
            log.0
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(!has_objects)
}

/// The explanation of a log of a cluster without its object `root`, for people.
pub(crate) fn no_root(log: LogId) -> String {
    format!(
        "it is one of the cluster's logs, and nothing of it is there, not even {}: it was deleted, or its servers have not begun to \
         store it, as in the first seconds of a group",
        root_name(log)
    )
}

/// The name of the object that is a set.
fn object_name(log: LogId, name: &str) -> String {
    format!("{}{name}", sets(log))
}

/// The folder of a default log's sets.
pub(crate) fn sets(log: LogId) -> String {
    format!("{:032x}/set/", log.0)
}

fn exists(log: LogId, name: &str) -> Error {
    let what = format!("log {:032x} has a pin {name} already: choose another name", log.0);
    Error::new(ErrorKind::AlreadyExists, what)
}

/// The set of this name, whatever became of its pins.
fn read(vault: &dyn Vault, log: LogId, name: &str) -> Result<Option<ClusterPins>> {
    pins::check_name(name)?;
    let object = object_name(log, name);
    let Some(bytes) = vault.size(&object)? else { return Ok(None) };
    let text = match vault.get(&object, 0..bytes) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    if let Some(set) = ClusterPins::parse(log, name, &text) {
        return Ok(Some(set));
    }
    let newer = format!("{TITLE}format ");
    let format = std::str::from_utf8(&text).ok().and_then(|text| text.strip_prefix(&newer)?.lines().next());
    match format.and_then(|format| format.parse::<u32>().ok()).filter(|format| *format > FORMAT) {
        Some(format) => {
            let what = format!(
                "{object} is of format {format}, and this program reads format {FORMAT}: use a newer chiplog"
            );
            Err(Error::new(ErrorKind::Unsupported, what))
        }
        None => Err(Error::corrupt(Path::new(&object), 0, "it is no set of a cluster's pins")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::MemoryVault;

    #[test]
    fn log_with_records_is_never_taken_for_an_empty_one() {
        let log = LogId(7);
        let holds = |names: &[&str]| {
            let vault = MemoryVault::default();
            let put = |name: &&str| vault.put(&format!("{:032x}/{name}", log.0), &["x".into()]).unwrap();
            names.iter().for_each(put);
            is_empty(&vault, log).map_err(|error| error.kind())
        };
        let (first, payload) = ("o/00000000000000000000", "p/00000000000000000001.00000000000000000001");
        assert_eq!(holds(&[]), Err(ErrorKind::NotFound), "it was deleted");
        assert_eq!(holds(&["named", "set/a"]), Err(ErrorKind::NotFound));
        assert_eq!(holds(&["root", "named", "set/a"]), Ok(true));
        assert_eq!(holds(&["root", "pin/a"]), Err(ErrorKind::Corrupt), "its objects are lost");
        assert_eq!(holds(&["root", first, "pin/a"]), Ok(false));
        assert_eq!(holds(&["root", first]), Ok(false));
        assert_eq!(holds(&["root", "branch"]), Ok(false));
        let begin = "begin/00000000000000000001";
        assert_eq!(holds(&["root", first, begin]), Ok(true), "all are discarded");
        assert_eq!(holds(&[first]), Err(ErrorKind::Corrupt), "`root` is lost");
        assert_eq!(holds(&["root", payload]), Err(ErrorKind::NotFound));
        assert_eq!(holds(&["root", first, begin, payload]), Err(ErrorKind::NotFound));
    }

    #[test]
    fn every_other_text_is_refused() {
        let groups = [(1, LogId(3)), (12, LogId(4))].into_iter().collect();
        let set = ClusterPins {
            name: "nightly".to_owned(),
            logs: ClusterLogs::new(LogId(7), LogId(8), groups),
            empty: [LogId(7), LogId(4)].into_iter().collect(),
            by: 0x1234,
        };
        let text = set.text();
        assert_eq!(ClusterPins::parse(LogId(7), "nightly", &text), Some(set));
        assert_eq!(ClusterPins::parse(LogId(6), "nightly", &text), None);
        for bit in 0..text.len() * 8 {
            let mut bad = text.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ClusterPins::parse(LogId(7), "nightly", &bad), None, "bit {bit}");
        }
        assert!((0..text.len()).all(|cut| ClusterPins::parse(LogId(7), "nightly", &text[..cut]).is_none()));
    }
}
