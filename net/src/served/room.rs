//! Room: whether an append was rejected because the log or its disk is full, and whether that still holds. For a
//! server's status.
//!
//! Nothing reports that a disk has room again, and there may be no append that would show it. So a rejection holds
//! until a later append succeeds, records are discarded, or the disk has room for a segment.

use chiplog::{Error, ErrorKind, Log};
use std::sync::{Mutex, PoisonError};

/// The last rejection. Shared by all services of a server.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<Option<Refused>>);

#[derive(Clone, Debug)]
struct Refused {
    why: String,
    /// The values at that time: appended batches, bytes used, bytes free on the disk.
    appends: u64,
    bytes_used: u64,
    free: u64,
}

impl Room {
    /// Records that an append was rejected; only `Full` matters.
    pub(crate) fn refused(&self, log: &Log, error: &Error) {
        if error.kind() != ErrorKind::Full {
            return;
        }
        let refused = Refused {
            why: error.to_string(),
            appends: log.metrics().appends,
            bytes_used: log.status().bytes_used,
            free: free_bytes(log),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
    }

    /// Why the log accepts no appends for lack of room. None: it does, as far as is known.
    pub(crate) fn why_none(&self, log: &Log) -> Option<String> {
        if let Err(error) = log.check_room(1)
            && error.kind() == ErrorKind::Full
        {
            return Some(error.to_string());
        }
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let segment = u64::from(log.options().segment_bytes);
        let has_room = log.metrics().appends > refused.appends
            || log.status().bytes_used < refused.bytes_used
            || (refused.free < segment && free_bytes(log) >= segment);
        (!has_room).then_some(refused.why)
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
}
