//! The logs of an object store and their objects, by their names.
//!
//! Must not know: how anything is shown.

use chiplog::vault::Vault;
use chiplog::{ErrorKind, LogId, Result};
use chiplog_net::wire::ids::{from_hex, to_hex};
use std::collections::BTreeMap;

/// The objects of a log: size by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Whether the object that says which log this is exists.
    pub(super) has_root: bool,
    pub(super) objects: BTreeMap<u64, u64>,
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

    /// How many numbers between the first and the last one have no object.
    pub(super) fn missing(&self) -> u64 {
        let all = self.first().zip(self.last()).map_or(0, |(first, last)| last - first + 1);
        all - self.objects.len() as u64
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
        } else if let Some(number) = number(rest) {
            logs.entry(log).or_default().objects.insert(number, object.bytes);
        }
    }
    Ok(logs)
}

/// The number of the object `o/00000000000000000007`. None: it is something else.
fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("o/")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
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
        for other in ["readme", "00000000000000000000000000000007/o/12", "7/root"] {
            put(other, b"x");
        }
        let all = logs(&vault, None).unwrap();
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), [7, 9]);
        let seven = &all[&7];
        assert_eq!((seven.first(), seven.last(), seven.bytes(), seven.missing()), (Some(3), Some(5), 9, 1));
        assert!(all.values().all(|log| log.has_root));
        assert_eq!((all[&9].first(), all[&9].missing()), (None, 0));
        assert_eq!(logs(&vault, Some(LogId(9))).unwrap().len(), 1);
        assert!(logs(&vault, Some(LogId(8))).unwrap().is_empty());
    }
}
