//! The way from a default log to the named logs of its cluster, and back: the list of the cluster's logs, and the sets of pins that are
//! backups of all of them.
//!
//! Must not know: how anything is shown.

use super::objects::{Listed, logs};
use chiplog::backup::{ClusterLogs, ClusterPins, Pin};
use chiplog::internal::root_name;
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, LogId, Result};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a new group may take until its servers begin to store it, and how often to look.
const ROOTS_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(250);

/// The place of a log in its cluster, as it is shown. Both `None`: it is a log on its own, or the object store does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    /// `default`, `system` for the catalogue, `group-1` and so on.
    role: Option<String>,
    /// The id of the cluster's default log.
    cluster: Option<String>,
}

impl Place {
    fn new(role: &str, cluster: LogId) -> Self {
        Self { role: Some(role.to_owned()), cluster: Some(to_hex(cluster.get())) }
    }

    /// The place of a log, as far as the object store says. All objects are listed only if the log has no list and was `chosen`: without a
    /// choice no log is taken that is in the list of another one.
    pub(super) fn of(vault: &dyn Vault, log: LogId, chosen: bool) -> Self {
        match ClusterLogs::find(vault, log) {
            Ok(Some(list)) => Self::in_list(&list, log),
            Ok(None) if chosen => Places::of_one(vault, Some(log), &BTreeMap::new()).get(log),
            _ => Self::default(),
        }
    }

    /// The place that a list gives to a log.
    pub(super) fn in_list(list: &ClusterLogs, log: LogId) -> Self {
        let role = list.parts().into_iter().find(|(_, id)| *id == log);
        role.map_or_else(Self::default, |(role, _)| Self::new(&role, list.log_id))
    }

    /// For a column.
    pub(super) fn cell(&self) -> String {
        self.role.clone().unwrap_or_else(|| "-".to_owned())
    }

    /// Behind the id of the log.
    pub(super) fn words(&self) -> String {
        match (self.role.as_deref(), &self.cluster) {
            (Some("default"), _) => " (default log of a cluster)".to_owned(),
            (Some(role), Some(cluster)) => format!(" ({role} of the cluster of log {cluster})"),
            _ => String::new(),
        }
    }
}

/// The places of logs, by their ids.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<u128, Place>);

impl Places {
    /// The places of the logs that were found. A list that cannot be read gives its default log alone a place: `verify` reports it.
    pub(super) fn of(vault: &dyn Vault, found: &BTreeMap<u128, Listed>) -> Self {
        let mut places = BTreeMap::new();
        for log in found.iter().filter(|(_, listed)| listed.has_list).map(|(log, _)| LogId(*log)) {
            let list = ClusterLogs::find(vault, log).ok().flatten();
            for (role, id) in list.iter().flat_map(ClusterLogs::parts) {
                places.insert(id.get(), Place::new(&role, log));
            }
            places.entry(log.get()).or_insert_with(|| Place::new("default", log));
        }
        Self(places)
    }

    /// The same if only one log was to be found: its place is known from the list of another one, and all objects have to be listed to
    /// find that. A place is only shown: if that fails, there is none.
    pub(super) fn of_one(vault: &dyn Vault, only: Option<LogId>, found: &BTreeMap<u128, Listed>) -> Self {
        if only.is_none() || found.values().any(|listed| listed.has_list) {
            return Self::of(vault, found);
        }
        logs(vault, None).map_or_else(|_| Self::default(), |all| Self::of(vault, &all))
    }

    pub(super) fn get(&self, log: LogId) -> Place {
        self.0.get(&log.get()).cloned().unwrap_or_default()
    }
}

/// The other logs of the cluster with this default log that have something in the object store.
///
/// # Errors
/// Those of the object store.
pub(super) fn others(vault: &dyn Vault, log: LogId) -> Result<Vec<(String, LogId)>> {
    let list = match ClusterLogs::find(vault, log) {
        // It names no logs to anybody.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => None,
        list => list?,
    };
    let mut others = list.map(|list| list.parts()).unwrap_or_default();
    others.retain(|(_, id)| *id != log);
    let mut there = Vec::new();
    for (role, id) in others {
        if !logs(vault, Some(id))?.is_empty() {
            there.push((role, id));
        }
    }
    Ok(there)
}

/// The faults of these of a log. With any of them, a fetch or a backup of the cluster is refused.
///
/// # Errors
/// Those of the object store.
pub(super) fn faults(vault: &dyn Vault, log: LogId, listed: &Listed) -> Result<Vec<String>> {
    let (mut faults, mut list) = (Vec::new(), None);
    // Before the list: that only grows, so it has the logs of each of them.
    let sets = sets(vault, log)?;
    if listed.has_list || !sets.is_empty() {
        let found = ClusterLogs::find(vault, log);
        match found.and_then(|list| check_list(vault, log, list)) {
            Ok(found) => {
                faults.extend(missing(vault, found.as_ref())?);
                list = found;
            }
            Err(error) => faults.push(fault(error)?),
        }
    }
    for (name, Found { set, fault }) in sets {
        faults.extend(fault);
        let (Some(set), Some(list)) = (set, &list) else { continue };
        let known = list.parts();
        let unknown = set.logs.parts().into_iter().filter(|part| !known.contains(part));
        faults.extend(unknown.map(|(part, id)| {
            let id = to_hex(id.get());
            format!("{part}, log {id}, is in the backup {name}, and not in the list of the cluster's logs")
        }));
    }
    Ok(faults)
}

/// Checks that a cluster that has backups in the object store has its list there.
///
/// # Errors
/// `Corrupt`: the list was lost. Those of the object store.
pub(super) fn check_list(
    vault: &dyn Vault,
    log: LogId,
    list: Option<ClusterLogs>,
) -> Result<Option<ClusterLogs>> {
    if list.is_some() {
        return Ok(list);
    }
    let Some(name) = ClusterPins::names(vault, log)?.pop() else { return Ok(None) };
    let catalogue = match ClusterPins::read(vault, log, &name) {
        Ok(Some(set)) => format!(", whose catalogue is log {}", to_hex(set.logs.catalogue.get())),
        _ => String::new(),
    };
    let what = format!(
        "the object store does not have the list of the cluster's logs, {}/named, and has the backup {name} of all of them{catalogue}: the \
         list was lost. Servers that run store it again within 5 minutes",
        to_hex(log.get())
    );
    Err(Error::new(ErrorKind::Corrupt, what))
}

/// A set of pins that is a backup of a cluster.
pub(super) struct Found {
    /// None: it cannot be read.
    pub(super) set: Option<ClusterPins>,
    /// Why it is no backup of the whole cluster, if so.
    pub(super) fault: Option<String>,
}

/// The sets of a cluster with this default log, by name.
///
/// # Errors
/// Those of the object store.
pub(super) fn sets(vault: &dyn Vault, log: LogId) -> Result<BTreeMap<String, Found>> {
    let mut sets = BTreeMap::new();
    for name in ClusterPins::names(vault, log)? {
        let find = || ClusterPins::find(vault, log, &name);
        let found = match find() {
            // If it was removed and made again meanwhile, another look finds it whole.
            Err(error) if error.kind() == ErrorKind::Corrupt => find(),
            found => found,
        };
        match found {
            // It was removed meanwhile.
            Ok(None) => {}
            Ok(Some(set)) => _ = sets.insert(name, Found { set: Some(set), fault: None }),
            Err(error) => {
                let why = format!(
                    "the backup {name} of the cluster of log {}: {}",
                    to_hex(log.get()),
                    fault(error)?
                );
                // A set that was removed meanwhile has no fault.
                let set = match ClusterPins::read(vault, log, &name) {
                    Ok(None) => continue,
                    set => set.ok().flatten(),
                };
                sets.insert(name, Found { set, fault: Some(why) });
            }
        }
    }
    Ok(sets)
}

/// The set that a pin was made with, among these sets.
pub(super) fn set_of<'a>(sets: &'a [Found], log: LogId, pin: &Pin) -> Option<&'a Found> {
    sets.iter().find(|found| found.set.as_ref().is_some_and(|set| set.has(log, pin)))
}

/// Waits until all logs of a list have their object `root`: a group is in the list seconds before its servers begin to store it. Returns
/// those that do not have it after ten seconds.
///
/// # Errors
/// Those of the object store.
pub(super) fn await_roots(vault: &dyn Vault, list: &ClusterLogs) -> Result<Vec<(String, LogId)>> {
    let deadline = Instant::now() + ROOTS_WITHIN;
    let mut lack = list.parts();
    loop {
        let mut left = Vec::new();
        for (name, log) in lack {
            if vault.size(&root_name(log))?.is_none() {
                left.push((name, log));
            }
        }
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(LOOK);
        lack = left;
    }
}

/// The logs of a list that are not there.
fn missing(vault: &dyn Vault, list: Option<&ClusterLogs>) -> Result<Vec<String>> {
    let lack = list.map(|list| await_roots(vault, list)).transpose()?.unwrap_or_default();
    let shown = |(name, log): (String, LogId)| {
        format!(
            "{name}, log {}, is in the list of the cluster's logs, and its object `root` is not there: it was deleted, or its servers have \
             not begun to store it",
            to_hex(log.get())
        )
    };
    Ok(lack.into_iter().map(shown).collect())
}

/// The text of an error about the contents of the object store.
///
/// # Errors
/// It is about something else.
fn fault(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unsupported => Ok(error.to_string()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::backup::ClusterPins;
    use chiplog::internal::{Crc, root_text};
    use chiplog::vault::{HookedVault, MemoryVault};
    use std::sync::Arc;

    const DEFAULT: LogId = LogId(7);

    fn sealed(body: &str) -> String {
        format!("{body}sum {:08x}\n", Crc::default().add(body.as_bytes()).sum())
    }

    /// Stores the list of a cluster with this number of groups.
    fn store_list(vault: &dyn Vault, groups: u32) {
        let id = |log: u128| to_hex(log);
        let mut body = format!("chiplog named logs\nformat 1\nlog {}\ncatalogue {}\n", id(7), id(8));
        for group in 1..=groups {
            let log = 8 + u128::from(group);
            body += &format!("group {group} {}\n", id(log));
            vault.put(&root_name(LogId(log)), &[root_text(LogId(log)).into()]).unwrap();
        }
        vault.put(&format!("{}/named", id(7)), &[sealed(&body).into()]).unwrap();
    }

    /// Stores a set of pins of these groups, of logs of which nothing was stored.
    fn store_set(vault: &dyn Vault, groups: u32, by: u64) {
        let id = |log: u128| format!("{} nothing", to_hex(log));
        let mut body = format!("chiplog pins of a cluster\nformat 1\nlog {}\ncatalogue {}\n", id(7), id(8));
        for group in 1..=groups {
            body += &format!("group {group} {}\n", id(8 + u128::from(group)));
        }
        body += &format!("by {by:016x}\n");
        vault.put(&format!("{}/set/nightly", to_hex(7)), &[sealed(&body).into()]).unwrap();
    }

    /// The list was read, then a group was made, and a backup with it: the backup had a log that was not in the list.
    #[test]
    fn group_and_backup_that_are_made_meanwhile_are_no_fault() {
        for groups in [0, 1] {
            let memory = Arc::new(MemoryVault::default());
            for log in [7, 8] {
                memory.put(&root_name(LogId(log)), &[root_text(LogId(log)).into()]).unwrap();
            }
            // None: the cluster had no named logs yet.
            if groups > 0 {
                store_list(&*memory, groups);
            }
            let listed = logs(&*memory, Some(DEFAULT)).unwrap().remove(&7).unwrap();
            let (vault, store) = (HookedVault::new(memory.clone()), memory.clone());
            let mut is_made = false;
            vault.set(move |call, name| {
                if call == "list" && name.ends_with("/set/") && !std::mem::replace(&mut is_made, true) {
                    store_list(&*store, 2);
                    store_set(&*store, 2, 5);
                }
                Ok(())
            });
            assert_eq!(faults(&vault, DEFAULT, &listed).unwrap(), Vec::<String>::new(), "{groups}");
        }
    }

    /// `unpin` and `pin` of one name, between the look at the set and the one at its pins.
    #[test]
    fn backup_that_is_made_again_meanwhile_is_not_broken() {
        let memory = Arc::new(MemoryVault::default());
        store_list(&*memory, 1);
        store_set(&*memory, 1, 5);
        // It has a pin of the default log that is not there any more.
        let name = format!("{}/set/nightly", to_hex(7));
        let bytes = memory.get(&name, 0..memory.size(&name).unwrap().unwrap()).unwrap();
        let body = String::from_utf8(bytes.to_vec()).unwrap().replacen(" nothing", "", 1);
        let body = body.rsplit_once("sum ").unwrap().0;
        memory.put(&name, &[sealed(body).into()]).unwrap();
        assert_eq!(ClusterPins::find(&*memory, DEFAULT, "nightly").unwrap_err().kind(), ErrorKind::Corrupt);
        let (vault, store) = (HookedVault::new(memory.clone()), memory.clone());
        vault.set(move |call, name| {
            if call == "size" && name.ends_with("/pin/nightly") {
                store_set(&*store, 1, 6);
            }
            Ok(())
        });
        let found = sets(&vault, DEFAULT).unwrap();
        assert!(found["nightly"].fault.is_none() && found["nightly"].set.is_some());
    }
}
