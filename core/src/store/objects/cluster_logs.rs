//! Cluster's logs: a small object in the folder of a cluster's default log. It says which logs are the catalogue of its named logs
//! and their groups, so that all of them are found by the default log's id.
//!
//! ```text
//! <log id>/named           chiplog named logs
//!                          format 1
//!                          log <log id>
//!                          catalogue <log id>
//!                          group <number> <log id>        a line each, by number
//!                          sum <CRC-32C of all before this line, 8 hexadecimal digits>
//! ```
//!
//! It is replaced when there are more groups. Invariants:
//! - each list of logs has one text. Any other text is no such list;
//! - it only grows: nothing here removes a group, or replaces the catalogue. It may be all that leads to logs whose servers are lost.
//!
//! Must not know: who writes it, what the logs have.

use super::names::{not_there, root_name};
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::Crc;
use crate::types::LogId;
use crate::vault::Vault;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// The names of a cluster's logs in messages and in backups: of the default log and of the catalogue. In a backup, the default log is in
/// a folder of this name.
pub(crate) const DEFAULT_PART: &str = "default";
pub(crate) const CATALOGUE_PART: &str = "system";

const TITLE: &str = "chiplog named logs\n";
const FORMAT: u32 = 1;
/// How often it is read again because it was replaced meanwhile.
const LOOKS_MAX: u32 = 5;

/// The logs of a cluster of servers, by their ids: the default log, and those that have its named logs. An object store has the list
/// beside the default log's objects.
///
/// ```
/// use chiplog::LogId;
/// use chiplog::backup::ClusterLogs;
/// let vault = chiplog::vault::MemoryVault::default();
/// assert_eq!(ClusterLogs::find(&vault, LogId(7))?, None);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterLogs {
    /// The default log.
    pub log_id: LogId,
    /// The catalogue of the named logs.
    pub catalogue: LogId,
    /// The groups of named logs, by number.
    pub groups: BTreeMap<u32, LogId>,
}

impl ClusterLogs {
    /// A list of these logs.
    pub fn new(log_id: LogId, catalogue: LogId, groups: BTreeMap<u32, LogId>) -> Self {
        Self { log_id, catalogue, groups }
    }

    /// The logs, each with its name in messages and in [`ClusterPart`](crate::backup::ClusterPart): the groups (`group-1` and so on),
    /// the catalogue (`system`), then the default log (`default`).
    pub fn parts(&self) -> Vec<(String, LogId)> {
        let groups = self.groups.iter().map(|(number, id)| (group_part(*number), *id));
        let others = [(CATALOGUE_PART, self.catalogue), (DEFAULT_PART, self.log_id)];
        groups.chain(others.map(|(name, id)| (name.to_owned(), id))).collect()
    }

    /// The list in an object store; None: there is none for this default log. Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged. `Unsupported`: it is of a newer format. Those of [`Vault`].
    pub fn find(vault: &dyn Vault, log: LogId) -> Result<Option<Self>> {
        let name = name(log);
        for _ in 0..LOOKS_MAX {
            let Some(bytes) = vault.size(&name)? else { return Ok(None) };
            let text = match vault.get(&name, 0..bytes) {
                // It was replaced by a shorter one, or removed.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange) => continue,
                text => text?,
            };
            match Self::parse(log, &text) {
                None if vault.size(&name)? != Some(bytes) => {}
                None => return Err(no_list(&name, &text)),
                found => return Ok(found),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{name} is replaced all the time: try again")))
    }

    /// Stores the list, unless the object store has it, with groups that it does not have. Returns whether it had to. Blocks for the
    /// network.
    ///
    /// # Errors
    /// `Diverged`: the object store has the list of other logs: of another catalogue, or with another group of a number. `Corrupt`: that
    /// list is damaged. The operator has to repair it: it may be all that leads to the objects of lost servers.
    /// `Unavailable`: the object store has no object `root` of the default log, so it may be another one. `Unsupported`: there
    /// is a list of a newer format. Those of [`Vault`].
    pub fn store(&self, vault: &dyn Vault) -> Result<bool> {
        let mut all = self.clone();
        match Self::find(vault, self.log_id) {
            Ok(Some(there)) if self.is_in(&there)? => return Ok(false),
            Ok(there) => all.groups.extend(there.into_iter().flat_map(|there| there.groups)),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let what = format!(
                    "{error}. Remove it if these servers have all their logs: then it is stored again"
                );
                return Err(Error::with_source(ErrorKind::Corrupt, what, &error));
            }
            Err(error) => return Err(error),
        }
        let root = root_name(self.log_id);
        if vault.size(&root)?.is_none() {
            return Err(Error::new(ErrorKind::Unavailable, not_there(&root)));
        }
        // Between the look and this, another leader can have stored a list with more groups. It stores that one again.
        vault.put(&name(self.log_id), &[all.text()])?;
        Ok(true)
    }

    /// Whether another list has all of these logs.
    ///
    /// # Errors
    /// `Diverged`: it is of another cluster.
    fn is_in(&self, there: &Self) -> Result<bool> {
        let is_other = |(group, id): (&u32, &LogId)| self.groups.get(group).is_some_and(|own| own != id);
        if there.catalogue != self.catalogue || there.groups.iter().any(is_other) {
            let what = format!(
                "{} is the list of another cluster's logs, with catalogue {:032x}, and this one has {:032x}. Both have the same \
                 default log, which was restored with its old id. Give this cluster another location. If the other one is not needed any \
                 more, remove this object",
                name(self.log_id),
                there.catalogue.0,
                self.catalogue.0
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
        Ok(self.groups.keys().all(|group| there.groups.contains_key(group)))
    }

    fn text(&self) -> Bytes {
        let mut text = format!(
            "{TITLE}format {FORMAT}\nlog {:032x}\ncatalogue {:032x}\n",
            self.log_id.0, self.catalogue.0
        );
        for (group, id) in &self.groups {
            text += &format!("group {group} {:032x}\n", id.0);
        }
        let sum = Crc::new().add(text.as_bytes()).sum();
        format!("{text}sum {sum:08x}\n").into()
    }

    /// The reverse of [`Self::text`].
    fn parse(log: LogId, bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let rest = text.strip_prefix(&format!("{TITLE}format {FORMAT}\nlog {:032x}\n", log.0))?;
        let mut lines = rest.lines();
        let id = |text: &str| u128::from_str_radix(text, 16).ok().map(LogId);
        let catalogue = id(lines.next()?.strip_prefix("catalogue ")?)?;
        let mut groups = BTreeMap::new();
        for line in lines.take_while(|line| !line.starts_with("sum ")) {
            let (number, group) = line.strip_prefix("group ")?.split_once(' ')?;
            groups.insert(number.parse().ok().filter(|number| *number > 0)?, id(group)?);
        }
        let parsed = Self { log_id: log, catalogue, groups };
        (parsed.text() == bytes).then_some(parsed)
    }
}

/// The name of a group in messages and in backups.
pub(crate) fn group_part(group: u32) -> String {
    format!("group-{group}")
}

/// The name of the object.
pub(crate) fn name(log: LogId) -> String {
    format!("{:032x}/named", log.0)
}

fn no_list(name: &str, text: &[u8]) -> Error {
    let format = std::str::from_utf8(text).ok().and_then(|text| {
        let format = text.strip_prefix(TITLE)?.strip_prefix("format ")?;
        format.lines().next()?.parse::<u32>().ok()
    });
    match format.filter(|format| *format > FORMAT) {
        Some(format) => {
            let what = format!(
                "{name} is of format {format}, and this program reads format {FORMAT}: use a newer chiplog"
            );
            Error::new(ErrorKind::Unsupported, what)
        }
        None => Error::corrupt(Path::new(name), 0, "it is no list of a cluster's logs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::objects::names::root_text;
    use crate::vault::MemoryVault;

    fn logs(groups: u32) -> ClusterLogs {
        let groups = (1..=groups).map(|group| (group, LogId(100 + u128::from(group)))).collect();
        ClusterLogs::new(LogId(7), LogId(8), groups)
    }

    #[test]
    fn every_other_text_is_refused() {
        for count in [0, 1, 12] {
            let (logs, text) = (logs(count), logs(count).text());
            assert_eq!(ClusterLogs::parse(LogId(7), &text), Some(logs));
            assert_eq!(ClusterLogs::parse(LogId(6), &text), None);
            for bit in 0..text.len() * 8 {
                let mut bad = text.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(ClusterLogs::parse(LogId(7), &bad), None, "bit {bit}");
            }
            assert!((0..text.len()).all(|cut| ClusterLogs::parse(LogId(7), &text[..cut]).is_none()));
        }
    }

    #[test]
    fn list_is_stored_beside_its_log_and_only_grows() {
        let vault = MemoryVault::default();
        let missing = logs(1).store(&vault).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Unavailable, "{missing}");
        vault.create(&root_name(LogId(7)), root_text(LogId(7)).into()).unwrap();
        assert!(logs(1).store(&vault).unwrap());
        assert!(!logs(1).store(&vault).unwrap());
        assert!(logs(2).store(&vault).unwrap());
        assert_eq!(ClusterLogs::find(&vault, LogId(7)).unwrap(), Some(logs(2)));
        vault.put(&name(LogId(7)), &[Bytes::from_static(b"x")]).unwrap();
        assert_eq!(ClusterLogs::find(&vault, LogId(7)).unwrap_err().kind(), ErrorKind::Corrupt);
        // It could be all that leads to other logs.
        let damaged = logs(2).store(&vault).unwrap_err();
        assert!(
            damaged.kind() == ErrorKind::Corrupt && damaged.to_string().contains("Remove it"),
            "{damaged}"
        );
        vault.delete(&name(LogId(7))).unwrap();
        assert!(logs(2).store(&vault).unwrap());
        assert!(!logs(1).store(&vault).unwrap(), "a leader that lags removes no group");
        let third = ClusterLogs::new(LogId(7), LogId(8), [(3, LogId(103))].into());
        assert!(third.store(&vault).unwrap());
        assert_eq!(ClusterLogs::find(&vault, LogId(7)).unwrap(), Some(logs(3)));
        let (other_catalogue, other_group) = (
            ClusterLogs::new(LogId(7), LogId(9), BTreeMap::new()),
            ClusterLogs::new(LogId(7), LogId(8), [(1, LogId(200)), (4, LogId(104))].into()),
        );
        for other in [other_catalogue, other_group] {
            let error = other.store(&vault).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Diverged, "{error}");
            assert_eq!(ClusterLogs::find(&vault, LogId(7)).unwrap(), Some(logs(3)));
        }
        let newer = format!("{TITLE}format 2\nanything\n");
        vault.put(&name(LogId(7)), &[newer.into()]).unwrap();
        assert_eq!(logs(2).store(&vault).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
