//! Objects and segments over plain HTTP: lists of the objects that logs have in the object store, and their bytes in ranges, for any program
//! that makes GET requests: `curl`, backups without credentials of the store, parallel and resumed downloads. The same of the sealed
//! segments of logs that have no object store, from the server's own files.
//!
//! ```text
//! GET /v1/objects                     the objects of all logs and groups of this server, as JSON   listing.rs
//! GET /v1/objects?log=NAME            of one of them, or of the group of a named log
//! GET /v1/objects/ID/                 of the one with this id
//! GET /v1/objects/ID/o/NUMBER         the bytes of one object, or a range of them                  objects.rs, answer.rs
//! GET /v1/segments …                  the same lists of sealed segments
//! GET /v1/segments/ID/NUMBER.seg      the file of one segment, or a range of it                    segments.rs, answer.rs
//! ```
//!
//! Invariants:
//! - Only objects that the log's own table has are served: no other name is asked for in the store, whatever a request says.
//! - Only segments are served that are written no more and wholly committed, of logs that have all their records in such files.
//! - Without TLS and tokens, no web page of others reads an answer through a browser: web_pages.rs.
//! - Lists and checksums come from the log, not from the store.
//! - One log that is not served hides no other one: in the list of all it has the reason.
//!
//! Must not know: sockets, what is in an object or a block.

mod answer;
mod listing;
mod objects;
mod range;
mod segments;
mod web_pages;

use crate::listener::auth::methods::{OBJECTS, SEGMENTS};
use crate::listener::auth::tokens::Payer;
use crate::listener::connection_info::ConnectionInfo;
use crate::listener::memory_budget::Budget;
use crate::served::caller::Caller;
use crate::served::log_slot::{DEFAULT_LOG, GROUP, LogSlot, SYSTEM_LOG};
use crate::wire::ids::from_hex;
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind, Log, LogId};
use http::{HeaderMap, Method, Request, Response};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The digits of an object's number in its name.
const NUMBER_DIGITS: usize = 20;

/// Serves objects over plain HTTP, on a server made by [`listener::server`](crate::listener::server). Cheap to clone.
///
/// ```
/// use chiplog_net::listener;
/// use chiplog_net::served::log_slot::LogSlot;
/// use chiplog_net::service::http_objects::HttpObjects;
/// let router = listener::server().add_service(HttpObjects::new(LogSlot::new()));
/// # drop(router);
/// ```
#[derive(Clone, Debug)]
pub struct HttpObjects {
    host: Arc<LogSlot>,
    /// For requests that no [`CallBudgetLayer`](crate::listener::stream_budget::CallBudgetLayer) has settled.
    budget: Budget,
}

impl HttpObjects {
    /// Serves the objects of these logs.
    pub fn new(host: Arc<LogSlot>) -> Self {
        Self { host, budget: Budget::default() }
    }
}

/// The router gives a service all paths that begin with its name.
impl NamedService for HttpObjects {
    const NAME: &'static str = "v1";
}

impl Service<Request<Body>> for HttpObjects {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let payer = self.budget.payer_of(request.extensions());
        let caller = Caller::of(request.extensions());
        let host = self.host.clone();
        let is_secret = request.extensions().get().is_some_and(ConnectionInfo::is_secret);
        let is_protected = is_secret || caller.is_proven();
        let (parts, _) = request.into_parts();
        Box::pin(async move {
            let allowed = if is_protected { Ok(()) } else { web_pages::check_host(&host, &parts) };
            let target = allowed.and_then(|()| Target::of(parts.uri.path(), parts.uri.query()));
            let response = match target {
                Ok((kind, Target::All)) => match all(&host, &caller) {
                    Ok(logs) => {
                        let logs = logs.into_iter().map(|log| shown(kind, log));
                        listing::respond(kind, logs, host, payer).await
                    }
                    Err(status) => Err(status),
                },
                Ok((kind, Target::Named(name))) => match named(&host, &caller, kind, name) {
                    Ok(log) => listed(kind, log, host, payer).await,
                    Err(status) => Err(status),
                },
                Ok((kind, Target::OfLog(log))) => match find(&host, &caller, kind, log) {
                    Ok(log) => listed(kind, log, host, payer).await,
                    Err(status) => Err(status),
                },
                Ok((kind, Target::One(log, number))) => {
                    match find(&host, &caller, kind, log).and_then(|log| check_is_served(kind, log)) {
                        Ok((_, log)) => {
                            let is_head = parts.method == Method::HEAD;
                            let wanted = Wanted { headers: &parts.headers, is_head, number };
                            match kind {
                                Kind::Objects => objects::respond(host, log, wanted, payer).await,
                                Kind::Segments => segments::respond(host, log, wanted, payer).await,
                            }
                        }
                        Err(status) => Err(status),
                    }
                }
                Err(status) => Err(status),
            };
            Ok(response.unwrap_or_else(Status::into_http))
        })
    }
}

/// A request for an object or a segment.
struct Wanted<'a> {
    headers: &'a HeaderMap,
    is_head: bool,
    number: u64,
}

/// The things that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The objects of logs in the object store.
    Objects,
    /// The files of sealed segments.
    Segments,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Objects => OBJECTS,
            Self::Segments => SEGMENTS,
        }
    }

    /// The name of one of them behind its log's id. The number has 20 digits.
    fn name_of(self, number: u64) -> String {
        match self {
            Self::Objects => format!("o/{number:0NUMBER_DIGITS$}"),
            Self::Segments => format!("{number:0NUMBER_DIGITS$}.seg"),
        }
    }

    /// The number in such a name. None: it is something else.
    fn number_in(self, rest: &str) -> Option<u64> {
        let digits = match self {
            Self::Objects => rest.strip_prefix("o/"),
            Self::Segments => rest.strip_suffix(".seg"),
        };
        let number = digits?.parse().ok()?;
        (self.name_of(number) == rest).then_some(number)
    }
}

/// The subject of a request.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    /// All logs and groups of this server.
    All,
    /// The log or group of this name.
    Named(&'a str),
    /// The log or group with this id.
    OfLog(LogId),
    /// An object or a segment of that log.
    One(LogId, u64),
}

impl<'a> Target<'a> {
    /// # Errors
    /// NOT_FOUND: nothing is at the path. INVALID_ARGUMENT: the query says something else than `log=NAME`.
    fn of(path: &'a str, query: Option<&'a str>) -> Result<(Kind, Self), Status> {
        let within = |kind: Kind| path.strip_prefix(kind.path()).map(|rest| (kind, rest));
        let (kind, rest) = [Kind::Objects, Kind::Segments]
            .into_iter()
            .find_map(within)
            .ok_or_else(|| nothing_at(Kind::Objects, path))?;
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let (log, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let is_list = rest.is_empty() || (kind == Kind::Objects && matches!(rest, "o" | "o/"));
        let target = match log {
            "" if rest.is_empty() => return Self::listed(query).map(|target| (kind, target)),
            _ if is_list => log_id(log).map(Self::OfLog),
            _ => log_id(log).zip(kind.number_in(rest)).map(|(log, number)| Self::One(log, number)),
        };
        match query {
            None | Some("") => target.map(|target| (kind, target)).ok_or_else(|| nothing_at(kind, path)),
            Some(_) => Err(invalid("only lists of all logs take a query, log=NAME")),
        }
    }

    fn listed(query: Option<&'a str>) -> Result<Self, Status> {
        match query {
            None | Some("") => Ok(Self::All),
            Some(query) => match query.strip_prefix("log=") {
                Some(name) if !name.is_empty() && !name.contains(['&', '%']) => Ok(Self::Named(name)),
                _ => Err(invalid(
                    "the query is not log=NAME with the name of a log, unquoted, `_system` or `_group-N`",
                )),
            },
        }
    }
}

/// The log's id in a path. None: it is none.
fn log_id(text: &str) -> Option<LogId> {
    from_hex(text).ok().filter(|_| !text.bytes().any(|b| b.is_ascii_uppercase())).map(LogId)
}

fn nothing_at(kind: Kind, path: &str) -> Status {
    let (folder, what) = match kind {
        Kind::Objects => (OBJECTS, "an object"),
        Kind::Segments => (SEGMENTS, "a segment"),
    };
    let what = format!(
        "{path:?} is no path of {what}: GET {folder} lists those there are, with their names, and {folder}/NAME has the bytes"
    );
    to_status(&Error::new(ErrorKind::NotFound, what), None)
}

fn invalid(what: &str) -> Status {
    to_status(&Error::new(ErrorKind::InvalidArgument, what), None)
}

/// A log or group that has objects, with its name at this server.
type Replica = (String, Log);

/// The list of the objects or segments of this log.
///
/// # Errors
/// UNIMPLEMENTED: they are not served. Those of [`listing::respond`].
async fn listed(
    kind: Kind,
    log: Replica,
    host: Arc<LogSlot>,
    payer: Arc<Payer>,
) -> Result<Response<Body>, Status> {
    listing::respond(kind, [shown(kind, check_is_served(kind, log)?)], host, payer).await
}

/// A log in a list of all of them: one that is not served has the reason, and its own objects.
fn shown(kind: Kind, (name, log): Replica) -> listing::Shown {
    let not_served = not_served(kind, &name, &log);
    listing::Shown { name, log, not_served }
}

/// Checks that all of a log is served. Objects of a branch's ancestors have another log's id, also in their bytes; and a log that has
/// objects has records that are in no segment.
///
/// # Errors
/// UNIMPLEMENTED.
fn check_is_served(kind: Kind, (name, log): Replica) -> Result<Replica, Status> {
    match not_served(kind, &name, &log) {
        None => Ok((name, log)),
        Some(what) => Err(to_status(&Error::new(ErrorKind::Unsupported, what), None)),
    }
}

/// Why a log is not served, if so.
fn not_served(kind: Kind, name: &str, log: &Log) -> Option<String> {
    match kind {
        Kind::Objects => log.reads_other_logs().then(|| {
            format!(
                "log {name:?} is a branch that reads objects of another log, and these are not served over HTTP: read them from the \
                 object store, or follow the log"
            )
        }),
        Kind::Segments => (!log.is_without_objects()).then(|| {
            format!(
                "log {name:?} has an object store, and its segments are not served over HTTP: its objects are, at {OBJECTS}"
            )
        }),
    }
}

/// The replicas of this server: of the default log, the system log and the groups.
///
/// # Errors
/// UNAVAILABLE: there is no log yet, or the server is shutting down. PERMISSION_DENIED.
fn all(host: &LogSlot, caller: &Caller) -> Result<Vec<Replica>, Status> {
    let mut all = vec![(DEFAULT_LOG.to_owned(), host.default_log()?.clone())];
    if let Some(logs) = host.named() {
        all.push((SYSTEM_LOG.to_owned(), logs.system().clone()));
        all.extend(logs.groups().into_iter().map(|(number, log)| (format!("{GROUP}{number}"), log)));
    }
    all.iter().try_for_each(|(name, _)| caller.claim(name))?;
    Ok(all)
}

/// The replica with this id.
///
/// # Errors
/// Those of [`all`]. NOT_FOUND.
fn find(host: &LogSlot, caller: &Caller, kind: Kind, id: LogId) -> Result<Replica, Status> {
    let found = all(host, caller)?.into_iter().find(|(_, log)| log.log_id() == id);
    found.ok_or_else(|| {
        let what = format!(
            "this server has no replica of log {:032x}: GET {} lists those it has, and other servers may have others",
            id.get(),
            kind.path()
        );
        to_status(&Error::new(ErrorKind::NotFound, what), None)
    })
}

/// The replica of this name, or the one that has the named log of this name.
///
/// # Errors
/// Those of [`all`]. NOT_FOUND: there is none here.
fn named(host: &LogSlot, caller: &Caller, kind: Kind, name: &str) -> Result<Replica, Status> {
    let group = || host.named().and_then(|logs| logs.group_of(name).ok().flatten());
    let wanted = match name {
        _ if name.starts_with('_') => name.to_owned(),
        _ if host.is_default(name) => DEFAULT_LOG.to_owned(),
        _ => group().map(|number| format!("{GROUP}{number}")).unwrap_or_default(),
    };
    let found = all(host, caller)?.into_iter().find(|(known, _)| *known == wanted);
    found.ok_or_else(|| {
        let what = format!(
            "there is no log or group {name:?} here: GET {} lists those of this server, and other servers may have others",
            kind.path()
        );
        to_status(&Error::new(ErrorKind::NotFound, what), None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::auth::tokens::Resource;
    use chiplog::vault::{MemoryVault, Vault};
    use chiplog::{LogOption, Options};
    use http_body_util::BodyExt as _;
    use std::path::Path;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};
    use tonic::Code;

    const ID: &str = "0000000000000000000000000000000a";

    #[test]
    fn only_paths_of_lists_objects_and_segments_are_understood() {
        let of = |path: &'static str, query| Target::of(path, query).map_err(|status| status.code());
        for (path, kind) in [
            ("/v1/objects", Kind::Objects),
            ("/v1/objects/", Kind::Objects),
            ("/v1/segments", Kind::Segments),
            ("/v1/segments/", Kind::Segments),
        ] {
            assert_eq!(of(path, None), Ok((kind, Target::All)));
            assert_eq!(of(path, Some("log=_group-1")), Ok((kind, Target::Named("_group-1"))));
            for query in ["log=", "log=a&log=b", "x=1", "log=%2e", "log"] {
                assert_eq!(of(path, Some(query)), Err(Code::InvalidArgument), "{query}");
            }
        }
        let objects = ["", "/", "/o", "/o/"].map(|rest| (Kind::Objects, rest));
        let segments = ["", "/"].map(|rest| (Kind::Segments, rest));
        for (kind, rest) in objects.into_iter().chain(segments) {
            let path = format!("{}/{ID}{rest}", kind.path());
            assert_eq!(Target::of(&path, None).unwrap(), (kind, Target::OfLog(LogId(10))), "{path}");
            assert_eq!(Target::of(&path, Some("log=a")).unwrap_err().code(), Code::InvalidArgument);
        }
        let path = format!("/v1/objects/{ID}/o/00000000000000000012");
        assert_eq!(Target::of(&path, None).unwrap(), (Kind::Objects, Target::One(LogId(10), 12)));
        let path = format!("/v1/segments/{ID}/00000000000000000012.seg");
        assert_eq!(Target::of(&path, None).unwrap(), (Kind::Segments, Target::One(LogId(10), 12)));
        for rest in [
            "x".to_owned(),
            "..".to_owned(),
            format!("{ID}/root"),
            format!("{ID}/pin/a"),
            format!("{ID}/begin/00000000000000000012"),
            format!("{ID}/s/1.2.3"),
            format!("{ID}/o/12"),
            format!("{ID}/o/+0000000000000000012"),
            format!("{ID}/o/99999999999999999999"),
            format!("{ID}/o/../root"),
            format!("{ID}//o/00000000000000000012"),
            format!("{ID}/o/00000000000000000012/"),
            format!("{ID}/00000000000000000012.seg"),
            format!("/{ID}/o/00000000000000000012"),
            ID.to_uppercase(),
        ] {
            let path = format!("/v1/objects/{rest}");
            assert_eq!(Target::of(&path, None).unwrap_err().code(), Code::NotFound, "{path}");
        }
        for rest in [
            "x".to_owned(),
            format!("{ID}/o"),
            format!("{ID}/chiplog.id"),
            format!("{ID}/12.seg"),
            format!("{ID}/+0000000000000000012.seg"),
            format!("{ID}/99999999999999999999.seg"),
            format!("{ID}/00000000000000000012"),
            format!("{ID}/00000000000000000012.tmp"),
            format!("{ID}/00000000000000000012.seg/"),
            format!("{ID}/../{ID}/00000000000000000012.seg"),
            format!("{ID}/o/00000000000000000012"),
            format!("/{ID}/00000000000000000012.seg"),
        ] {
            let path = format!("/v1/segments/{rest}");
            assert_eq!(Target::of(&path, None).unwrap_err().code(), Code::NotFound, "{path}");
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    /// More than exist counts as all.
    const ALL: usize = 1 << 20;

    /// A log of which the rows of older objects are in the object store alone.
    async fn log_with_older_rows(dir: &Path) -> Log {
        let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
        let options = Options::with_segment_bytes(128 << 10).sessions_max(8).session_window(4);
        let options = options.vault(vault).object_bytes(64 << 10);
        let log = Log::open(dir, options.clone()).unwrap();
        let mut is_set = false;
        // A log that was just opened has fetched no rows.
        loop {
            let index = log.append(&[7; 3000]).unwrap();
            log.cut_objects(index).unwrap();
            while log.metrics().stored_index < index.get() {
                sleep(Duration::from_millis(1)).await;
            }
            if !std::mem::replace(&mut is_set, true) {
                log.set_log_options(&[(LogOption::ObjectRows, Some(4))], LONG).unwrap();
            }
            if log.known_objects(0, 1).is_none() {
                log.close().unwrap();
                return Log::open(dir, options).unwrap();
            }
        }
    }

    async fn text(answer: Response<Body>) -> String {
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    /// Each request for rows that are in the object store alone kept a blocking thread for as long as the store did not answer: a few
    /// hundred of them stopped everything else that needs such threads.
    #[tokio::test]
    async fn rows_in_the_store_alone_need_a_place_among_its_requests() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_with_older_rows(dir.path()).await;
        let newest = log.stored_objects(u64::MAX >> 1, 1).unwrap();
        assert!(newest.is_empty() && log.known_objects(0, 1).is_none());
        let mut newest = 0;
        while log.has_stored_object(newest + 1) {
            newest += 1;
        }
        let (budget, headers) = (Budget::default(), HeaderMap::new());
        let payer = budget.payer_of(&http::Extensions::new());
        let of = |number| {
            let wanted = Wanted { headers: &headers, is_head: true, number };
            objects::respond(LogSlot::new(), log.clone(), wanted, payer.clone())
        };
        let list = || listed(Kind::Objects, ("log".to_owned(), log.clone()), LogSlot::new(), payer.clone());
        let others = payer.take(Resource::Objects, ALL).await;
        assert!(of(newest).await.is_ok(), "its row is in memory");
        assert_eq!(of(newest + 1).await.unwrap_err().code(), Code::NotFound);
        let (mut object, mut all) = (Box::pin(of(0)), Box::pin(list()));
        let early = timeout(Duration::from_millis(50), async { tokio::join!(&mut object, &mut all) });
        assert!(early.await.is_err(), "needs no place");
        assert!(log.known_objects(0, 1).is_none(), "the store is asked without a place");
        drop(others);
        assert!(object.await.is_ok());
        let all = text(all.await.unwrap()).await;
        assert_eq!(all.matches("\"crc32c\"").count() as u64, newest + 1, "{all}");
        assert!(log.known_objects(0, 1).is_some());
        let others = payer.take(Resource::Objects, ALL).await;
        assert!(of(0).await.is_ok() && list().await.is_ok(), "the rows are in memory");
        drop(others);
    }

    /// A request that waits for a place ends with the server.
    #[tokio::test]
    async fn wait_for_a_place_ends_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_with_older_rows(dir.path()).await;
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let others = payer.take(Resource::Objects, ALL).await;
        let host = LogSlot::new();
        let mut all = Box::pin(listed(Kind::Objects, ("log".to_owned(), log), host.clone(), payer.clone()));
        assert!(timeout(Duration::from_millis(50), &mut all).await.is_err());
        host.drain();
        assert_eq!(all.await.unwrap_err().code(), Code::Unavailable);
        drop(others);
    }
}
