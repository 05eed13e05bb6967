//! StoreHealth: whether the requests of a server to its object store fail now, and since when. For the server's status.
//!
//! A request that fails is repeated by its caller, so one success means that the store works again, for requests of its kind: a store that
//! refuses to be written to can still be read. A failure that nothing has repeated for long says nothing about the store.
//!
//! Must not know: how requests are made.

use chiplog::{ErrorKind, Timestamp};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a failure counts that was not repeated: those that store objects try again after a minute at most.
const COUNTS_FOR: Duration = Duration::from_secs(150);

/// The state of an object store. `Send + Sync`, shared by those that use the store.
///
/// ```
/// use chiplog::{Error, ErrorKind};
/// use chiplog_net::served::store_health::{StoreHealth, StoreRequest};
/// let health = StoreHealth::default();
/// health.note::<()>(StoreRequest::Write, &Err(Error::new(ErrorKind::Unavailable, "no answer")));
/// health.note(StoreRequest::Read, &Ok(1));
/// assert!(health.failure().is_some_and(|failure| failure.why.contains("no answer")));
/// health.note(StoreRequest::Write, &Ok(1));
/// assert!(health.failure().is_none());
/// ```
#[derive(Debug, Default)]
pub struct StoreHealth {
    reads: Mutex<Option<Failing>>,
    writes: Mutex<Option<Failing>>,
}

/// The kind of a request to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// It changes nothing.
    Read,
    /// It stores or deletes an object.
    Write,
}

/// Requests to an object store that fail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFailure {
    /// When the first of them failed.
    pub since: Timestamp,
    /// The error of the last one.
    pub why: String,
}

#[derive(Debug)]
struct Failing {
    failure: StoreFailure,
    last: Instant,
}

impl StoreHealth {
    /// Notes how a request ended. An object that is not there, or that is shorter, is an answer of a store that works.
    pub fn note<T>(&self, request: StoreRequest, result: &chiplog::Result<T>) {
        let failed = result.as_ref().err();
        let failed = failed.filter(|e| !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange));
        let mut failing = match request {
            StoreRequest::Read => lock(&self.reads),
            StoreRequest::Write => lock(&self.writes),
        };
        let Some(error) = failed else {
            *failing = None;
            return;
        };
        let since = failing.as_ref().filter(|failing| failing.counts()).map_or_else(now, |f| f.failure.since);
        let failure = StoreFailure { since, why: error.to_string() };
        *failing = Some(Failing { failure, last: Instant::now() });
    }

    /// The requests that fail, those that write first. None: the last ones did not, or were made long ago.
    pub fn failure(&self) -> Option<StoreFailure> {
        let failing = |requests| {
            lock(requests).as_ref().filter(|failing| failing.counts()).map(|failing| failing.failure.clone())
        };
        failing(&self.writes).or_else(|| failing(&self.reads))
    }
}

impl Failing {
    fn counts(&self) -> bool {
        self.last.elapsed() < COUNTS_FOR
    }
}

fn lock(failing: &Mutex<Option<Failing>>) -> MutexGuard<'_, Option<Failing>> {
    failing.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Error;

    #[test]
    fn failures_count_from_the_first_one_until_a_request_is_answered() {
        let (health, read) = (StoreHealth::default(), StoreRequest::Read);
        let failed = |what: &str| Err::<(), _>(Error::new(ErrorKind::Unavailable, what));
        health.note(read, &failed("first"));
        let first = health.failure().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        health.note(read, &failed("second"));
        let second = health.failure().unwrap();
        assert_eq!((first.since, &*second.why), (second.since, "second"));
        health.note(read, &Err::<(), _>(Error::new(ErrorKind::NotFound, "no such object")));
        assert_eq!(health.failure(), None);
    }
}
