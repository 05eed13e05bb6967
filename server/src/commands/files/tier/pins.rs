//! `chiplog tier pin`, `unpin` and `pins`: what keeps objects of a log from deletion.

use super::named::{self, Found, Place, Places, set_of, sets};
use super::objects::{logs, sole_log};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::{Ui, print};
use chiplog::backup::{ClusterLogs, ClusterPins, Pin};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, Index, LogId};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;

/// A pin as it is shown.
#[derive(Serialize)]
struct Shown {
    log_id: String,
    #[serde(flatten)]
    place: Place,
    name: String,
    first_object: u64,
    last_object: u64,
    first: u64,
    last: u64,
    made_timestamp: u64,
    made_time: String,
    missing: u64,
    branch: Option<String>,
    set: Option<String>,
    set_empty: Vec<String>,
    broken: Option<String>,
}

impl Shown {
    /// `set`: the backup of a cluster of which the pin is a part; `broken`: why it is no backup any more.
    fn new(
        log: LogId,
        place: Place,
        pin: &Pin,
        missing: u64,
        set: Option<&ClusterPins>,
        broken: Option<&str>,
    ) -> Self {
        Self {
            log_id: to_hex(log.get()),
            place,
            name: pin.name.clone(),
            first_object: pin.first_object,
            last_object: pin.last_object,
            first: pin.first.get(),
            last: pin.last.get(),
            made_timestamp: pin.made.0,
            made_time: format::time(pin.made),
            missing,
            branch: pin.branch().map(|log| to_hex(log.get())),
            set: set.map(|set| to_hex(set.logs.log_id.get())),
            set_empty: set.map(empty_of).unwrap_or_default(),
            broken: broken.map(str::to_owned),
        }
    }

    fn words(&self) -> String {
        format!(
            "pinned {}: records {} to {} of log {}{}, in objects {} to {}",
            self.name,
            self.first,
            self.last,
            self.log_id,
            self.place.words(),
            self.first_object,
            self.last_object
        )
    }

    fn row(&self) -> [String; 7] {
        let backup = match (&self.set, &self.branch) {
            (Some(_), _) if self.broken.is_some() => "broken",
            (Some(_), _) => "cluster",
            (None, Some(_)) => "branch",
            (None, None) => "log",
        };
        [
            self.log_id.clone(),
            self.place.cell(),
            self.name.clone(),
            format!("{} to {}", self.first_object, self.last_object),
            format!("{} to {}", self.first, self.last),
            self.made_time.clone(),
            backup.to_owned(),
        ]
    }
}

/// The names of the logs of which a backup of a cluster has nothing.
fn empty_of(set: &ClusterPins) -> Vec<String> {
    set.logs.parts().into_iter().filter(|(_, log)| set.empty.contains(log)).map(|(name, _)| name).collect()
}

/// The heads of the columns; the help explains them.
const COLUMNS: [&str; 7] = ["LOG", "ROLE", "NAME", "OBJECTS", "RECORDS", "MADE", "BACKUP"];

/// A pin that was removed.
#[derive(Serialize)]
struct Removed {
    log_id: String,
    name: String,
}

/// Pins what a log has in objects; of the default log of a cluster without `upto` also its named logs.
pub(super) fn pin(
    vault: &dyn Vault,
    name: &str,
    log: Option<LogId>,
    upto: Option<u64>,
    ui: &Ui,
) -> Result<Exit> {
    let is_chosen = log.is_some();
    let log = sole_log(vault, log)?;
    let upto_record = upto.map(Index);
    let list = match upto {
        None => list_of(vault, log)?,
        Some(_) => None,
    };
    match list {
        Some(list) => pin_all(vault, &list, name, None, &[], ui),
        None => {
            let place = Place::of(vault, log, is_chosen);
            let pin = Pin::make(vault, log, name, upto_record)?;
            ui.result(&Shown::new(log, place, &pin, 0, None, None), Shown::words)?;
            Ok(Exit::Ok)
        }
    }
}

/// The logs of the cluster whose default log this is. None: it has no named logs.
pub(super) fn list_of(vault: &dyn Vault, log: LogId) -> Result<Option<ClusterLogs>> {
    let list = ClusterLogs::find(vault, log).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => {
            let what = format!(
                "{error}. Remove this object: servers that run store it again within 5 minutes. Records are not in it"
            );
            Failure::new(ErrorKind::Corrupt, what)
        }
        _ => Failure::from(error),
    })?;
    Ok(named::check_list(vault, log, list)?)
}

/// Pins all logs of a cluster, the default log up to a record. `stored`: named logs with the last record of each that is known to be stored.
pub(super) fn pin_all(
    vault: &dyn Vault,
    logs: &ClusterLogs,
    name: &str,
    upto: Option<Index>,
    stored: &[(LogId, Index)],
    ui: &Ui,
) -> Result<Exit> {
    named::await_roots(vault, logs)?;
    let (set, made) = ClusterPins::make(vault, logs, name, upto)?;
    if let Some(failure) = stored.iter().find_map(|(log, upto)| lacking(&set, &made, *log, *upto)) {
        set.remove_own(vault)?;
        return Err(failure);
    }
    made.iter().try_for_each(|(log, pin)| {
        let place = Place::in_list(&set.logs, *log);
        ui.result(&Shown::new(*log, place, pin, 0, Some(&set), None), Shown::words)
    })?;
    for part in empty_of(&set) {
        ui.note(&format!("nothing of {part} is stored: it has no pin, and comes back empty"));
    }
    Ok(Exit::Ok)
}

/// Why these pins have less of a named log than the servers say is stored, if so.
fn lacking(set: &ClusterPins, made: &[(LogId, Pin)], log: LogId, upto: Index) -> Option<Failure> {
    let id = to_hex(log.get());
    if set.empty.contains(&log) {
        let what = format!(
            "log {id} has records that the servers say are stored, and no object: objects were lost, or its records were discarded \
             meanwhile. Nothing is pinned; `chiplog tier verify` says what is missing"
        );
        return Some(Failure::new(ErrorKind::Corrupt, what));
    }
    let (_, pin) = made.iter().find(|(of, _)| *of == log).filter(|(_, pin)| pin.last < upto)?;
    let what = format!(
        "record {upto} of log {id}, which the servers say is stored, is in no object here: the last one is {}. Nothing is pinned. A copy \
         of the servers' object store gets it later: try again",
        pin.last
    );
    Some(Failure::new(ErrorKind::OutOfRange, what))
}

/// Removes a pin, and those that were made with it. `force`: also that of a branch of this log.
pub(super) fn unpin(vault: &dyn Vault, name: &str, log: Option<LogId>, force: bool, ui: &Ui) -> Result<Exit> {
    let log = sole_log(vault, log)?;
    for log in ClusterPins::remove(vault, log, name, force)? {
        let removed = Removed { log_id: to_hex(log.get()), name: name.to_owned() };
        ui.result(&removed, |removed| format!("removed pin {} of log {}", removed.name, removed.log_id))?;
    }
    Ok(Exit::Ok)
}

/// The logs whose pins are shown, and the sets of which these can be parts. For one log, sets of others that this user may not read are
/// left out.
fn logs_and_sets(vault: &dyn Vault, only: Option<LogId>) -> Result<(Vec<LogId>, Vec<Found>, Places)> {
    let is_refused =
        |error: &Error| matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unauthenticated);
    let all = match logs(vault, None) {
        Err(error) if only.is_some() && is_refused(&error) => logs(vault, only)?,
        all => all?,
    };
    let mut found = Vec::new();
    for log in all.keys().copied().map(LogId) {
        match sets(vault, log) {
            Err(error) if only.is_some_and(|only| only != log) && is_refused(&error) => {}
            sets => found.extend(sets?.into_values()),
        }
    }
    let is_shown = |log: &LogId| only.is_none_or(|only| only == *log);
    let places = Places::of(vault, &all);
    Ok((all.into_keys().map(LogId).filter(is_shown).collect(), found, places))
}

pub(super) fn list(vault: &dyn Vault, only: Option<LogId>, ui: &Ui) -> Result<Exit> {
    let mut shown = Vec::new();
    let (all, found, places) = logs_and_sets(vault, only)?;
    for log in all {
        for pin in Pin::list(vault, log)? {
            let of = set_of(&found, log, &pin);
            let (set, broken) = of.map_or((None, None), |of| (of.set.as_ref(), of.fault.as_deref()));
            shown.push(Shown::new(log, places.get(log), &pin, pin.missing(vault, log)?, set, broken));
        }
    }
    found.iter().filter_map(|found| found.fault.as_ref()).for_each(|why| ui.warn(why));
    if ui.json {
        shown.iter().try_for_each(|pin| ui.json(pin))?;
        return Ok(Exit::Ok);
    }
    if shown.is_empty() {
        ui.note("no log has pins there");
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = [COLUMNS.map(str::to_owned)].into_iter().chain(shown.iter().map(Shown::row)).collect();
    print(format::table(&rows).as_bytes())?;
    for pin in shown.iter().filter(|pin| pin.missing > 0) {
        let missing = format::many(pin.missing, "object is", "objects are");
        ui.note(&format!(
            "{missing} missing under pin {}: lost, or the command that made it was interrupted. If it was, remove the pin and make it again",
            pin.name
        ));
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::internal::root_name;
    use chiplog::vault::{HookedVault, MemoryVault};
    use chiplog::{Log, Options};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A pin was made, and the command failed, because the other logs could not be listed.
    #[test]
    fn place_of_a_log_is_shown_if_it_can_be_found() {
        let memory = Arc::new(MemoryVault::default());
        memory.put(&root_name(LogId(7)), &["x".into()]).unwrap();
        let vault = HookedVault::new(memory);
        vault.set(|call, name| match call {
            "list" => Err(Error::new(ErrorKind::Unavailable, name)),
            _ => Ok(()),
        });
        assert_eq!(Place::of(&vault, LogId(7), true), Place::default());
        vault.set(|call, _| {
            assert_ne!(call, "list", "no other log is the default log of its cluster");
            Ok(())
        });
        assert_eq!(Place::of(&vault, LogId(7), false), Place::default());
    }

    /// A backup through a copy of the object store that lags behind lacked records of named logs that the servers had confirmed, and
    /// succeeded.
    #[test]
    fn backup_has_all_that_the_servers_say_is_stored() {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let options = Options::with_segment_bytes(256 << 10).vault(Some(vault.clone() as _));
        let group = Log::open(dir.path(), options.object_bytes(64 << 10)).unwrap();
        let last = (0..9).fold(Index(0), |_, _| group.append(b"record").unwrap());
        group.cut_objects(last).unwrap();
        let begun = Instant::now();
        while group.metrics().stored_index < last.get() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        let logs = ClusterLogs::new(LogId(7), LogId(8), [(1, group.log_id())].into());
        for log in [logs.log_id, logs.catalogue] {
            vault.put(&root_name(log), &["x".into()]).unwrap();
        }
        let ui = Ui::new(true, true, false);
        let pin = |name, upto| pin_all(&*vault, &logs, name, None, &[(group.log_id(), upto)], &ui);
        assert_eq!(pin("late", last.next()).unwrap_err().kind(), ErrorKind::OutOfRange);
        assert!(Pin::list(&*vault, group.log_id()).unwrap().is_empty());
        assert!(ClusterPins::names(&*vault, logs.log_id).unwrap().is_empty());
        assert!(pin("whole", last).is_ok());
        assert_eq!(Pin::list(&*vault, group.log_id()).unwrap().len(), 1);
    }

    /// Credentials for one log's folder are enough to list its pins, and an error is not taken for no pins.
    #[test]
    fn pins_of_a_log_need_the_right_to_its_folder_alone() {
        let memory = Arc::new(MemoryVault::default());
        for log in [LogId(7), LogId(8)] {
            memory.put(&root_name(log), &["x".into()]).unwrap();
        }
        let vault = HookedVault::new(memory);
        let refuse = |prefixes: &'static [&'static str]| {
            vault.set(move |call, name| match call == "list" && prefixes.contains(&name) {
                true => Err(Error::new(ErrorKind::PermissionDenied, name)),
                false => Ok(()),
            });
        };
        let found =
            |only| logs_and_sets(&vault, only).map(|(logs, ..)| logs).map_err(|failure| failure.kind());
        for prefixes in [&[""][..], &["00000000000000000000000000000008/set/"], &[]] {
            refuse(prefixes);
            assert_eq!(found(Some(LogId(7))), Ok(vec![LogId(7)]), "{prefixes:?}");
            let all = if prefixes.is_empty() {
                Ok(vec![LogId(7), LogId(8)])
            } else {
                Err(ErrorKind::PermissionDenied)
            };
            assert_eq!(found(None), all, "{prefixes:?}");
        }
        refuse(&["00000000000000000000000000000007/set/"]);
        assert_eq!(found(Some(LogId(7))), Err(ErrorKind::PermissionDenied));
    }
}
