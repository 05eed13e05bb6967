//! Fullness: what a full log refused lately. A client that was refused asks with a probe whether there is room, and
//! sends again at once when there is: the answer has to be about what it wants to send.

use chiplog::{Error, ErrorKind, Log, Result};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A disk that was full is taken for full for so long: nobody tells when it is not any more.
const DISK_MEMORY: Duration = Duration::from_secs(1);
/// No more is waited for than this part of the capacity.
const CAPACITY_SHARE: u64 = 4;

/// What was refused. Shared by all streams of a service.
#[derive(Debug, Default)]
pub(super) struct Fullness(Mutex<Refused>);

#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    /// The capacity had no room for so many bytes.
    bytes: usize,
    /// The disk had no room then.
    by_disk: Option<Instant>,
}

impl Fullness {
    /// Whether the capacity has room for an append.
    ///
    /// # Errors
    /// `Full`; those of [`Log::check_room`].
    pub(super) fn check(&self, log: &Log, bytes: usize) -> Result<()> {
        let checked = log.check_room(bytes);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            self.change(|refused| refused.bytes = bytes);
        }
        checked
    }

    /// What had passed the check was refused all the same.
    pub(super) fn disk_is_full(&self) {
        self.change(|refused| refused.by_disk = Some(Instant::now()));
    }

    /// Whether what was refused last would be taken now.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn probe(&self, log: &Log) -> Result<()> {
        let refused = self.change(|_| {});
        if refused.by_disk.is_some_and(|at| at.elapsed() < DISK_MEMORY) {
            return Err(Error::new(ErrorKind::Full, "the disk was full less than a second ago; try again"));
        }
        let capacity = log.info().bytes_capacity.unwrap_or(u64::MAX);
        let bytes = (refused.bytes as u64).min(capacity / CAPACITY_SHARE).max(1);
        log.check_room(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        self.change(|refused| *refused = Refused::default());
        Ok(())
    }

    fn change(&self, how: impl FnOnce(&mut Refused)) -> Refused {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut refused);
        *refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Options;

    #[test]
    fn a_probe_is_about_what_was_refused() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { capacity_bytes: Some(4 << 20), ..Options::with_segment_bytes(1 << 20) };
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
        // What can never be had is not waited for.
        assert!(fullness.check(&log, 1 << 30).is_err());
        fullness.probe(&log).unwrap();
        fullness.disk_is_full();
        assert_eq!(fullness.probe(&log).unwrap_err().kind(), ErrorKind::Full);
    }
}
