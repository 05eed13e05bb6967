//! Fullness: the last rejections of a full log. A rejected client probes for room and sends again at once when there is
//! some: the answer must be about the request that it wants to send.

use chiplog::{Error, ErrorKind, Log, LogId, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a full disk is considered full: nothing reports the end of that state.
const DISK_MEMORY: Duration = Duration::from_secs(1);
/// A probe never waits for more than this part of the capacity.
const CAPACITY_SHARE: u64 = 4;

/// The last rejections, by log. Shared by all streams of a service.
#[derive(Debug, Default)]
pub(super) struct Fullness(Mutex<BTreeMap<LogId, Refused>>);

#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    /// The capacity had no room for this number of bytes.
    bytes: usize,
    /// The last time that the disk had no room.
    by_disk: Option<Instant>,
}

impl Fullness {
    /// Checks that the capacity has room for an append.
    ///
    /// # Errors
    /// `Full`; those of [`Log::check_room`].
    pub(super) fn check(&self, log: &Log, bytes: usize) -> Result<()> {
        let checked = log.check_room(bytes);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            self.change(log, |refused| refused.bytes = bytes);
        }
        checked
    }

    /// The log rejected a request that had passed the check.
    pub(super) fn disk_is_full(&self, log: &Log) {
        self.change(log, |refused| refused.by_disk = Some(Instant::now()));
    }

    /// Checks that the last rejected request would be accepted now.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn probe(&self, log: &Log) -> Result<()> {
        let refused = self.change(log, |_| {});
        if refused.by_disk.is_some_and(|at| at.elapsed() < DISK_MEMORY) {
            return Err(Error::new(ErrorKind::Full, "the disk was full less than a second ago; try again"));
        }
        let capacity = log.status().bytes_capacity.unwrap_or(u64::MAX);
        let bytes = (refused.bytes as u64).min(capacity / CAPACITY_SHARE).max(1);
        log.check_room(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        self.change(log, |refused| *refused = Refused::default());
        Ok(())
    }

    fn change(&self, log: &Log, how: impl FnOnce(&mut Refused)) -> Refused {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = all.remove(&log.log_id()).unwrap_or_default();
        how(&mut refused);
        if refused.bytes > 0 || refused.by_disk.is_some() {
            all.insert(log.log_id(), refused);
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Options;

    #[test]
    fn probe_is_about_the_rejected_request() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::with_segment_bytes(1 << 20).capacity_bytes(4 << 20);
        let log = Log::open(dir.path(), options).unwrap();
        let fullness = Fullness::default();
        for _ in 0..7 {
            log.append(&vec![0; 500_000]).unwrap();
        }
        fullness.probe(&log).unwrap();
        assert_eq!(fullness.check(&log, 900_000).unwrap_err().kind(), ErrorKind::Full);
        fullness.check(&log, 1000).unwrap();
        assert_eq!(fullness.probe(&log).unwrap_err().kind(), ErrorKind::Full);
        log.discard(8.into()).unwrap();
        fullness.probe(&log).unwrap();
        // A request that can never fit is not awaited.
        assert!(fullness.check(&log, 1 << 30).is_err());
        fullness.probe(&log).unwrap();
        fullness.disk_is_full(&log);
        assert_eq!(fullness.probe(&log).unwrap_err().kind(), ErrorKind::Full);
    }
}
