//! The file `chiplog.suspects`: the numbers of objects that are suspected to be lost or damaged. Files of the log that have all of such
//! an object may be its last copy, so a restart must not forget which they are. Damage inside an object shows in no list.
//!
//! ```text
//! 0       8        12        16       32      36      40
//! | magic | crc32c | version | log id | count | zeros | number, 8 bytes each, ascending
//! ```
//!
//! The file is replaced as a whole: a crash leaves the old one or the new one. No file: no object is suspected. An empty file, as any
//! damaged one: it is not known which are.
//!
//! Must not know: who examines objects.

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::record::batch::{u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::types::LogId;
use std::collections::BTreeSet;
use std::io::{self, IoSlice};

/// The file's name, and that of one that is being made.
const FILE: &str = "chiplog.suspects";
const UNFINISHED: &str = "chiplog.suspects.tmp";
const MAGIC: [u8; 8] = *b"chiplogU";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 40;
/// A log has fewer objects.
const NUMBERS_MAX: u64 = 1 << 24;

/// Reads the numbers. A file of another log says nothing of this one.
///
/// # Errors
/// `Corrupt`: the file is damaged. `Io`.
pub(crate) fn read(disk: &dyn Disk, log: LogId) -> Result<BTreeSet<u64>> {
    let path = disk.path().join(FILE);
    let file = match disk.open(FILE, false) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(e) => return Err(Error::io("open", &path, e)),
    };
    let length = file.len().map_err(|e| Error::io("measure", &path, e))?;
    if length > HEAD_BYTES as u64 + 8 * NUMBERS_MAX {
        return Err(Error::corrupt(&path, 0, "it is too long for a list of suspected objects"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(0, &mut bytes).map_err(|e| Error::io("read", &path, e))?;
    match parse(&bytes) {
        Ok((of, numbers)) if of == log => Ok(numbers),
        Ok(_) => Ok(BTreeSet::new()),
        Err(why) => Err(Error::corrupt(&path, 0, why)),
    }
}

/// Replaces the file durably.
///
/// # Errors
/// `Io`: the old file or the new one is there.
pub(crate) fn replace(disk: &dyn Disk, log: LogId, numbers: &BTreeSet<u64>) -> Result<()> {
    let write = || {
        remove(disk, UNFINISHED)?;
        if numbers.is_empty() {
            remove(disk, FILE)?;
            return disk.sync_dir();
        }
        let file = disk.create(UNFINISHED)?;
        file.write_at(0, &[IoSlice::new(&encode(log, numbers))])?;
        file.sync()?;
        disk.rename(UNFINISHED, FILE)?;
        disk.sync_dir()
    };
    write().map_err(|e| Error::io("write", &disk.path().join(FILE), e))
}

/// Leaves an empty file, which needs almost no room: it is damaged, so after a restart any object can be a suspect.
///
/// # Errors
/// `Io`: the old file or the empty one is there.
pub(crate) fn forget(disk: &dyn Disk) -> Result<()> {
    let write = || {
        remove(disk, UNFINISHED)?;
        disk.create(UNFINISHED)?.sync()?;
        disk.rename(UNFINISHED, FILE)?;
        disk.sync_dir()
    };
    write().map_err(|e| Error::io("write", &disk.path().join(FILE), e))
}

fn remove(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn encode(log: LogId, numbers: &BTreeSet<u64>) -> Vec<u8> {
    let mut b = Vec::with_capacity(HEAD_BYTES + 8 * numbers.len());
    b.extend_from_slice(&MAGIC);
    b.extend_from_slice(&[0; 4]);
    b.extend_from_slice(&VERSION.to_le_bytes());
    b.extend_from_slice(&log.0.to_le_bytes());
    b.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
    b.extend_from_slice(&[0; 4]);
    numbers.iter().for_each(|number| b.extend_from_slice(&number.to_le_bytes()));
    let crc = crc32c(&b[12..]);
    b[8..12].copy_from_slice(&crc.to_le_bytes());
    b
}

fn parse(b: &[u8]) -> std::result::Result<(LogId, BTreeSet<u64>), &'static str> {
    if b.len() < HEAD_BYTES || b[0..8] != MAGIC || crc32c(&b[12..]) != u32_at(b, 8) {
        return Err("not a valid list of suspected objects: its magic or checksum is wrong");
    }
    let mut log = [0; 16];
    log.copy_from_slice(&b[16..32]);
    let listed = &b[HEAD_BYTES..];
    let count = u32_at(b, 32) as usize;
    if u32_at(b, 12) != VERSION || u32_at(b, 36) != 0 || listed.len() != 8 * count {
        return Err("the list of suspected objects has fields of a newer format");
    }
    Ok((LogId(u128::from_le_bytes(log)), (0..count).map(|n| u64_at(listed, 8 * n)).collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::error::ErrorKind;

    const LOG: LogId = LogId(7);

    fn numbers(of: &[u64]) -> BTreeSet<u64> {
        of.iter().copied().collect()
    }

    #[test]
    fn bytes_are_stable() {
        let b = encode(LOG, &numbers(&[3, 300]));
        assert_eq!((b.len(), &b[..8], b[12], b[16], b[32]), (56, &b"chiplogU"[..], 1, 7, 2));
        assert_eq!((u64_at(&b, 40), u64_at(&b, 48)), (3, 300));
        assert_eq!(parse(&b), Ok((LOG, numbers(&[3, 300]))));
    }

    #[test]
    fn every_damage_is_found_and_another_log_says_nothing() {
        let sound = encode(LOG, &numbers(&[3, 300]));
        for bit in 0..sound.len() * 8 {
            let mut damaged = sound.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&damaged).is_err(), "bit {bit}");
        }
        assert!((0..sound.len()).all(|end| parse(&sound[..end]).is_err()));
        let disk = SimDisk::default();
        assert_eq!(read(&disk, LOG).unwrap(), numbers(&[]));
        replace(&disk, LogId(8), &numbers(&[1])).unwrap();
        assert_eq!(read(&disk, LOG).unwrap(), numbers(&[]));
        let file = disk.open(FILE, true).unwrap();
        file.write_at(9, &[IoSlice::new(&[0xff; 3])]).unwrap();
        assert_eq!(read(&disk, LOG).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    /// Wherever the power is cut, the numbers are the old ones or the new ones. Once the call has returned they are the new ones.
    #[test]
    fn power_cut_leaves_the_old_numbers_or_the_new_ones() {
        let steps = [numbers(&[1]), (0..200).collect(), numbers(&[5, 9]), numbers(&[]), numbers(&[4])];
        let disk = SimDisk::default();
        let mut marks = vec![(disk.history_len(), numbers(&[]))];
        for step in &steps {
            replace(&disk, LOG, step).unwrap();
            assert_eq!(read(&disk, LOG).unwrap(), *step);
            marks.push((disk.history_len(), step.clone()));
        }
        let (mut images, history) = (0, disk.history());
        for (at, state) in history.states().enumerate() {
            let done = marks.iter().rposition(|(length, _)| *length <= at).unwrap();
            let allowed: Vec<_> = marks[done..].iter().take(2).map(|(_, numbers)| numbers.clone()).collect();
            for image in state.crashes(4096, 200, 1) {
                let found = read(&SimDisk::new(image), LOG).unwrap();
                assert!(allowed.contains(&found), "after {at} calls: {found:?}, not {allowed:?}");
                images += 1;
            }
        }
        assert!(images > 50, "{images}");
    }

    #[test]
    fn failed_call_leaves_the_old_numbers_or_the_new_ones() {
        let (old, new) = (numbers(&[1, 2]), numbers(&[2, 3]));
        for calls in 0..12 {
            let disk = SimDisk::default();
            replace(&disk, LOG, &old).unwrap();
            disk.cut_power_after(calls);
            let replaced = replace(&disk, LOG, &new);
            disk.spare_power();
            let left = SimDisk::new(disk.state().crashes(0, 1, calls).next().unwrap());
            let found = read(&left, LOG).unwrap();
            assert!(found == old || found == new, "{calls}: {found:?}");
            assert!(replaced.is_err() || found == new, "{calls}");
        }
    }
}
