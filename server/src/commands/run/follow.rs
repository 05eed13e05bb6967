//! `chiplog follow`: a copy of a cluster's log in a directory, kept up to date, and served to others if that is wanted.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::format::parse_bytes;
use crate::common::output::Ui;
use crate::common::signals;
use crate::connect::cluster::{Connect, host_port};
use crate::connect::open_log;
use crate::connect::remote;
use crate::connect::target;
use crate::serve::Config;
use crate::serve::follower::CopyServer;
use chiplog::{ErrorKind, FollowerLog, Index, Options, Start, Timestamp};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use chiplog_net::wire::ids::to_hex;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long servers are waited for, for a new copy, before it is told why none is there.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  chiplog follow ./copy log1:7411,log2:7411                a copy of the log, for as long as this runs
  chiplog follow ./copy --cluster log1:7411 --from newest  only what is still to come
  chiplog follow ./copy --cluster log1:7411 --since 2h     what the last two hours brought, and what is still to come
  chiplog follow ./copy --cluster log1:7411 --listen 127.0.0.1:7421
  chiplog follow ./copy2 --cluster 127.0.0.1:7421          a copy of the copy
  chiplog read 127.0.0.1:7421 --stale --follow             what the copy has, over the network
  chiplog read ./copy --follow                             beside it: what is there, and what comes";

/// Keep a copy of a cluster's log in a directory, up to date, until Ctrl-C.
///
/// It does not vote and the cluster need not know it. It dials out to any server, a leader is not needed, and goes to
/// another one when that fails, at the very next block. Everything is checked before it is stored, in the log's own
/// format: every command that reads a directory reads the copy, also meanwhile. Started again it goes on where it was.
///
/// Records that were discarded before they came are missing in the copy, and it says so. A copy that is full, or whose
/// servers are away, tries again for ever; one whose files fail, or whose servers have another log, ends.
///
/// A new copy needs a server to begin with, and waits 30 s for one (status 5); one that refuses the token ends it at once.
///
/// Tells on standard output what happens, one line each; with --json one object each, its \"event\" one of opened,
/// connected, switched, jumped, discarded, failed, missed. Ctrl-C and SIGTERM end it in order (status 0).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Follow {
    /// The copy's directory. Empty or new: a copy is begun there.
    #[arg(value_name = "DIR", value_parser = target::directory)]
    dir: PathBuf,

    /// Servers of the cluster, by the address for clients, or others that follow; one is enough.
    #[arg(value_name = "HOST:PORT", value_delimiter = ',', value_parser = host_port)]
    servers: Vec<String>,

    /// The same, as the other commands that change something take it.
    #[arg(long, value_name = "HOST:PORT", env = "CHIPLOG_SERVERS", value_delimiter = ',', required_unless_present = "servers", value_parser = host_port)]
    cluster: Vec<String>,

    /// Where a new copy begins: oldest, newest, or the index of a record.
    #[arg(long, value_name = "PLACE", default_value = "oldest", value_parser = place, conflicts_with_all = ["last", "since"])]
    from: Start,

    /// A new copy begins so many records before the end.
    #[arg(long, value_name = "N", conflicts_with = "since")]
    last: Option<u64>,

    /// A new copy begins with the first record of this time or later: RFC 3339, a date, milliseconds since 1970, or a span
    /// ago (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = crate::connect::open_log::since)]
    since: Option<Timestamp>,

    /// Prefer servers of this zone.
    #[arg(long, env = "CHIPLOG_ZONE", default_value = "", hide_default_value = true)]
    zone: String,

    /// Remove what is in the directory, if it is a copy, and begin a new one.
    #[arg(long)]
    start_over: bool,

    /// Keep no more than about so many bytes, such as 10GiB, whatever the log keeps.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    retention_bytes: Option<u64>,

    /// Keep nothing older than so many seconds, whatever the log keeps.
    #[arg(long, value_name = "SECONDS")]
    retention_seconds: Option<u64>,

    /// Size of new segment files, such as 64MiB; not below the servers' if their blocks are that large.
    #[arg(long, value_name = "SIZE", value_parser = crate::connect::open_log::segment_bytes)]
    segment_bytes: Option<u32>,

    #[command(flatten)]
    listen: Listen,

    #[command(flatten)]
    connect: Connect,
}

/// Serving others.
#[derive(Args, Debug)]
#[command(next_help_heading = "Serving options")]
struct Listen {
    /// Serve the copy here: reads, and other copies.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    /// Certificate of this listener (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["listen", "listen_key"])]
    listen_certificate: Option<PathBuf>,

    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "listen_certificate")]
    listen_key: Option<PathBuf>,

    /// Who has to have signed the clients' certificates (PEM).
    #[arg(long, value_name = "FILE", requires = "listen_certificate")]
    listen_authority: Option<PathBuf>,

    /// Listen beyond this machine without TLS.
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
    /// Those of the command line; they win over the environment's.
    ///
    /// # Errors
    /// `InvalidArgument`: they are given twice.
    fn servers(&self) -> Result<&[String]> {
        if self.servers.is_empty() {
            return Ok(&self.cluster);
        }
        if !self.cluster.is_empty() && std::env::var_os("CHIPLOG_SERVERS").is_none() {
            return Err(Failure::usage("give the servers behind the directory or with --cluster, not both"));
        }
        Ok(&self.servers)
    }

    fn start(&self) -> Start {
        let since = self.since.map(Start::Timestamp);
        self.last.map(Start::Last).or(since).unwrap_or(self.from)
    }

    fn options(&self) -> Result<FollowerOptions> {
        let mut options = FollowerOptions::default();
        let files = self.segment_bytes.map_or_else(Options::default, Options::with_segment_bytes);
        options.files = Options {
            retention_bytes: self.retention_bytes,
            retention_age: self.retention_seconds.map(Duration::from_secs),
            ..files
        };
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
    let (options, servers) = (args.options()?, args.servers()?);
    let open: Arc<OnceLock<Follower>> = Arc::default();
    let at_signal = open.clone();
    signals::on_stop(move || match at_signal.get() {
        Some(follower) => _ = follower.close(),      // the events end
        None => std::process::exit(Exit::Ok as i32), // nothing has begun that a kill would harm
    })?;
    if args.start_over {
        match FollowerLog::destroy(&args.dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let follower = begin(args, servers, &options, ui)?;
    let _ = open.set(follower.clone());
    let server = args.server(&follower)?;
    tell(ui, &opened(&follower, server.as_ref()))?;
    let told = tell_events(&follower, ui);
    if let Some(server) = server {
        server.shutdown();
    }
    let closed = follower.close();
    told?;
    closed?;
    Ok(Exit::Ok)
}

/// Opens the copy. For a new one a server is needed: waits for one, for `options.open_timeout` in all, and tells why there
/// is none, once for each reason.
fn begin(args: &Follow, servers: &[String], options: &FollowerOptions, ui: &Ui) -> Result<Follower> {
    let (begun, patience) = (Instant::now(), options.open_timeout);
    let (mut told, mut each) = (BTreeSet::new(), FIRST_PATIENCE);
    loop {
        let mut options = options.clone();
        options.open_timeout = each;
        each *= 2; // a slow source has to get through
        let opened = Follower::open(&args.dir, servers.iter().cloned(), args.start(), options);
        let error = match opened {
            Ok(follower) => return Ok(follower),
            Err(error) if passes(&error) && begun.elapsed() < patience => error,
            Err(error) if error.kind() == ErrorKind::Locked => {
                return Err(open_log::refused(&args.dir, error));
            }
            Err(error) => return Err(remote::unreachable(error, servers, &args.connect, ui)),
        };
        if told.insert(error.to_string()) {
            let event = FollowerEvent::Failed { server: None, error };
            value(&event).map_or(Ok(()), |event| tell(ui, &event))?;
        }
    }
}

/// Whether a server may come that says something else.
fn passes(error: &chiplog::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// Until the follower is closed, or ends by itself.
fn tell_events(follower: &Follower, ui: &Ui) -> Result<()> {
    loop {
        let event = match follower.next_event(Duration::MAX) {
            Ok(FollowerEvent::Stopped { error }) => return Err(stopped(error)),
            Ok(event) => event,
            Err(_) => return Ok(()),
        };
        if let Some(told) = value(&event) {
            tell(ui, &told)?;
        }
    }
}

/// The library says what is the matter; the command line adds what to do.
fn stopped(error: chiplog::Error) -> Failure {
    let advice = match error.kind() {
        ErrorKind::Diverged => "; if the servers are the right ones, `--start-over` begins a new copy",
        ErrorKind::TooLarge => "; go on with a larger --segment-bytes",
        _ => return error.into(),
    };
    Failure::new(error.kind(), format!("{error}{advice}"))
}

fn opened(follower: &Follower, server: Option<&CopyServer>) -> Value {
    let info = follower.log().info();
    json!({
        "event": "opened",
        "log_id": to_hex(info.log_id.get()),
        "first": info.first.get(),
        "last": info.last.get(),
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

fn tell(ui: &Ui, told: &Value) -> Result<()> {
    ui.result(told, words)
}

fn words(told: &Value) -> String {
    let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| format::count(told[key].as_u64().unwrap_or(0));
    match told["event"].as_str().unwrap_or_default() {
        "opened" => {
            let listen = told["listen"].as_str().map_or(String::new(), |at| format!("; serves at {at}"));
            let (first, last) = (told["first"].as_u64().unwrap_or(1), told["last"].as_u64().unwrap_or(0));
            let records = match first <= last {
                true => format!("records {} to {}", number("first"), number("last")),
                false => format!("no records yet, the next one is {}", number("first")),
            };
            format!("log {}, {records}{listen}", text("log_id"))
        }
        "connected" => format!("fed by {}", text("server")),
        "switched" => format!("fed by {} instead of {}", text("to"), text("from")),
        "jumped" => format!(
            "records {} to {} are missing: they were discarded before they came",
            number("from"),
            format::count(told["to"].as_u64().unwrap_or(0).saturating_sub(1)),
        ),
        "discarded" => format!("records below {} were discarded", number("first")),
        "failed" => {
            format!("looks for another server: {}", told["error"]["message"].as_str().unwrap_or_default())
        }
        _ => format!("{} events were missed", number("events")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Error;

    /// "records 1 to 0" was said of a log without any.
    #[test]
    fn a_log_without_records_has_none_from_to() {
        let opened = |first: u64, last: u64| {
            words(&json!({ "event": "opened", "log_id": "ab", "first": first, "last": last, "listen": null }))
        };
        assert_eq!(opened(1, 0), "log ab, no records yet, the next one is 1");
        assert_eq!(opened(5, 4), "log ab, no records yet, the next one is 5");
        assert_eq!(opened(5, 5), "log ab, records 5 to 5");
    }

    #[test]
    fn every_event_has_words() {
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
                "fed by a:1",
                "fed by b:1 instead of a:1",
                "records 7 to 999 are missing: they were discarded before they came",
                "records below 12 were discarded",
                "looks for another server: no room",
                "3 events were missed",
            ]
        );
    }
}
