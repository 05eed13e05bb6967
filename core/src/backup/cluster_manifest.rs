//! Cluster's manifest: the file `chiplog.cluster` of a backup of a cluster's logs. It lists the logs, and which of them the backup
//! has. Values and text.
//!
//! ```text
//! chiplog cluster
//! format 1
//! default 0123456789abcdef0123456789abcdef
//! catalogue 123456789abcdef0123456789abcdef0
//! group 1 23456789abcdef0123456789abcdef01
//! group 2 3456789abcdef0123456789abcdef012 nothing
//! note group-2: nothing of it is stored: it comes back empty
//! checksum deadbeef
//! ```
//!
//! `nothing`: the backup has nothing of this log. ` lost` in its place: nor has the object store, which had it; then the format is 2, and
//! else 1. Notes are for people: what is missing, and why. The last line is the CRC-32C of all bytes before it. A later format has another
//! number in its second line.
//!
//! Invariant: [`ClusterManifest::parse`] accepts exactly the output of [`ClusterManifest::encode`], byte for byte.
//!
//! Must not know: files.

use super::manifest::ManifestFault;
use crate::record::crc::crc32c;
use crate::types::LogId;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The newest version of the format that this code writes and reads. Version 1 has no log that is lost.
pub(super) const CLUSTER_FORMAT: u32 = 2;
const TITLE: &str = "chiplog cluster";
const NOTHING: &str = " nothing";
const LOST: &str = " lost";

/// A log of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestLog {
    pub(super) id: LogId,
    pub(super) has: Has,
}

/// The part of a log that is in the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Backup,
    Nothing,
    /// Nothing, because all that the object store had of it is gone.
    Lost,
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterManifest {
    pub(super) default: ManifestLog,
    pub(super) catalogue: ManifestLog,
    pub(super) groups: BTreeMap<u32, ManifestLog>,
    /// For people: what is missing, and why. A line each.
    pub(super) notes: Vec<String>,
}

impl ManifestLog {
    fn text(self) -> String {
        let suffix = match self.has {
            Has::Backup => "",
            Has::Nothing => NOTHING,
            Has::Lost => LOST,
        };
        format!("{:032x}{suffix}", self.id.0)
    }

    fn parse(text: &str) -> Option<Self> {
        let suffixes = [(NOTHING, Has::Nothing), (LOST, Has::Lost)];
        let found = suffixes.iter().find_map(|(suffix, has)| Some((text.strip_suffix(suffix)?, *has)));
        let (id, has) = found.unwrap_or((text, Has::Backup));
        Some(Self { id: LogId(u128::from_str_radix(id, 16).ok()?), has })
    }
}

impl ClusterManifest {
    /// Whether all that the object store had of one of the logs is gone.
    pub(super) fn has_lost(&self) -> bool {
        self.groups.values().chain([&self.default, &self.catalogue]).any(|log| log.has == Has::Lost)
    }

    pub(super) fn encode(&self) -> String {
        let format = if self.has_lost() { 2 } else { 1 };
        let mut text = format!("{TITLE}\nformat {format}\n");
        let _ = writeln!(text, "default {}\ncatalogue {}", self.default.text(), self.catalogue.text());
        for (number, group) in &self.groups {
            let _ = writeln!(text, "group {number} {}", group.text());
        }
        for note in &self.notes {
            let _ = writeln!(text, "note {}", note.replace(['\n', '\r'], " "));
        }
        let crc = crc32c(text.as_bytes());
        let _ = writeln!(text, "checksum {crc:08x}");
        text
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ManifestFault> {
        let damaged = ManifestFault::Damaged;
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8 text"))?;
        let rest = text.strip_prefix(&format!("{TITLE}\nformat "));
        let (format, rest) = rest
            .and_then(|rest| rest.split_once('\n'))
            .ok_or(damaged("its first lines are not those of a cluster's manifest"))?;
        match format.parse::<u32>() {
            Ok(1..=CLUSTER_FORMAT) => {}
            Ok(newer) if newer > CLUSTER_FORMAT => return Err(ManifestFault::Newer(newer)),
            _ => return Err(damaged("its format line is malformed")),
        }
        let parsed = Self::parse_lines(rest).ok_or(damaged("a line is missing or malformed"))?;
        // A manifest is accepted only if it would be written the same way; that includes the format and the checksum.
        if parsed.encode() != text {
            return Err(damaged("its checksum does not match"));
        }
        Ok(parsed)
    }

    /// Parses the lines after the format.
    fn parse_lines(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let default = ManifestLog::parse(lines.next()?.strip_prefix("default ")?)?;
        let catalogue = ManifestLog::parse(lines.next()?.strip_prefix("catalogue ")?)?;
        let (mut groups, mut notes) = (BTreeMap::new(), Vec::new());
        for line in lines.take_while(|line| !line.starts_with("checksum ")) {
            if let Some(note) = line.strip_prefix("note ") {
                notes.push(note.to_owned());
                continue;
            }
            let (number, group) = line.strip_prefix("group ")?.split_once(' ')?;
            groups.insert(number.parse().ok().filter(|number| *number > 0)?, ManifestLog::parse(group)?);
        }
        Some(Self { default, catalogue, groups, notes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_is_parsed_and_every_flipped_bit_and_truncation_is_detected() {
        let log = |id, has| ManifestLog { id: LogId(id), has };
        let notes = vec!["system: slice 3 is damaged".to_owned(), String::new()];
        for (format, other, has) in [(1, 2, Has::Nothing), (2, 1, Has::Lost)] {
            let groups = [(1, log(3, Has::Backup)), (12, log(4, has))].into_iter().collect();
            let (default, catalogue) = (log(1, Has::Nothing), log(2, Has::Backup));
            let manifest = ClusterManifest { default, catalogue, groups, notes: notes.clone() };
            let text = manifest.encode();
            assert_eq!(ClusterManifest::parse(text.as_bytes()), Ok(manifest));
            for bit in 0..text.len() * 8 {
                let mut bad = text.clone().into_bytes();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(ClusterManifest::parse(&bad).is_err(), "bit {bit}");
            }
            for cut in 0..text.len() {
                assert!(ClusterManifest::parse(&text.as_bytes()[..cut]).is_err(), "truncated at {cut}");
            }
            let of = |wanted: u32| {
                let (body, _) = text.split_once("checksum ").unwrap();
                let body = body.replace(&format!("format {format}\n"), &format!("format {wanted}\n"));
                format!("{body}checksum {:08x}\n", crc32c(body.as_bytes()))
            };
            assert!(matches!(ClusterManifest::parse(of(other).as_bytes()), Err(ManifestFault::Damaged(_))));
            assert_eq!(ClusterManifest::parse(of(3).as_bytes()), Err(ManifestFault::Newer(3)));
        }
    }
}
