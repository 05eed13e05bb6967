//! The file `chiplog.id`: it names the log in this directory. It is written last when a log is made (and again by
//! openings until it has an entry), and is also the file that is locked. One sector, so it exists whole or not at all.
//!
//! ```text
//! 0          8        12        16           20      24       40             56           64      512
//! | magic    | crc32c | version | min reader | whose | log id | directory id | created ms | zeros |
//! ```

use super::segment::{FORMAT_VERSION, FORMAT_VERSION_FIRST};
use crate::disk::{Disk, SECTOR_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::types::{DirectoryId, LogId, Timestamp};
use std::io::{self, IoSlice};

/// The file's name.
pub(crate) const IDENTITY_FILE: &str = "chiplog.id";
const MAGIC: [u8; 8] = *b"chiplogI";

/// The identity of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) log: LogId,
    /// The id of this copy of the log: replication uses it to detect an emptied or replaced disk.
    pub(crate) directory: DirectoryId,
    pub(crate) created: Timestamp,
    /// Whether it follows the log without being a replica; then it must not be opened as one.
    pub(crate) follows: bool,
    /// Whether it is a replica that was a copy, and that no leader is known to have added: see `follower/to_replica.rs`.
    pub(crate) joins: bool,
}

impl Identity {
    /// Makes the identity of a new log.
    pub(crate) fn random(disk: &dyn Disk, created: Timestamp) -> io::Result<Self> {
        let (mut log, mut directory) = ([0; 16], [0; 16]);
        disk.random(&mut log)?;
        disk.random(&mut directory)?;
        Ok(Self {
            log: LogId(u128::from_le_bytes(log)),
            directory: DirectoryId(u128::from_le_bytes(directory)),
            created,
            follows: false,
            joins: false,
        })
    }

    pub(crate) fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut b = [0; SECTOR_BYTES];
        b[0..8].copy_from_slice(&MAGIC);
        b[12..16].copy_from_slice(&FORMAT_VERSION_FIRST.to_le_bytes());
        b[16..20].copy_from_slice(&FORMAT_VERSION_FIRST.to_le_bytes());
        b[20..24].copy_from_slice(&(u32::from(self.follows) | u32::from(self.joins) << 1).to_le_bytes());
        b[24..40].copy_from_slice(&self.log.0.to_le_bytes());
        b[40..56].copy_from_slice(&self.directory.0.to_le_bytes());
        b[56..64].copy_from_slice(&self.created.0.to_le_bytes());
        let crc = crc32c(&b[12..]);
        b[8..12].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads the identity. `None`: the file is missing, empty or incomplete, as the lock, a crash or a failed write
    /// leaves it while the log is being made.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Self>> {
        let path = disk.path().join(IDENTITY_FILE);
        let file = match disk.open(IDENTITY_FILE, false) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let length = file.len().map_err(|e| Error::io("measure", &path, e))?;
        let mut b = [0; SECTOR_BYTES];
        if length < SECTOR_BYTES as u64 {
            return Ok(None);
        }
        file.read_at(0, &mut b).map_err(|e| Error::io("read", &path, e))?;
        if b == [0; SECTOR_BYTES] {
            return Ok(None);
        }
        if b[0..8] != MAGIC || crc32c(&b[12..]) != u32_at(&b, 8) {
            return Err(Error::corrupt(
                &path,
                0,
                "not a valid chiplog identity: its magic or checksum is wrong",
            ));
        }
        let reader_min = u32_at(&b, 16);
        if reader_min > FORMAT_VERSION {
            return Err(newer(&path, reader_min));
        }
        let whose = u32_at(&b, 20);
        if whose > 2 || b[64..].iter().any(|b| *b != 0) {
            return Err(Error::corrupt(&path, 0, "the identity has fields of a newer format"));
        }
        let (mut log, mut directory) = ([0; 16], [0; 16]);
        log.copy_from_slice(&b[24..40]);
        directory.copy_from_slice(&b[40..56]);
        Ok(Some(Self {
            log: LogId(u128::from_le_bytes(log)),
            directory: DirectoryId(u128::from_le_bytes(directory)),
            created: Timestamp(u64_at(&b, 56)),
            follows: whose == 1,
            joins: whose == 2,
        }))
    }

    /// Writes the identity durably.
    pub(crate) fn write(&self, disk: &dyn Disk) -> Result<()> {
        let path = disk.path().join(IDENTITY_FILE);
        let write = || {
            let file = disk.open(IDENTITY_FILE, true)?;
            file.write_at(0, &[IoSlice::new(&self.encode())])?;
            file.sync()?;
            disk.sync_dir()
        };
        write().map_err(|e| Error::io("write", &path, e))
    }
}

/// The error for files of a later version.
pub(crate) fn newer(path: &std::path::Path, reader_min: u32) -> Error {
    let what = format!(
        "{} needs a reader of format version {reader_min}; this one knows up to {FORMAT_VERSION}: use a newer chiplog",
        path.display()
    );
    Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn newer_format_is_named_and_bytes_are_stable() {
        let id = Identity {
            log: LogId(1),
            directory: DirectoryId(2),
            created: Timestamp(3),
            follows: false,
            joins: false,
        };
        let b = id.encode();
        assert_eq!((b[20], b[24], b[40], b[56]), (0, 1, 2, 3));
        assert_eq!(Identity { follows: true, ..id }.encode()[20], 1);
        assert_eq!(Identity { joins: true, ..id }.encode()[20], 2);
        assert_eq!(newer(Path::new("x"), 9).kind(), ErrorKind::Unsupported);
    }
}
