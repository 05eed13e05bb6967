//! Room: whether an append was rejected because the log or its disk is full, and whether that still holds. For a
//! server's status.
//!
//! Nothing reports that a disk has room again, and there may be no append that would show it. So a rejection holds
//! until a later append succeeds, records are discarded, or the disk has room for a segment. If the disk had no room for a segment, a
//! later append does not end it: a smaller one can fit into the last segment.

use chiplog::{Error, ErrorKind, Log};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a rejection of a replica is recorded.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// The last rejection of each replica, by its directory. Shared by all services of a server.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<BTreeMap<PathBuf, Refused>>);

#[derive(Clone, Debug)]
struct Refused {
    why: String,
    /// The values at that time.
    then: Values,
    at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Values {
    /// Appended batches.
    appends: u64,
    bytes_used: u64,
    /// Bytes free on the disk.
    free: u64,
}

impl Values {
    fn of(log: &Log) -> Self {
        Self { appends: log.metrics().appends, bytes_used: log.status().bytes_used, free: free_bytes(log) }
    }

    /// Whether there is room now for what was rejected when these were the values. `segment`: the size of the next file.
    fn have_room(&self, now: &Self, segment: u64) -> bool {
        let had_disk = self.free >= segment;
        now.bytes_used < self.bytes_used
            || if had_disk {
                now.appends > self.appends
            } else {
                // A file was had if the log is that much larger.
                now.free >= segment || now.bytes_used >= self.bytes_used.saturating_add(segment)
            }
    }
}

impl Room {
    /// Records that an append was rejected; only `Full` matters. `log`: the replica, not a named log of it.
    pub(crate) fn refused(&self, log: &Log, error: &Error) {
        if error.kind() != ErrorKind::Full {
            return;
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = Refused { why: error.to_string(), then: Values::of(log), at: Instant::now() };
        last.insert(log.path().to_owned(), refused);
    }

    /// Whether a rejection of less than a second ago is recorded of the log with this directory, and no append was accepted since:
    /// another one says nothing more. Cheap.
    pub(crate) fn has_just_refused(&self, log: &Log) -> bool {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |refused: &Refused| {
            refused.at.elapsed() < RECORD_EVERY && refused.then.appends == log.metrics().appends
        };
        last.get(log.path()).is_some_and(is_new)
    }

    /// Why the replica accepts no appends for lack of room. None: it does, as far as is known.
    pub(crate) fn why_none(&self, log: &Log) -> Option<String> {
        if let Err(error) = log.check_room(1)
            && error.kind() == ErrorKind::Full
        {
            return Some(error.to_string());
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = last.get(log.path())?;
        // Under the lock: no rejection is newer than these values.
        let now = Values::of(log);
        if !refused.then.have_room(&now, log.options().segment_bytes.into()) {
            return Some(refused.why.clone());
        }
        last.remove(log.path()); // its values say nothing about a later time
        None
    }
}

/// The free bytes of the log's disk; `u64::MAX` if unknown.
fn free_bytes(log: &Log) -> u64 {
    rustix::fs::statvfs(log.path()).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Options;

    /// A status reported no problem while no append was possible.
    #[test]
    fn rejection_holds_until_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::with_segment_bytes(1 << 20).capacity_bytes(4 << 20);
        let log = Log::open(dir.path(), options).unwrap();
        let room = Room::default();
        assert_eq!(room.why_none(&log), None);
        let error = loop {
            if let Err(error) = log.append(&vec![0; 200_000]) {
                break error;
            }
        };
        room.refused(&log, &error);
        assert!(room.why_none(&log).unwrap().contains("full"));
        log.discard(8.into()).unwrap();
        assert_eq!(room.why_none(&log), None);
        room.refused(&log, &Error::new(ErrorKind::Full, "no space left"));
        assert_eq!(room.why_none(&log).as_deref(), Some("no space left"));
        log.append(b"x").unwrap();
        assert_eq!(room.why_none(&log), None);
        room.refused(&log, &Error::new(ErrorKind::Busy, "later"));
        assert_eq!(room.why_none(&log), None);
    }

    /// Each rejection of an append asked the disk, and there can be thousands a second.
    #[test]
    fn rejection_is_recorded_once_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        let room = Room::default();
        let full = Error::new(ErrorKind::Full, "no space left");
        assert!(!room.has_just_refused(&log));
        room.refused(&log, &full);
        assert!(room.has_just_refused(&log));
        log.append(b"x").unwrap();
        assert!(!room.has_just_refused(&log), "there was room in between");
        room.refused(&log, &full);
        let at = |room: &Room| room.0.lock().unwrap().get(log.path()).unwrap().at;
        let before = at(&room).checked_sub(RECORD_EVERY).unwrap();
        room.0.lock().unwrap().get_mut(log.path()).unwrap().at = before;
        assert!(!room.has_just_refused(&log));
    }

    /// A rejection of long ago was shown again once the disk was as full as then.
    #[test]
    fn rejection_that_has_ended_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
        let room = Room::default();
        room.refused(&log, &Error::new(ErrorKind::Full, "no space left"));
        assert!(room.why_none(&log).is_some());
        log.append(b"x").unwrap();
        assert_eq!(room.why_none(&log), None);
        assert!(room.0.lock().unwrap().is_empty());
    }

    /// A status was `ok` right after a large append was rejected: a small one still fitted into the last segment.
    #[test]
    fn small_append_does_not_end_the_rejection_by_a_full_disk() {
        let segment = 1000;
        let full = Values { appends: 5, bytes_used: 5000, free: 999 };
        assert!(!full.have_room(&full, segment));
        assert!(!full.have_room(&Values { appends: 6, bytes_used: 5100, ..full }, segment));
        assert!(full.have_room(&Values { free: 1000, ..full }, segment));
        assert!(full.have_room(&Values { bytes_used: 4000, ..full }, segment));
        assert!(full.have_room(&Values { bytes_used: 6000, ..full }, segment));
        let capacity = Values { free: 1000, ..full };
        assert!(!capacity.have_room(&capacity, segment));
        assert!(capacity.have_room(&Values { appends: 6, ..capacity }, segment));
    }
}
