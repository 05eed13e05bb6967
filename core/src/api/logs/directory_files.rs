//! Directory files: the two text files that tie further directories of groups to the directory of named logs. Values and
//! bytes.
//!
//! `chiplog.directories`, in the directory of named logs, lists the further directories that hold groups, and where each of
//! these groups is. The first id is that of the directory of named logs.
//!
//! ```text
//! chiplog directories
//! format 1
//! logs 0123456789abcdef0123456789abcdef
//! directory fedcba9876543210fedcba9876543210 /mnt/disk-1/chiplog
//! group 1 fedcba9876543210fedcba9876543210
//! checksum deadbeef
//! ```
//!
//! `chiplog.groups` is the marker in a further directory. It repeats both ids:
//!
//! ```text
//! chiplog groups
//! format 1
//! logs 0123456789abcdef0123456789abcdef
//! directory fedcba9876543210fedcba9876543210
//! checksum deadbeef
//! ```
//!
//! The last line is the CRC-32C of all bytes before it. Directories are in the order of their ids, groups in the order of
//! their numbers.
//!
//! Invariants:
//! - `parse` accepts exactly the output of `encode`, byte for byte.
//! - Each directory of the list has a group, and each group a directory.
//!
//! Must not know: files.

use crate::record::crc::crc32c;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::{FromStr, Lines};

/// The version of both files that this code writes and reads.
const FORMAT: u32 = 1;

/// The permanent id of a directory of named logs that has further directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogsId(pub(super) u128);

/// The permanent id of a further directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MarkId(pub(super) u128);

/// The contents of `chiplog.directories`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DirectoryList {
    pub(super) logs: LogsId,
    /// The path of each further directory when it was last used.
    pub(super) directories: BTreeMap<MarkId, PathBuf>,
    /// The further directory of each group that is in one.
    pub(super) groups: BTreeMap<u32, MarkId>,
}

/// The contents of `chiplog.groups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) logs: LogsId,
    pub(super) directory: MarkId,
}

impl DirectoryList {
    const TITLE: &str = "chiplog directories";

    /// A list without directories.
    pub(super) fn new(logs: LogsId) -> Self {
        Self { logs, directories: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// The list with this group in another directory; `None`: in no further one. Directories without groups go.
    pub(super) fn with_group(&self, group: u32, directory: Option<(MarkId, &Path)>) -> Self {
        let mut list = self.clone();
        list.groups.remove(&group);
        if let Some((mark, path)) = directory {
            list.groups.insert(group, mark);
            list.directories.insert(mark, path.to_owned());
        }
        let used: BTreeSet<MarkId> = list.groups.values().copied().collect();
        list.directories.retain(|mark, _| used.contains(mark));
        list
    }

    /// The directory that had this path when it was last used.
    pub(super) fn at(&self, path: &Path) -> Option<MarkId> {
        self.directories.iter().find(|(_, used)| *used == path).map(|(mark, _)| *mark)
    }

    /// The numbers of the groups in a directory.
    pub(super) fn groups_in(&self, directory: MarkId) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().filter(move |(_, mark)| **mark == directory).map(|(group, _)| *group)
    }

    pub(super) fn encode(&self) -> String {
        let mut text = format!("{}\nformat {FORMAT}\nlogs {:032x}\n", Self::TITLE, self.logs.0);
        for (mark, path) in &self.directories {
            let _ = writeln!(text, "directory {:032x} {}", mark.0, path.display());
        }
        for (group, mark) in &self.groups {
            let _ = writeln!(text, "group {group} {:032x}", mark.0);
        }
        sealed(text)
    }

    /// # Errors
    /// The reason why these bytes are not such a list.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        parse(bytes, Self::TITLE, Self::parse_lines, Self::encode)
    }

    fn parse_lines(lines: Lines<'_>) -> Option<Self> {
        let mut lines = lines.peekable();
        let mut list = Self::new(LogsId(id(lines.next()?.strip_prefix("logs ")?)?));
        while let Some(line) = lines.next_if(|line| line.starts_with("directory ")) {
            let (mark, path) = line.strip_prefix("directory ")?.split_once(' ')?;
            list.directories.insert(MarkId(id(mark)?), PathBuf::from(path));
        }
        while let Some(line) = lines.next_if(|line| line.starts_with("group ")) {
            let (group, mark) = line.strip_prefix("group ")?.split_once(' ')?;
            list.groups.insert(u32::from_str(group).ok()?, MarkId(id(mark)?));
        }
        list.groups.values().all(|mark| list.directories.contains_key(mark)).then_some(list)
    }
}

impl Marker {
    const TITLE: &str = "chiplog groups";

    pub(super) fn encode(&self) -> String {
        let Self { logs, directory } = self;
        sealed(format!(
            "{}\nformat {FORMAT}\nlogs {:032x}\ndirectory {:032x}\n",
            Self::TITLE,
            logs.0,
            directory.0
        ))
    }

    /// # Errors
    /// The reason why these bytes are no marker.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        parse(bytes, Self::TITLE, Self::parse_lines, Self::encode)
    }

    fn parse_lines(mut lines: Lines<'_>) -> Option<Self> {
        let logs = LogsId(id(lines.next()?.strip_prefix("logs ")?)?);
        Some(Self { logs, directory: MarkId(id(lines.next()?.strip_prefix("directory ")?)?) })
    }
}

/// Adds the line with the checksum.
fn sealed(mut text: String) -> String {
    let crc = crc32c(text.as_bytes());
    let _ = writeln!(text, "checksum {crc:08x}");
    text
}

fn parse<T>(
    bytes: &[u8],
    title: &str,
    parse_lines: impl Fn(Lines<'_>) -> Option<T>,
    encode: impl Fn(&T) -> String,
) -> Result<T, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text")?;
    let mut lines = text.lines();
    if lines.next() != Some(title) {
        return Err("its first line is another one");
    }
    match lines.next().and_then(|line| line.strip_prefix("format ")).map(u32::from_str) {
        Some(Ok(FORMAT)) => {}
        Some(Ok(newer)) if newer > FORMAT => return Err("it is of a later chiplog: use that one"),
        _ => return Err("its format line is malformed"),
    }
    let parsed = parse_lines(lines).ok_or("a line is missing or malformed")?;
    // Accepted only if it would be written the same way; that includes the checksum.
    if encode(&parsed) == text { Ok(parsed) } else { Err("its checksum does not match") }
}

fn id(text: &str) -> Option<u128> {
    u128::from_str_radix(text, 16).ok()
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn list() -> DirectoryList {
        let empty = DirectoryList::new(LogsId(1));
        let one = empty.with_group(3, Some((MarkId(7), Path::new("/mnt/a disk"))));
        one.with_group(1, Some((MarkId(2), Path::new("/mnt/b"))))
    }

    #[test]
    fn files_are_read_as_written() {
        let text = list().encode();
        assert_eq!(DirectoryList::parse(text.as_bytes()), Ok(list()), "{text}");
        let marker = Marker { logs: LogsId(u128::MAX), directory: MarkId(5) };
        assert_eq!(Marker::parse(marker.encode().as_bytes()), Ok(marker));
        assert!(Marker::parse(text.as_bytes()).is_err());
    }

    #[test]
    fn any_changed_or_missing_byte_is_found() {
        let text = list().encode();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(DirectoryList::parse(&bytes).is_err(), "{at}");
            assert!(DirectoryList::parse(&text.as_bytes()[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn directory_goes_with_its_last_group() {
        let list = list().with_group(3, None);
        assert_eq!((list.directories.len(), list.at(Path::new("/mnt/a disk"))), (1, None));
        assert_eq!(list.groups_in(MarkId(2)).collect::<Vec<_>>(), [1]);
    }
}
