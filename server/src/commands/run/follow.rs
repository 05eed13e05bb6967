//! `chiplog follow`: keeps a copy of a cluster's log in a directory, up to date, and optionally serves it to
//! others.

mod segments;

use crate::commands::files::object_store::StoreAccess;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::format::parse_bytes;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::common::signals;
use crate::connect::cluster::Connect;
use crate::connect::directory::{check_no_backup, check_not_within, is_log};
use crate::connect::open_log;
use crate::connect::remote;
use crate::connect::target;
use crate::connect::target::Servers;
use crate::serve::Config;
use crate::serve::follower::CopyServer;
use chiplog::{ErrorKind, Index, Options, Start, Timestamp};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use chiplog_net::served::store_health::StoreFailure;
use chiplog_net::wire::ids::to_hex;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long an event that may end the follower is not printed, because then the error is.
const MAY_END: Duration = Duration::from_secs(1);

/// How often to look whether the object store works.
const STORE_LOOK: Duration = Duration::from_secs(1);

/// How long to wait for servers, for a new copy, before reporting why none answers.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  chiplog follow ./copy log1:7411,log2:7411                a copy of the log, while this runs
  chiplog follow ./copy --cluster log1:7411 --from newest  only new records
  chiplog follow ./copy log1:7411,log2:7411/orders         a copy of the named log orders alone
  chiplog follow ./copy log1:7411/_group-1                 a copy of all named logs of a group
  chiplog follow ./copy --cluster log1:7411 --since 2h     the last two hours, and new records
  chiplog follow ./copy log1:7411,log2:7411 --segments     a long log, fetched as files first
  chiplog follow ./copy --cluster log1:7411 --object-store s3://bucket/chiplog
      the whole log at once: older records are read from the object store
  chiplog follow ./copy log1:7411/orders --object-store s3://bucket/chiplog
      the named log orders at once: its part of the objects of its group
  chiplog follow ./copy --cluster log1:7411 --object-store servers
      the same without credentials: the servers read the store for the copy
  chiplog follow ./copy --cluster log1:7411 --listen 127.0.0.1:7421
  chiplog follow ./copy2 --cluster 127.0.0.1:7421          a copy of the copy
  chiplog read 127.0.0.1:7421 --stale --follow             read the copy over the network
  chiplog read ./copy --follow                             read the copy's directory";

/// The place of objects that servers read for the copy.
const SERVERS: &str = "servers";

/// Keep a copy of a cluster's log in a directory, up to date, until Ctrl-C.
///
/// The copy of a named log has this log's records alone, with their indexes and times, as a log on its own. It
/// has no sessions, and none of the options that are set for the log.
///
/// The copy does not vote, and the cluster need not know it. It connects to any server; no leader is needed.
/// If that server fails, it continues at another one with the next block. Everything is checked before it is
/// stored, in the log's own format: commands that read a directory can read the copy, even while it grows.
/// After a restart it continues where it stopped; --object-store has to be given at each start.
///
/// --segments is for a new copy of a long log that has no object store. The log's full segments, which are no
/// longer written, are then fetched as files over HTTP from the first of the servers that answers, and every block
/// in them is checked. The copy follows from there, and servers feed it only what is newer. If the command is
/// interrupted, give --segments again: files that the server still has are not fetched again. Each server has files
/// of its own: at another one all of them are. `chiplog restore --as-copy` begins a copy with a backup instead.
///
/// Records that were discarded before they arrived are missing in the copy; the command reports them. If the
/// copy is full or no server answers, it retries forever. If requests to the object store begin to fail, it says so once, and once they
/// work again; `chiplog info` of a copy with --listen shows it, too. It ends if its files fail (status 1) or the servers have
/// another log (status 2).
///
/// A new copy needs a server at the start: it waits up to 30 s for one (status 5), but ends at once if a
/// server refuses the token.
///
/// Events are printed on standard output, one line each. With --json each is an object whose "event" is
/// fetched, opened, connected, switched, jumped, discarded, failed, missed, store_fails or store_works. Ctrl-C and SIGTERM end the command in
/// order (status 0).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Follow {
    /// The copy's directory. If it is empty or missing, a new copy begins there.
    #[arg(value_name = "DIR", value_parser = target::directory)]
    dir: PathBuf,

    /// Servers of the cluster, by their address for clients, or other followers; one is enough. With /LOG after the
    /// servers: a named log.
    #[arg(value_name = "HOST:PORT[/LOG]")]
    servers: Vec<Servers>,

    /// The same servers, in the form of the commands that change a cluster.
    #[arg(
        long,
        value_name = "HOST:PORT[/LOG]",
        env = "CHIPLOG_SERVERS",
        required_unless_present = "servers"
    )]
    cluster: Vec<Servers>,

    /// Where a new copy begins: oldest, newest, or the index of a record.
    #[arg(long, value_name = "PLACE", default_value = "oldest", value_parser = place, conflicts_with_all = ["last", "since"])]
    from: Start,

    /// Begin a new copy N records before the end.
    #[arg(long, value_name = "N", conflicts_with = "since", value_parser = whole_number::<u64>("a number of records", 0..=u64::MAX))]
    last: Option<u64>,

    /// Begin a new copy with the first record of this time or later: RFC 3339, a date, milliseconds since
    /// 1970, or a span ago (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = crate::connect::open_log::since)]
    since: Option<Timestamp>,

    /// Prefer servers in this zone.
    #[arg(long, env = "CHIPLOG_ZONE", default_value = "", hide_default_value = true)]
    zone: String,

    /// Fetch a new copy's sealed segments over HTTP before it follows: a long log then costs no server a long feed.
    /// With a copy in the directory this changes nothing.
    #[arg(long, conflicts_with_all = ["from", "last", "since", "object_store"])]
    segments: bool,

    /// Remove an existing copy from the directory and begin a new one. Anything else than a copy is not
    /// removed.
    #[arg(long)]
    start_over: bool,

    /// Keep about this many bytes, such as 10GiB, even if the log keeps more.
    #[arg(long, conflicts_with = "object_store", value_name = "SIZE", value_parser = parse_bytes)]
    retention_bytes: Option<u64>,

    /// Keep nothing older than this many seconds, even if the log does.
    #[arg(long, conflicts_with = "object_store", value_name = "SECONDS", value_parser = whole_number::<u64>("a number of seconds", 0..=u64::MAX))]
    retention_seconds: Option<u64>,

    /// Size of new segment files, such as 64MiB. Give at least the servers' size if their blocks are that
    /// large.
    #[arg(long, value_name = "SIZE", value_parser = crate::connect::open_log::segment_bytes)]
    segment_bytes: Option<u32>,

    /// The log's object store, such as s3://BUCKET/PREFIX: what is stored there is read from there, and only the
    /// rest is copied. The copy then has all records of the log, and a new one begins at once, however long the
    /// log is. Credentials: `chiplog tier --help`. The word servers: they read the store for this copy, which
    /// needs no credentials.
    #[arg(long, value_name = "LOCATION", help_heading = "Object store options")]
    object_store: Option<String>,

    /// Keep about this many bytes in files, such as 1GiB; what is stored beyond that is read from the object
    /// store. At least two segments.
    #[arg(long, value_name = "SIZE", requires = "object_store", help_heading = "Object store options", value_parser = parse_bytes)]
    local_bytes: Option<u64>,

    /// Keep what is stored in files no longer than this many seconds. Files go when the next one begins.
    #[arg(long, value_name = "SECONDS", requires = "object_store", help_heading = "Object store options", value_parser = whole_number::<u64>("a number of seconds", 1..=u64::MAX))]
    local_seconds: Option<u64>,

    /// Bytes of objects that are kept beside the files after they were read [default: 1GiB].
    #[arg(long, value_name = "SIZE", requires = "object_store", help_heading = "Object store options", value_parser = parse_bytes)]
    cache_bytes: Option<u64>,

    /// Download whole objects at leisure, the newest first, and keep this many bytes of them, such as 100GiB:
    /// older records are then read without the object store. Files and these objects together stay within
    /// --local-bytes. Not for one named log: objects have all logs of its group.
    #[arg(long, value_name = "SIZE", requires = "object_store", help_heading = "Object store options", value_parser = parse_bytes)]
    fill_bytes: Option<u64>,

    #[command(flatten)]
    store: StoreAccess,

    #[command(flatten)]
    listen: Listen,

    #[command(flatten)]
    connect: Connect,
}

/// Options for serving the copy to others.
#[derive(Args, Debug)]
#[command(next_help_heading = "Serving options")]
struct Listen {
    /// Serve the copy at this address: to readers and to other copies.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    /// Certificate of this listener (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["listen", "listen_key"])]
    listen_certificate: Option<PathBuf>,

    /// Private key of this listener (PEM).
    #[arg(long, value_name = "FILE", requires = "listen_certificate")]
    listen_key: Option<PathBuf>,

    /// The authority that has to have signed the clients' certificates (PEM).
    #[arg(long, value_name = "FILE", requires = "listen_certificate")]
    listen_authority: Option<PathBuf>,

    /// Listen to other machines without TLS.
    #[arg(long, requires = "listen")]
    insecure: bool,
}

fn place(text: &str) -> Result<Start, String> {
    match text {
        "oldest" => Ok(Start::First),
        "newest" => Ok(Start::Next),
        _ => match text.parse() {
            Ok(index) if index > 0 => Ok(Start::Index(Index(index))),
            _ => Err("give oldest, newest, or the index of a record, from 1".into()),
        },
    }
}

impl Follow {
    /// The servers of the command line; they take precedence over those of the environment.
    ///
    /// # Errors
    /// `InvalidArgument`: the command line has them twice, or they are servers of different logs.
    fn servers(&self) -> Result<Servers> {
        if self.servers.is_empty() {
            return Servers::joined(&self.cluster);
        }
        if !self.cluster.is_empty() && std::env::var_os("CHIPLOG_SERVERS").is_none() {
            return Err(Failure::usage("give the servers after the directory or with --cluster, not both"));
        }
        Servers::joined(&self.servers)
    }

    fn start(&self) -> Start {
        let since = self.since.map(Start::Timestamp);
        self.last.map(Start::Last).or(since).unwrap_or(self.from)
    }

    fn options(&self, log: &str) -> Result<FollowerOptions> {
        let mut options = FollowerOptions::default();
        log.clone_into(&mut options.log);
        options.served_objects = self.object_store.as_deref() == Some(SERVERS);
        let store = self.object_store.as_deref().filter(|_| !options.served_objects);
        let files = self.segment_bytes.map_or_else(Options::default, Options::with_segment_bytes);
        options.files = files
            .retention_bytes(self.retention_bytes)
            .retention_age(self.retention_seconds.map(Duration::from_secs))
            .vault(self.store.open_if_given(store)?)
            .local_bytes(self.local_bytes)
            .local_age(self.local_seconds.map(Duration::from_secs))
            .fill_bytes(self.fill_bytes);
        if let Some(bytes) = self.cache_bytes {
            options.files.cache_bytes = bytes;
        }
        options.zone.clone_from(&self.zone);
        let client = self.connect.options()?;
        (options.tls, options.token) = (client.tls, client.token);
        options.token_in_plain_text = client.token_in_plain_text;
        Ok(options)
    }

    fn server(&self, follower: &Follower) -> Result<Option<CopyServer>> {
        let Some(place) = &self.listen.listen else { return Ok(None) };
        let mut config = Config { insecure: self.listen.insecure, ..Config::default() };
        config.listen.client.clone_from(place);
        config.tls.certificate.clone_from(&self.listen.listen_certificate);
        config.tls.key.clone_from(&self.listen.listen_key);
        config.tls.client_authority.clone_from(&self.listen.listen_authority);
        CopyServer::start(&config, follower.host()).map(Some)
    }
}

pub(crate) fn run(args: &Follow, ui: &Ui) -> Result<Exit> {
    check_no_backup(&args.dir).map_err(|failure| {
        let dir = args.dir.display();
        failure.with_words(&format!(
            "`chiplog restore {dir} NEW-DIR --as-copy` makes a copy, with which this command goes on"
        ))
    })?;
    if !is_log(&args.dir) {
        check_not_within(&args.dir)?;
    }
    let servers = args.servers()?;
    let options = args.options(&servers.log)?;
    let open: Arc<OnceLock<Follower>> = Arc::default();
    let at_signal = open.clone();
    signals::on_stop(move || match at_signal.get() {
        Some(follower) => _ = follower.close(),      // ends the events
        None => std::process::exit(Exit::Ok as i32), // nothing has begun that an abrupt end could harm
    })?;
    if args.start_over {
        segments::remove_copy(&args.dir)?;
    }
    if args.segments {
        let fetched = segments::fetch(&args.dir, &servers, &args.connect, ui)?;
        fetched.map_or(Ok(()), |event| print_event(ui, &event))?;
    }
    segments::check_finished(&args.dir)?;
    let follower = begin(args, &servers.addresses, &options, ui)?;
    let _ = open.set(follower.clone());
    let server = args.server(&follower)?;
    print_event(ui, &opened(&follower, server.as_ref()))?;
    let printed = print_events(&follower, ui);
    if let Some(server) = server {
        server.shutdown();
    }
    let closed = follower.close();
    printed?;
    closed?;
    Ok(Exit::Ok)
}

/// Opens the copy. A new copy needs a server: waits for one, for up to `options.open_timeout`, and reports
/// each reason why there is none once.
fn begin(args: &Follow, servers: &[String], options: &FollowerOptions, ui: &Ui) -> Result<Follower> {
    let (begun, patience) = (Instant::now(), options.open_timeout);
    let (mut reported, mut each) = (BTreeSet::new(), FIRST_PATIENCE);
    loop {
        let mut options = options.clone();
        options.open_timeout = each;
        each *= 2; // give a slow source enough time
        let opened = Follower::open(&args.dir, servers.iter().cloned(), args.start(), options);
        let error = match opened {
            Ok(follower) => return Ok(follower),
            Err(error) if passes(&error) && begun.elapsed() < patience => error,
            Err(error) if error.kind() == ErrorKind::Locked => {
                return Err(open_log::refused(&args.dir, error));
            }
            Err(error) => return Err(remote::unreachable(error, servers, &args.connect, ui)),
        };
        if reported.insert(error.to_string()) {
            let event = FollowerEvent::Failed { server: None, error };
            value(&event).map_or(Ok(()), |event| print_event(ui, &event))?;
        }
    }
}

/// Whether the error may pass, because another server may answer differently.
fn passes(error: &chiplog::Error) -> bool {
    use ErrorKind::{Busy, NotLeader, Timeout, Unavailable};
    matches!(error.kind(), Unavailable | Timeout | NotLeader | Busy)
}

/// Whether the requests of a copy to its object store fail, as far as that was printed.
#[derive(Default)]
struct StoreWatch {
    is_failing: bool,
}

impl StoreWatch {
    /// The event, if this has changed. `works`: requests have succeeded. Without a failure it may only be that none was made for long.
    fn look(&mut self, failure: Option<StoreFailure>, works: bool) -> Option<Value> {
        match failure {
            Some(StoreFailure { since, why, .. }) if !self.is_failing => {
                self.is_failing = true;
                Some(json!({ "event": "store_fails", "since": format::time(since), "why": why }))
            }
            None if self.is_failing && works => {
                self.is_failing = false;
                Some(json!({ "event": "store_works" }))
            }
            _ => None,
        }
    }
}

/// Prints events until the follower is closed or ends by itself.
fn print_events(follower: &Follower, ui: &Ui) -> Result<()> {
    let print = |event: &FollowerEvent| value(event).map_or(Ok(()), |shown| print_event(ui, &shown));
    let mut held: Option<FollowerEvent> = None;
    let has_store = follower.log().options().vault.is_some();
    let mut store = has_store.then(StoreWatch::default);
    loop {
        let patience = match (&held, &store) {
            (Some(_), _) => MAY_END,
            (None, Some(_)) => STORE_LOOK,
            (None, None) => Duration::MAX,
        };
        let next = follower.next_event(patience);
        if let Ok(FollowerEvent::Stopped { error }) = next {
            return Err(stopped(error)); // which says what is held
        }
        if let Some(failed) = held.take() {
            print(&failed)?;
        }
        let works = follower.host().store_health().works();
        let failure = || follower.host().store_failure();
        if let Some(changed) = store.as_mut().and_then(|store| store.look(failure(), works)) {
            print_event(ui, &changed)?;
        }
        match next {
            Ok(event) if !ui.json && may_end(&event) => held = Some(event),
            Ok(event) => print(&event)?,
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(_) => return Ok(()),
        }
    }
}

/// Whether the follower may end because of what this event reports, if no other server answers differently.
fn may_end(event: &FollowerEvent) -> bool {
    use ErrorKind::{Diverged, NotFound, Unsupported};
    matches!(event, FollowerEvent::Failed { error, .. } if matches!(error.kind(), Diverged | NotFound | Unsupported))
}

/// The library reports what is wrong; the command line adds what to do.
fn stopped(error: chiplog::Error) -> Failure {
    let advice = match error.kind() {
        ErrorKind::Diverged => "; if these are the right servers, begin a new copy with `--start-over`",
        ErrorKind::TooLarge => "; continue with a larger --segment-bytes",
        _ => return error.into(),
    };
    let failure = Failure::new(error.kind(), format!("{error}{advice}"));
    match error.kind() {
        ErrorKind::Diverged => failure.with_exit(Exit::Usage),
        _ => failure,
    }
}

fn opened(follower: &Follower, server: Option<&CopyServer>) -> Value {
    let status = follower.log().status();
    json!({
        "event": "opened",
        "log_id": to_hex(status.log_id.get()),
        "first": status.first_index.get(),
        "last": status.last_index.get(),
        "listen": server.map(|s| s.at.to_string()),
    })
}

fn value(event: &FollowerEvent) -> Option<Value> {
    Some(match event {
        FollowerEvent::Connected { server } => json!({ "event": "connected", "server": server }),
        FollowerEvent::Switched { from, to } => json!({ "event": "switched", "from": from, "to": to }),
        FollowerEvent::Jumped { from, to } => {
            json!({ "event": "jumped", "from": from.get(), "to": to.get() })
        }
        FollowerEvent::Discarded { first } => json!({ "event": "discarded", "first": first.get() }),
        FollowerEvent::Failed { server, error } => {
            let error = json!({ "kind": error.kind().name(), "code": error.kind().code(), "message": error.to_string() });
            json!({ "event": "failed", "server": server, "error": error })
        }
        FollowerEvent::Missed { events } => json!({ "event": "missed", "events": events }),
        _ => return None,
    })
}

fn print_event(ui: &Ui, event: &Value) -> Result<()> {
    ui.result(event, words)
}

fn words(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| format::count(event[key].as_u64().unwrap_or(0));
    match event["event"].as_str().unwrap_or_default() {
        "opened" => {
            let listen = event["listen"].as_str().map_or(String::new(), |at| format!("; serving at {at}"));
            let (first, last) = (event["first"].as_u64().unwrap_or(1), event["last"].as_u64().unwrap_or(0));
            let records = match first <= last {
                true => format!("records {} to {} so far", number("first"), number("last")),
                false => format!("no records here yet, the next one is {}", number("first")),
            };
            format!("log {}, {records}{listen}", text("log_id"))
        }
        "fetched" => segments::words(event),
        "connected" => format!("connected to {}", text("server")),
        "switched" => format!("switched from {} to {}", text("from"), text("to")),
        "jumped" => format!(
            "records {} to {} are missing: they were discarded before they arrived",
            number("from"),
            format::count(event["to"].as_u64().unwrap_or(0).saturating_sub(1)),
        ),
        "discarded" => format!("records below {} were discarded", number("first")),
        "failed" => {
            let why = event["error"]["message"].as_str().unwrap_or_default();
            format!("trying again, and other servers if there are any: {why}")
        }
        "store_fails" => format!(
            "requests to the object store have failed since {}, and records that are in it alone cannot be read; they are repeated: {}",
            text("since"),
            text("why")
        ),
        "store_works" => "the object store works again".to_owned(),
        _ => format!("{} events were missed", number("events")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Error;
    use chiplog_net::served::store_health::{StoreHealth, StoreRequest};

    /// "records 1 to 0" was printed for a log without records.
    #[test]
    fn log_without_records_shows_no_range() {
        let opened = |first: u64, last: u64| {
            words(&json!({ "event": "opened", "log_id": "ab", "first": first, "last": last, "listen": null }))
        };
        assert_eq!(opened(1, 0), "log ab, no records here yet, the next one is 1");
        assert_eq!(opened(5, 4), "log ab, no records here yet, the next one is 5");
        assert_eq!(opened(5, 5), "log ab, records 5 to 5 so far");
    }

    /// The failure is printed once, and so is its end.
    #[test]
    fn failing_store_is_printed_once() {
        let health = StoreHealth::default();
        let mut watch = StoreWatch::default();
        let look = |watch: &mut StoreWatch| watch.look(health.failure(), health.works());
        assert!(look(&mut watch).is_none());
        let failed = Err::<(), _>(Error::new(ErrorKind::Unavailable, "no answer"));
        let fails = || health.begin(StoreRequest::Read, "a").end(&failed);
        fails();
        let said = words(&look(&mut watch).unwrap());
        assert!(said.starts_with("requests to the object store have failed since 2"), "{said}");
        assert!(said.ends_with("no answer"), "{said}");
        fails();
        assert!(look(&mut watch).is_none());
        assert!(
            watch.look(None, health.works()).is_none(),
            "nothing has succeeded, only nothing was read for long"
        );
        health.begin(StoreRequest::Read, "a").end(&Ok(1));
        assert_eq!(words(&look(&mut watch).unwrap()), "the object store works again");
        assert!(look(&mut watch).is_none());
    }

    #[test]
    fn every_event_is_described() {
        let error = Error::new(ErrorKind::Full, "no room");
        let events = [
            FollowerEvent::Connected { server: "a:1".into() },
            FollowerEvent::Switched { from: "a:1".into(), to: "b:1".into() },
            FollowerEvent::Jumped { from: Index(7), to: Index(1000) },
            FollowerEvent::Discarded { first: Index(12) },
            FollowerEvent::Failed { server: None, error },
            FollowerEvent::Missed { events: 3 },
        ];
        let words = events.map(|event| words(&value(&event).unwrap()));
        assert_eq!(
            words,
            [
                "connected to a:1",
                "switched from a:1 to b:1",
                "records 7 to 999 are missing: they were discarded before they arrived",
                "records below 12 were discarded",
                "trying again, and other servers if there are any: no room",
                "3 events were missed",
            ]
        );
    }
}
