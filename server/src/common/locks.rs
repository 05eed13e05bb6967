//! Finds the process that has a log open for writing, from the kernel's table of locks. It never takes the
//! lock: even for a moment, that could make another program fail to open the log.

use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file that a writer locks.
const LOCK_FILE: &str = "chiplog.id";

/// The process that has a log open for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Holder {
    /// Its process id; 0 if it runs where we cannot see it (another container).
    pub(crate) pid: u32,
    /// Its name, if we may know it.
    pub(crate) command: Option<String>,
}

/// The process that holds the lock of the log in `dir`, if any.
pub(crate) fn holder(dir: &Path) -> Option<Holder> {
    let file = fs::metadata(dir.join(LOCK_FILE)).ok()?;
    let pid = find(&fs::read_to_string("/proc/locks").ok()?, file.dev(), file.ino())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    Some(Holder { pid, command: name.map(|name| name.trim_end().to_string()) })
}

/// Looks a file up in the text of `/proc/locks`. A line reads `1: FLOCK  ADVISORY  WRITE 4711 fd:01:5678 0
/// EOF`, device numbers in hexadecimal. The line of a waiting process has `->`.
fn find(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next() != Some("FLOCK") {
            return None;
        }
        let (mode, pid, file) = (words.nth(1)?, words.next()?, words.next()?);
        let mut parts = file.split(':');
        let same = u32::from_str_radix(parts.next()?, 16).ok()? == major
            && u32::from_str_radix(parts.next()?, 16).ok()? == minor
            && parts.next()?.parse::<u64>().ok()? == inode;
        // A negative number is a process of another container.
        (same && mode == "WRITE").then(|| pid.parse().unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_of_the_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fd:01:99 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:00:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 33 fd:01:99 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  44 fd:01:99 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 55 fd:01:99 0 EOF\n";
        let device = rustix::fs::makedev(0xfd, 1);
        assert_eq!(find(locks, device, 99), Some(55));
        assert_eq!(find(locks, device, 98), None);
        assert_eq!(find("", device, 99), None);
    }
}
