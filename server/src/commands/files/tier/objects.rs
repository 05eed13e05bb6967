//! The logs of an object store and their objects, by their names.
//!
//! Must not know: how anything is shown.

use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, LogId, Result};
use chiplog_net::wire::ids::{from_hex, to_hex};
use std::collections::BTreeMap;

/// The objects of a log: size by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Whether the object that says which log this is exists.
    pub(super) has_root: bool,
    pub(super) objects: BTreeMap<u64, u64>,
    /// How many slices it has, and their size.
    pub(super) slices: (u64, u64),
    /// The records of all objects below this number are discarded; these objects may be deleted.
    begin: u64,
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
        match self.last() {
            Some(last) if self.begin <= last => self.begin,
            // The records of all of them are discarded.
            _ => self.last().map_or(0, |last| last + 1),
        }
    }

    /// How many of the objects that have to be there are not.
    pub(super) fn missing(&self) -> u64 {
        let from = self.needed_from();
        let all = self.last().map_or(0, |last| last + 1 - from);
        all - self.objects.range(from..).count() as u64
    }
}

/// The logs that have objects, or only this one.
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
        if rest == "root" {
            logs.entry(log).or_default().has_root = true;
        } else if let Some(number) = number_in("o/", rest) {
            logs.entry(log).or_default().objects.insert(number, object.bytes);
        } else if rest.starts_with("s/") {
            let listed = logs.entry(log).or_default();
            listed.slices = (listed.slices.0 + 1, listed.slices.1 + object.bytes);
        } else if let Some(number) = number_in("begin/", rest) {
            let listed = logs.entry(log).or_default();
            listed.begin = listed.begin.max(number);
        }
    }
    Ok(logs)
}

/// The chosen log, or the only one in an object store.
///
/// # Errors
/// `NotFound`: there is none. `InvalidArgument`: there are several. Those of the object store.
pub(super) fn only_log(vault: &dyn Vault, chosen: Option<LogId>) -> Result<LogId> {
    if let Some(log) = chosen {
        return Ok(log);
    }
    let found: Vec<u128> = logs(vault, None)?.into_keys().collect();
    match found[..] {
        [] => Err(Error::new(ErrorKind::NotFound, "no log has objects there")),
        [log] => Ok(LogId(log)),
        _ => {
            let ids: Vec<String> = found.iter().map(|log| to_hex(*log)).collect();
            let what =
                format!("{} logs have objects there: choose one by --log-id: {}", ids.len(), ids.join(", "));
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

/// The name of an object.
pub(super) fn object_name(log: u128, number: u64) -> String {
    format!("{}/o/{number:020}", to_hex(log))
}

/// The name and the contents of the object that says which log this is.
pub(super) fn root(log: u128) -> (String, String) {
    let id = to_hex(log);
    (format!("{id}/root"), format!("chiplog objects\nformat 1\nlog {id}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::vault::MemoryVault;

    #[test]
    fn logs_are_found_by_their_names() {
        let vault = MemoryVault::default();
        let put = |name: &str, bytes: &'static [u8]| vault.put(name, &[bytes.into()]).unwrap();
        put(&root(7).0, b"x");
        put(&object_name(7, 3), b"four");
        put(&object_name(7, 5), b"five5");
        put(&root(9).0, b"x");
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
            put(&format!("{}/begin/{begin:020}", to_hex(7)), b"x");
            assert_eq!(logs(&vault, None).unwrap()[&7].missing(), missing, "from {begin}");
        }
        assert!(all.values().all(|log| log.has_root));
        assert_eq!((all[&9].first(), all[&9].missing(), all[&9].slices), (None, 0, (1, 3)));
        assert_eq!(seven.slices, (0, 0));
        assert_eq!(logs(&vault, Some(LogId(9))).unwrap().len(), 1);
        assert!(logs(&vault, Some(LogId(8))).unwrap().is_empty());
    }
}
