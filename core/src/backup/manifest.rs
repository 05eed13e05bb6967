//! Manifest: the file `chiplog.backup` of a backup. It lists the files with their sizes and checksums, and the
//! positions of the log in them. It is text, so that people and scripts can read it. Values and bytes.
//!
//! ```text
//! chiplog backup
//! format 1
//! log 0123456789abcdef0123456789abcdef
//! first 1
//! last 1000
//! entry 1012
//! last-time 1767225600000
//! made 1767225612345
//! file 512 1a2b3c4d chiplog.id
//! file 67108864 89abcdef 00000000000000000001.seg
//! checksum deadbeef
//! ```
//!
//! One `name value` per line, in this order. The last line is the CRC-32C of all bytes before it. A later format has
//! another number in its second line; the other lines are then not read.
//!
//! A backup about which there is something to say, because it was made of an object store that lacks a part of the log, is of format 2:
//! it has `ends-early 0` or `ends-early 1` behind `made`, and lines `note TEXT` behind the files. All others are of format 1, which
//! earlier versions read.
//!
//! Invariants:
//! - [`Manifest::parse`] accepts exactly the output of [`Manifest::encode`], byte for byte;
//! - a log that ends early has a note.
//!
//! Must not know: files.

use crate::record::crc::crc32c;
use crate::types::{EntryIndex, Index, LogId, Timestamp};
use std::fmt::Write as _;
use std::str::{FromStr, Lines};

/// The version of the format without notes, and that with notes, which is the latest one that this code reads.
const PLAIN_FORMAT: u32 = 1;
pub(crate) const MANIFEST_FORMAT: u32 = 2;
const TITLE: &str = "chiplog backup";

/// The contents of a backup. Positions are those of the log when it was backed up.
///
/// ```
/// # fn show(info: &chiplog::backup::BackupInfo) {
/// println!("log {}: records {} to {} in {} bytes", info.log_id, info.first, info.last, info.bytes);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// The log that was backed up.
    pub log_id: LogId,
    /// Its first record; in a log without records, the next one to come.
    pub first: Index,
    /// Its last record; in a log without records `first - 1`.
    pub last: Index,
    /// Its last entry.
    pub last_entry: EntryIndex,
    /// The time when that entry was written, in milliseconds since 1970.
    pub last_timestamp: Timestamp,
    /// The time when the backup was finished, by the clock of the machine that made it.
    pub made: Timestamp,
    /// The number of files, without the manifest.
    pub files: u64,
    /// The length of these files together, in bytes.
    pub bytes: u64,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// CRC-32C of all its bytes.
    pub(crate) crc: u32,
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) info: BackupInfo,
    pub(crate) files: Vec<ManifestFile>,
    /// Whether the log ends before entries that were, or are, in the object store of which it was made.
    pub(crate) ends_early: bool,
    /// For people: what is missing, and why. A line each.
    pub(crate) notes: Vec<String>,
}

/// Why a manifest cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestFault {
    /// It has this later format.
    Newer(u32),
    /// It is not the output of [`Manifest::encode`].
    Damaged(&'static str),
}

impl Manifest {
    pub(crate) fn encode(&self) -> String {
        let BackupInfo { log_id, first, last, last_entry, last_timestamp, made, .. } = self.info;
        debug_assert!(!self.ends_early || !self.notes.is_empty(), "nothing says why the log ends early");
        let format = if self.notes.is_empty() { PLAIN_FORMAT } else { MANIFEST_FORMAT };
        let mut text = format!("{TITLE}\nformat {format}\nlog {:032x}\n", log_id.0);
        let numbers = [
            ("first", first.0),
            ("last", last.0),
            ("entry", last_entry.0),
            ("last-time", last_timestamp.0),
            ("made", made.0),
        ];
        for (name, number) in numbers {
            let _ = writeln!(text, "{name} {number}");
        }
        if format == MANIFEST_FORMAT {
            let _ = writeln!(text, "ends-early {}", u8::from(self.ends_early));
        }
        for ManifestFile { name, bytes, crc } in &self.files {
            let _ = writeln!(text, "file {bytes} {crc:08x} {name}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note {note}");
        }
        let crc = crc32c(text.as_bytes());
        let _ = writeln!(text, "checksum {crc:08x}");
        text
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ManifestFault> {
        let damaged = ManifestFault::Damaged;
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8 text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(damaged("its first line is not that of a backup's manifest"));
        }
        let format = match value::<u32>(&mut lines, "format") {
            Some(format @ (PLAIN_FORMAT | MANIFEST_FORMAT)) => format,
            Some(newer) if newer > MANIFEST_FORMAT => return Err(ManifestFault::Newer(newer)),
            _ => return Err(damaged("its format line is malformed")),
        };
        let parsed =
            Self::parse_lines(&mut lines, format).ok_or(damaged("a line is missing or malformed"))?;
        // A manifest is accepted only if it would be written the same way; that includes the checksum.
        if parsed.encode() != text {
            return Err(damaged("its checksum does not match"));
        }
        Ok(parsed)
    }

    /// Parses the lines after the format.
    fn parse_lines(lines: &mut Lines<'_>, format: u32) -> Option<Self> {
        let log = lines.next()?.strip_prefix("log ")?;
        let mut info = BackupInfo {
            log_id: LogId(u128::from_str_radix(log, 16).ok()?),
            first: Index(value(lines, "first")?),
            last: Index(value(lines, "last")?),
            last_entry: EntryIndex(value(lines, "entry")?),
            last_timestamp: Timestamp(value(lines, "last-time")?),
            made: Timestamp(value(lines, "made")?),
            files: 0,
            bytes: 0,
        };
        let ends_early = match format {
            PLAIN_FORMAT => false,
            _ => value::<u8>(lines, "ends-early")? == 1,
        };
        let (mut files, mut notes) = (Vec::new(), Vec::new());
        for line in lines.take_while(|line| !line.starts_with("checksum ")) {
            if let Some(note) = line.strip_prefix("note ") {
                notes.push(note.to_owned());
                continue;
            }
            let mut parts = line.strip_prefix("file ")?.splitn(3, ' ');
            let bytes = parts.next()?.parse().ok()?;
            let crc = u32::from_str_radix(parts.next()?, 16).ok()?;
            files.push(ManifestFile { name: parts.next()?.to_owned(), bytes, crc });
            info.bytes = info.bytes.checked_add(bytes)?;
        }
        info.files = files.len() as u64;
        Some(Self { info, files, ends_early, notes })
            .filter(|read| !read.ends_early || !read.notes.is_empty())
    }
}

/// Parses the value of the next line, which must have this name.
fn value<T: FromStr>(lines: &mut Lines<'_>, name: &str) -> Option<T> {
    lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file = |name: &str, bytes, crc| ManifestFile { name: name.into(), bytes, crc };
        let info = BackupInfo {
            log_id: LogId(0xabc),
            first: Index(7),
            last: Index(1000),
            last_entry: EntryIndex(1012),
            last_timestamp: Timestamp(1_767_225_600_000),
            made: Timestamp(1_767_225_612_345),
            files: 2,
            bytes: 512 + 65_536,
        };
        let files =
            vec![file("chiplog.id", 512, 0x1a2b), file("00000000000000000001.seg", 65_536, 0x89ab_cdef)];
        Manifest { info, files, ends_early: false, notes: Vec::new() }
    }

    /// Manifests without notes and with some.
    fn manifests() -> [Manifest; 3] {
        let noted = |ends_early| {
            let notes =
                vec!["slice 3 was left out: it is damaged".to_owned(), String::new(), "file".to_owned()];
            Manifest { ends_early, notes, ..manifest() }
        };
        [manifest(), noted(false), noted(true)]
    }

    #[test]
    fn manifest_is_parsed_and_every_flipped_bit_and_truncation_is_detected() {
        for manifest in manifests() {
            let text = manifest.encode();
            assert_eq!(Manifest::parse(text.as_bytes()), Ok(manifest));
            for bit in 0..text.len() * 8 {
                let mut bad = text.clone().into_bytes();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Manifest::parse(&bad).is_err(), "bit {bit}");
            }
            for cut in 0..text.len() {
                assert!(Manifest::parse(&text.as_bytes()[..cut]).is_err(), "truncated at {cut}");
            }
            assert!(Manifest::parse(format!("{text}\n").as_bytes()).is_err());
        }
    }

    /// Only a backup with notes needs a version that knows them.
    #[test]
    fn format_is_the_lowest_that_has_all() {
        let formats = manifests().map(|manifest| manifest.encode().lines().nth(1).unwrap().to_owned());
        assert_eq!(formats, ["format 1", "format 2", "format 2"]);
        // The same lines under the other number are none.
        let sealed = |text: String| {
            let body = &text[..text.rfind("checksum ").unwrap()];
            format!("{body}checksum {:08x}\n", crc32c(body.as_bytes()))
        };
        for (of, from, to) in [(0, "format 1", "format 2"), (1, "format 2", "format 1")] {
            let text = sealed(manifests()[of].encode().replacen(from, to, 1));
            assert!(matches!(Manifest::parse(text.as_bytes()), Err(ManifestFault::Damaged(_))), "{text}");
        }
    }

    #[test]
    fn later_format_is_not_reported_as_damage() {
        let later = manifest().encode().replace("format 1\n", "format 3\n");
        assert_eq!(Manifest::parse(later.as_bytes()), Err(ManifestFault::Newer(3)));
    }
}
