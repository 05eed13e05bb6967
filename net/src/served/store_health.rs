//! StoreHealth: whether the requests of a server to its object store fail now, and since when. For the server's status.
//!
//! A request that fails is repeated by its caller, so one success means that the store works again, for requests of its kind: a store that
//! refuses to be written to can still be read. A failure that nothing has repeated for long says nothing about the store, and neither does
//! that of one object while others are read.
//!
//! A store that is there and is not the one with a log's objects answers every request: an object that is missing is an answer. It is
//! known by the object `root` of the log, for which its users look if one is missing. Such a store fails until that log's root was found or
//! made there, or bytes of its objects were read, or nothing has looked for the root for long.
//!
//! Must not know: how requests are made.

use StoreRequest::{Look, Read, Write};
use chiplog::internal::not_there;
use chiplog::{ErrorKind, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a failure counts after which no request was made: those that store objects try again after a minute at most.
const COUNTS_FOR: Duration = Duration::from_secs(150);

/// How long no object must have been read until the failures of a single one count.
const ALONE_FOR: Duration = Duration::from_secs(10);

/// The most objects whose failures do not count while others are read. If more fail, it is the store.
const APART_MAX: usize = 16;

/// The state of an object store. `Send + Sync`, shared by those that use the store.
///
/// ```
/// use chiplog::{Error, ErrorKind};
/// use chiplog_net::served::store_health::{StoreHealth, StoreRequest};
/// let health = StoreHealth::default();
/// let failed = Err::<(), _>(Error::new(ErrorKind::Unavailable, "no answer"));
/// health.begin(StoreRequest::Write, "o/7").end(&failed);
/// health.begin(StoreRequest::Read, "o/6").end(&Ok(1));
/// assert!(health.failure().is_some_and(|failure| failure.why.contains("no answer")));
/// health.begin(StoreRequest::Write, "o/7").end(&Ok(1));
/// assert!(health.failure().is_none() && health.works());
/// ```
#[derive(Debug, Default)]
pub struct StoreHealth {
    requests: Mutex<[Requests; 3]>,
    /// The logs whose roots are not there, as the names of objects begin.
    rootless: Mutex<BTreeMap<String, Rootless>>,
}

/// The kind of a request to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// It stores an object.
    Write,
    /// It reads bytes of an object.
    Read,
    /// It asks whether objects exist, and for what is known about them.
    Look,
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

/// A request that is being made, until it is dropped.
#[derive(Debug)]
pub struct Begun<'a> {
    health: &'a StoreHealth,
    request: StoreRequest,
    name: &'a str,
}

/// The requests of a kind.
#[derive(Debug, Default)]
struct Requests {
    failing: Option<Failing>,
    /// Those that are being made.
    running: usize,
    /// When the last one succeeded.
    answered: Option<Instant>,
    /// Objects whose requests failed while others succeeded.
    apart: BTreeSet<String>,
}

/// A log whose root is not there: since when it is known, and when it was looked for last.
#[derive(Clone, Copy, Debug)]
struct Rootless {
    since: Timestamp,
    last: Instant,
}

#[derive(Debug)]
struct Failing {
    failure: StoreFailure,
    last: Instant,
    /// The failures were over when the next request began.
    is_old: bool,
    /// Objects whose requests failed, one more than [`APART_MAX`] at most.
    names: BTreeSet<String>,
}

impl StoreHealth {
    /// Notes that a request is made. `name`: what it is about.
    pub fn begin<'a>(&'a self, request: StoreRequest, name: &'a str) -> Begun<'a> {
        let requests = &mut self.lock()[request as usize];
        let counts = requests.counts();
        if let Some(failing) = &mut requests.failing {
            failing.is_old |= !counts;
        }
        requests.running += 1;
        Begun { health: self, request, name }
    }

    /// Notes whether the object of this name is there. Does nothing if it is no log's root.
    pub fn note_there(&self, name: &str, is_there: bool) {
        let Some((log, "root")) = name.split_once('/') else { return };
        let mut rootless = self.rootless();
        if is_there {
            rootless.remove(log);
            return;
        }
        let last = Instant::now();
        let before = rootless.get(log).filter(|before| before.counts());
        let since = before.map_or_else(now, |before| before.since);
        rootless.insert(log.to_owned(), Rootless { since, last });
    }

    /// The requests that fail, those that write first; else a log whose root is not there. None: the last ones did not, or were made long
    /// ago.
    pub fn failure(&self) -> Option<StoreFailure> {
        let all = self.lock();
        let failing =
            [Write, Read, Look].into_iter().find_map(|request| all[request as usize].failure(request));
        drop(all);
        failing.or_else(|| {
            let rootless = self.rootless();
            let counting = rootless.iter().filter(|(_, rootless)| rootless.counts());
            let (log, first) = counting.min_by_key(|(_, rootless)| rootless.since)?;
            Some(StoreFailure { since: first.since, why: not_there(&format!("{log}/root")) })
        })
    }

    /// Whether the last requests of each kind have succeeded, or were made long before a success of another kind, and no log's root is
    /// missing.
    pub fn works(&self) -> bool {
        self.lock().iter().all(|requests| requests.failing.is_none()) && self.rootless().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, [Requests; 3]> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rootless(&self) -> MutexGuard<'_, BTreeMap<String, Rootless>> {
        self.rootless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of this kind was answered. Bytes of an object, or a root that was made, show that this is the store of its log.
    fn succeeded(&self, request: StoreRequest, name: &str, is_found: bool) {
        let (log, part) = name.split_once('/').unwrap_or((name, ""));
        let shows = request == Read || (request == Write && part == "root");
        let is_its = |of: &str| is_found && shows && of == log;
        self.rootless().retain(|of, rootless| rootless.counts() && !is_its(of));
    }
}

impl Begun<'_> {
    /// Notes how the request has ended. An object that is not there, or that is shorter, is an answer of a store that works.
    pub fn end<T>(self, result: &chiplog::Result<T>) {
        let failed = result.as_ref().err();
        let failed = failed.filter(|e| !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange));
        let mut all = self.health.lock();
        let Some(error) = failed else {
            all[self.request as usize].succeed(self.request, self.name);
            for requests in &mut *all {
                if !requests.counts() {
                    requests.failing = None;
                }
            }
            drop(all);
            self.health.succeeded(self.request, self.name, result.is_ok());
            return;
        };
        all[self.request as usize].fail(self.name, error.to_string());
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.health.lock()[self.request as usize].running -= 1;
    }
}

impl Rootless {
    /// Whether the root was looked for lately.
    fn counts(&self) -> bool {
        self.last.elapsed() < COUNTS_FOR
    }
}

impl Requests {
    fn succeed(&mut self, request: StoreRequest, name: &str) {
        self.answered = Some(Instant::now());
        let failing = self.failing.take();
        if request == Read {
            self.apart.extend(failing.into_iter().flat_map(|failing| failing.names));
        }
        self.apart.remove(name);
        if self.apart.len() > APART_MAX {
            self.apart.clear();
        }
    }

    fn fail(&mut self, name: &str, why: String) {
        if self.apart.contains(name) && self.has_answered_within(COUNTS_FOR) {
            return;
        }
        let (since, mut names) = match self.failing.take().filter(|before| !before.is_old) {
            Some(before) => (before.failure.since, before.names),
            None => (now(), BTreeSet::new()),
        };
        if names.len() <= APART_MAX {
            names.insert(name.to_owned());
        }
        let failure = StoreFailure { since, why };
        self.failing = Some(Failing { failure, last: Instant::now(), is_old: false, names });
    }

    fn failure(&self, request: StoreRequest) -> Option<StoreFailure> {
        let failing = self.failing.as_ref().filter(|_| self.counts())?;
        // Perhaps only this object cannot be read.
        let is_one = request == Read && failing.names.len() == 1;
        (!is_one || !self.has_answered_within(ALONE_FOR)).then(|| failing.failure.clone())
    }

    /// Whether the failures were repeated lately, or the request that repeats them is being made.
    fn counts(&self) -> bool {
        let counts =
            |failing: &Failing| !failing.is_old && (self.running > 0 || failing.last.elapsed() < COUNTS_FOR);
        self.failing.as_ref().is_some_and(counts)
    }

    fn has_answered_within(&self, time: Duration) -> bool {
        self.answered.is_some_and(|at| at.elapsed() < time)
    }
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Error;

    fn failed(what: &str) -> chiplog::Result<()> {
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    #[test]
    fn failures_count_from_the_first_one_until_a_request_is_answered() {
        let health = StoreHealth::default();
        let read = |result: chiplog::Result<()>| health.begin(Read, "a").end(&result);
        read(failed("first"));
        let first = health.failure().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        read(failed("second"));
        let second = health.failure().unwrap();
        assert_eq!((first.since, &*second.why), (second.since, "second"));
        assert!(!health.works());
        read(Err(Error::new(ErrorKind::NotFound, "no such object")));
        assert_eq!(health.failure(), None);
        assert!(health.works());
    }

    /// The state was `store_fails` now and then.
    #[test]
    fn one_unreadable_object_among_others_is_no_failing_store() {
        let health = StoreHealth::default();
        let read = |name: &str, result: chiplog::Result<()>| health.begin(Read, name).end(&result);
        for _ in 0..3 {
            read("b", Ok(()));
            read("a", failed("damaged"));
            assert_eq!(health.failure(), None);
        }
        read("b", failed("no answer"));
        assert_eq!(health.failure(), None, "perhaps it is the only other one");
        read("c", failed("no answer"));
        assert!(health.failure().is_some());
        // It is known by now that `b` and `c` were not alone.
        read("a", Ok(()));
        assert!(health.failure().is_none() && health.works());
        // If nothing else is read, it counts.
        let age = |health: &StoreHealth, by: Duration| {
            let reads = &mut health.lock()[Read as usize];
            reads.answered = reads.answered.map(|at| at.checked_sub(by).unwrap());
        };
        read("d", failed("no answer"));
        assert_eq!(health.failure(), None);
        age(&health, ALONE_FOR);
        assert!(health.failure().is_some());
        // Writes are of one object at a time.
        health.begin(Write, "e").end(&Ok(()));
        health.begin(Write, "f").end(&failed("refused"));
        assert_eq!(health.failure().unwrap().why, "refused");
    }

    /// A directory that is not mounted answers every request: nothing was said of a copy whose readers got no answer.
    #[test]
    fn store_without_the_root_fails_until_it_has_what_is_the_logs() {
        let health = StoreHealth::default();
        let missing = || Err::<(), _>(Error::new(ErrorKind::NotFound, "no such object"));
        let look = |is_there| {
            health.begin(Read, "a/o/1").end(&missing());
            health.begin(Look, "a/root").end(&Ok(()));
            health.note_there("a/root", is_there);
        };
        look(false);
        let first = health.failure().unwrap();
        assert!(first.why.contains("a/root is not in the object store any more"), "{first:?}");
        std::thread::sleep(Duration::from_millis(5));
        look(false);
        health.begin(Read, "a/o/1").end(&missing());
        health.begin(Read, "b/o/1").end(&Ok(()));
        health.begin(Write, "a/o/2").end(&Ok(()));
        assert_eq!(health.failure().unwrap(), first, "neither an answer nor another log's object ends it");
        assert!(!health.works());
        health.begin(Read, "a/o/1").end(&Ok(()));
        assert!(health.failure().is_none() && health.works());
        look(false);
        look(true);
        assert!(health.failure().is_none() && health.works());
        health.note_there("a/o/1", false);
        assert!(health.works(), "one object");
        // Nothing has looked for the root for long.
        look(false);
        let mut rootless = health.rootless();
        let at = rootless.get_mut("a").unwrap();
        at.last = at.last.checked_sub(COUNTS_FOR).unwrap();
        drop(rootless);
        assert!(health.failure().is_none() && !health.works());
        health.begin(Look, "").end(&Ok(()));
        assert!(health.works());
    }

    /// With a time limit of more than 90 seconds the failure was forgotten before the next attempt had failed.
    #[test]
    fn failure_counts_while_it_is_repeated() {
        let health = StoreHealth::default();
        health.begin(Write, "a").end(&failed("late"));
        let since = health.failure().unwrap().since;
        let age = |by: Duration| {
            let writes = &mut health.lock()[Write as usize];
            let failing = writes.failing.as_mut().unwrap();
            failing.last = failing.last.checked_sub(by).unwrap();
        };
        let again = health.begin(Write, "a");
        age(COUNTS_FOR);
        assert_eq!(health.failure().unwrap().since, since);
        again.end(&failed("late again"));
        let failure = health.failure().unwrap();
        assert_eq!((failure.since, &*failure.why), (since, "late again"));
        age(COUNTS_FOR);
        assert!(health.failure().is_none() && !health.works(), "nothing has succeeded");
        let later = health.begin(Write, "a");
        assert_eq!(health.failure(), None);
        drop(later);
        health.begin(Look, "").end(&Ok(()));
        assert!(health.works(), "the store has answered");
    }
}
