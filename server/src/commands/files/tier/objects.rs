//! The logs of an object store and their objects, by their names.
//!
//! Must not know: how logs are shown.

use crate::common::format;
use crate::common::output::Ui;
use chiplog::backup::{Branch, BranchPart, ClusterLogs};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, LogId, Result};
use chiplog_net::wire::ids::{from_hex, to_hex};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The objects of a log: size by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Whether the object that says which log this is exists.
    pub(super) has_root: bool,
    pub(super) objects: BTreeMap<u64, u64>,
    /// Whether it is the default log of a cluster with named logs, as a list beside it says.
    pub(super) has_list: bool,
    /// How many slices it has, and their size.
    pub(super) slices: (u64, u64),
    /// The records of all objects below this number are discarded; these objects may be deleted.
    begin: u64,
    /// Of a branch: which objects it reads from other logs.
    pub(super) branch: Option<Branch>,
    /// Why that cannot be read.
    pub(super) branch_fault: Option<(ErrorKind, String)>,
    /// Whether it is a branch that a server lists and does not serve: then the list has no size of it.
    is_listed_alone: bool,
}

/// Objects of another log that a branch reads, as they are shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    log_id: String,
    first_object: u64,
    last_object: u64,
}

impl Part {
    pub(super) fn words(&self) -> String {
        format!("objects {} to {} of log {}", self.first_object, self.last_object, self.log_id)
    }
}

impl Listed {
    pub(super) fn first(&self) -> Option<u64> {
        self.objects.first_key_value().map(|(number, _)| *number)
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.objects.last_key_value().map(|(number, _)| *number)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.objects.values().sum()
    }

    /// The number from which on all objects up to the last one have to be there.
    pub(super) fn needed_from(&self) -> u64 {
        let begin = self.begin.max(self.branch.as_ref().map_or(0, |branch| branch.own_from));
        match self.last() {
            Some(last) if begin <= last => begin,
            // The records of all of them are discarded.
            _ => self.last().map_or(0, |last| last + 1),
        }
    }

    /// Why nothing of it can be read here: it is a branch, which a server lists and does not serve.
    pub(super) fn refused(&self) -> Option<&str> {
        let fault = self.branch_fault.as_ref().filter(|_| self.is_listed_alone);
        fault.filter(|(kind, _)| *kind == ErrorKind::Unsupported).map(|(_, why)| &why[..])
    }

    fn is_branch(&self) -> bool {
        self.branch.is_some() || self.branch_fault.is_some()
    }

    /// The role of the log in its location, for people. Empty: a log on its own.
    fn role(&self) -> String {
        match self.branch.as_ref().map(|branch| branch.parts.last()) {
            Some(Some(part)) => format!("a branch of log {}", to_hex(part.log_id.get())),
            _ if self.is_branch() => "a branch".to_owned(),
            _ if self.has_list => "the default log of a cluster".to_owned(),
            _ => String::new(),
        }
    }

    /// How much of it is there, for people.
    fn size(&self) -> String {
        let objects = format::many(self.objects.len() as u64, "object", "objects");
        let slices = match self.slices.0 {
            0 => String::new(),
            n => format!(" and {}", format::many(n, "slice", "slices")),
        };
        format!("{objects}{slices}, {}", format::bytes(self.bytes() + self.slices.1))
    }

    /// The objects that a branch reads from other logs.
    pub(super) fn parts(&self) -> Vec<Part> {
        let parts = self.branch.iter().flat_map(|branch| &branch.parts);
        let shown = |part: &BranchPart| Part {
            log_id: to_hex(part.log_id.get()),
            first_object: part.first_object,
            last_object: part.last_object,
        };
        parts.map(shown).collect()
    }

    /// Whether only things are left that no command makes a log of, as of one that was removed while servers ran it.
    fn is_rest(&self) -> bool {
        *self == Self::default()
    }

    /// Whether all records of this object are discarded.
    pub(super) fn is_discarded(&self, number: u64) -> bool {
        number < self.begin
    }

    /// How many of the objects that have to be there are not.
    pub(super) fn missing(&self) -> u64 {
        let from = self.needed_from();
        let all = self.last().map_or(0, |last| last + 1 - from);
        all - self.objects.range(from..).count() as u64
    }
}

/// The logs of which anything is there, or only this one.
///
/// # Errors
/// Those of the object store.
pub(super) fn logs(vault: &dyn Vault, only: Option<LogId>) -> Result<BTreeMap<u128, Listed>> {
    let prefix = only.map_or(String::new(), |log| format!("{}/", to_hex(log.get())));
    let found = vault.list(&prefix).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(Vec::new()),
        _ => Err(error),
    })?;
    let mut logs: BTreeMap<u128, Listed> = BTreeMap::new();
    for object in found {
        let Some((log, rest)) = object.name.split_once('/') else { continue };
        let Ok(log) = from_hex(log) else { continue };
        // Also of a name that is not known here: nobody removes a log that no command finds.
        let listed = logs.entry(log).or_default();
        if rest == "root" {
            listed.has_root = true;
        } else if rest == "named" {
            listed.has_list = true;
        } else if let Some(number) = number_in("o/", rest) {
            listed.objects.insert(number, object.bytes);
        } else if rest.starts_with("s/") {
            listed.slices = (listed.slices.0 + 1, listed.slices.1 + object.bytes);
        } else if let Some(number) = number_in("begin/", rest) {
            listed.begin = listed.begin.max(number);
        } else if rest == "branch" {
            listed.is_listed_alone = object.bytes == 0;
            match Branch::of(vault, LogId(log)) {
                Ok(branch) => listed.branch = branch,
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    listed.branch_fault = Some((error.kind(), error.to_string()));
                }
                // The branch was removed after it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(logs)
}

/// The log that a command is about.
pub(super) struct Chosen {
    pub(super) log: LogId,
    /// Branches that are there and were not taken, for people. Empty: none, or the log was chosen by its id.
    pub(super) branches: Vec<String>,
}

/// The chosen log, or the only one in an object store that is no catalogue and no group of another one's named logs. For commands after
/// which something is kept, or can be deleted: where there are branches the log has to be chosen, because what goes on may be a branch.
///
/// # Errors
/// As [`only_log`]. `InvalidArgument`: also if there are branches.
pub(super) fn sole_log(vault: &dyn Vault, chosen: Option<LogId>) -> Result<LogId> {
    let Chosen { log, branches } = choose(vault, chosen)?;
    if branches.is_empty() {
        return Ok(log);
    }
    let what = format!(
        "a log and {} are there, and the command is for one of them: choose it by --log-id: {}, {}",
        format::many(branches.len() as u64, "branch", "branches"),
        to_hex(log.get()),
        branches.join(", ")
    );
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// The chosen log, or the only one in an object store that is no catalogue and no group of another one's named logs, and no branch. A
/// branch is taken only if it is chosen: commands that found the log before it had a branch find the same one, and say that there is a
/// branch.
///
/// # Errors
/// `NotFound`: there is none. `InvalidArgument`: there are several, or branches alone. Those of the object store.
pub(super) fn only_log(vault: &dyn Vault, chosen: Option<LogId>, ui: &Ui) -> Result<Chosen> {
    let found = choose(vault, chosen)?;
    if !found.branches.is_empty() {
        let (log, others) = (to_hex(found.log.get()), found.branches.join(", "));
        ui.warn(&format!("taking log {log}; --log-id chooses a branch instead: {others}"));
    }
    Ok(found)
}

fn choose(vault: &dyn Vault, chosen: Option<LogId>) -> Result<Chosen> {
    if let Some(log) = chosen {
        return Ok(Chosen { log, branches: Vec::new() });
    }
    let mut all = logs(vault, None)?;
    let mut parts = BTreeSet::new();
    for log in all.iter().filter(|(_, listed)| listed.has_list).map(|(log, _)| *log) {
        match ClusterLogs::find(vault, LogId(log)) {
            // Then its logs are several ones.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {}
            Err(error) => return Err(error),
            Ok(list) => parts.extend(
                list.iter().flat_map(|list| list.groups.values().chain([&list.catalogue])).map(|id| id.get()),
            ),
        }
    }
    all.retain(|log, listed| !parts.contains(log) && !listed.is_rest());
    let (branches, found): (Vec<_>, Vec<_>) = all.iter().partition(|(_, listed)| listed.is_branch());
    let shown = |(log, listed): &(&u128, &Listed)| match listed.role() {
        role if role.is_empty() => to_hex(**log),
        role => format!("{} ({role})", to_hex(**log)),
    };
    let branch_names: Vec<String> = branches.iter().map(shown).collect();
    match (&found[..], &branch_names[..]) {
        ([], []) => Err(Error::new(ErrorKind::NotFound, "no log has objects there")),
        ([(log, _)], _) => Ok(Chosen { log: LogId(**log), branches: branch_names }),
        ([], branches) => {
            let what = format!("only branches are there: choose one by --log-id: {}", branches.join(", "));
            Err(Error::new(ErrorKind::InvalidArgument, what))
        }
        (found, _) => {
            let of_size = |(log, listed): &(&u128, &Listed)| match listed.role() {
                role if role.is_empty() => format!("{} ({})", to_hex(**log), listed.size()),
                role => format!("{} ({role}: {})", to_hex(**log), listed.size()),
            };
            let names: Vec<String> = found.iter().map(of_size).chain(branch_names.iter().cloned()).collect();
            let branches = match branch_names.len() as u64 {
                0 => String::new(),
                n => format!(" and {}", format::many(n, "branch", "branches")),
            };
            let what = format!(
                "{} logs{branches} are there: choose one by --log-id: {}",
                found.len(),
                names.join(", ")
            );
            Err(Error::new(ErrorKind::InvalidArgument, what))
        }
    }
}

/// The number in a name such as `o/00000000000000000007`. None: it is something else.
fn number_in(folder: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(folder)?;
    let is_number = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|number| is_number && *number < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::internal::{begin_name, object_name, root_name};
    use chiplog::vault::MemoryVault;

    #[test]
    fn logs_are_found_by_their_names() {
        let vault = MemoryVault::default();
        let put = |name: &str, bytes: &'static [u8]| vault.put(name, &[bytes.into()]).unwrap();
        put(&root_name(LogId(7)), b"x");
        put(&object_name(LogId(7), 3), b"four");
        put(&object_name(LogId(7), 5), b"five5");
        put(&root_name(LogId(9)), b"x");
        put(&format!("{}/s/{:020}.{:020}.{:020}", to_hex(9), 1, 2, 3), b"abc");
        for other in ["readme", "00000000000000000000000000000007/o/12", "7/root"] {
            put(other, b"x");
        }
        let all = logs(&vault, None).unwrap();
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), [7, 9]);
        let seven = &all[&7];
        // Nothing says that the first three were discarded.
        assert_eq!((seven.first(), seven.last(), seven.bytes(), seven.missing()), (Some(3), Some(5), 9, 4));
        for (begin, missing) in [(3, 1), (4, 1), (5, 0), (6, 0)] {
            put(&begin_name(LogId(7), begin), b"x");
            assert_eq!(logs(&vault, None).unwrap()[&7].missing(), missing, "from {begin}");
        }
        assert!(all.values().all(|log| log.has_root));
        assert_eq!((all[&9].first(), all[&9].missing(), all[&9].slices), (None, 0, (1, 3)));
        assert_eq!(seven.slices, (0, 0));
        assert_eq!(logs(&vault, Some(LogId(9))).unwrap().len(), 1);
        let told = sole_log(&vault, None).unwrap_err().to_string();
        let shown = format!("{} (2 objects, 9 B), {} (0 objects and 1 slice, 3 B)", to_hex(7), to_hex(9));
        assert!(told.ends_with(&shown), "{told}");
        assert!(logs(&vault, Some(LogId(8))).unwrap().is_empty());
        // The rest of a log that was removed while servers ran it is found, and is no log to choose.
        for (log, rest) in [(10, "p/0.1"), (11, "pin/a"), (12, "set/a"), (13, "later")] {
            put(&format!("{}/{rest}", to_hex(log)), b"x");
            assert!(logs(&vault, None).unwrap()[&log].is_rest(), "{rest}");
        }
        for object in vault.list(&format!("{}/", to_hex(9))).unwrap() {
            vault.delete(&object.name).unwrap();
        }
        assert_eq!(sole_log(&vault, None).unwrap(), LogId(7));
    }
}
