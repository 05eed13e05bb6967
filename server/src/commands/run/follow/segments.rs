//! Segments: a new copy of a log without an object store gets what is in the sealed segments of one server over HTTP, before it follows.

use crate::commands::files::object_store::StoreAccess;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::directory::is_log;
use crate::connect::target::Servers;
use chiplog::backup::Backup;
use chiplog::{ErrorKind, FollowerLog};
use chiplog_net::served::log_slot::DEFAULT_LOG;
use chiplog_tier::ServedLog;
use serde_json::{Value, json};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a server may take to accept a connection, if there are others.
const CONNECT: Duration = Duration::from_secs(3);

/// Removes a copy, finished or not, if there is one.
pub(super) fn remove_copy(dir: &Path) -> Result<()> {
    if Backup::is_unfinished_copy(dir) {
        return Ok(Backup::abandon_copy(dir)?);
    }
    match FollowerLog::destroy(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Checks that no copy was begun in a directory and left unfinished.
///
/// # Errors
/// `InvalidArgument`: one was.
pub(super) fn check_finished(dir: &Path) -> Result<()> {
    if !Backup::is_unfinished_copy(dir) {
        return Ok(());
    }
    let what = format!(
        "{} has a copy whose segments were not all fetched: go on with --segments, or begin again with --start-over",
        dir.display()
    );
    Err(Failure::usage(what))
}

/// Fetches a new copy from the first of the servers that has it, or goes on with one that was interrupted. Returns the event. None: there is
/// a copy, or the log has no sealed segment yet.
///
/// # Errors
/// `Unsupported`: the log has an object store, or is a named one. The last error, if none of the servers answers.
pub(super) fn fetch(dir: &Path, servers: &Servers, connect: &Connect, ui: &Ui) -> Result<Option<Value>> {
    if servers.is_named() {
        return Err(Failure::usage(
            "--segments fetches the segments of a whole log, and those of named logs have the records of others: leave it out",
        ));
    }
    if is_log(dir) && !Backup::is_unfinished_copy(dir) {
        return Ok(None);
    }
    let mut addresses: Vec<&String> = servers.addresses.iter().collect();
    if addresses.len() > 1 {
        addresses.sort_by_cached_key(|address| !accepts(address)); // a request is repeated for long
    }
    let mut failure: Option<Failure> = None;
    for address in addresses {
        if let Some(failure) = &failure {
            ui.note(&failure.to_string());
        }
        match fetch_from(address, dir, connect, ui) {
            Err(error)
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Busy) =>
            {
                failure = Some(error);
            }
            fetched => return fetched,
        }
    }
    failure.map_or(Ok(None), Err)
}

/// Whether a server accepts connections.
fn accepts(address: &str) -> bool {
    let found = address.to_socket_addrs();
    found.is_ok_and(|mut all| all.any(|at| TcpStream::connect_timeout(&at, CONNECT).is_ok()))
}

fn fetch_from(address: &str, dir: &Path, connect: &Connect, ui: &Ui) -> Result<Option<Value>> {
    let started = Instant::now();
    let scheme = if connect.options()?.tls.is_some() { "https" } else { "http" };
    let segments = StoreAccess::open_segments(&format!("{scheme}://{address}"), connect)?;
    let all = segments.logs()?;
    let log = all.iter().find(|log| log.name == DEFAULT_LOG);
    let log = log.ok_or_else(|| refused(address, "it lists no default log"))?;
    if let Some(why) = &log.not_served {
        return Err(refused(address, why));
    }
    let ServedLog { log_id, has_objects: true, .. } = log else {
        ui.note(&format!("{address} has no sealed segment yet: all records come by the feed"));
        if Backup::is_unfinished_copy(dir) {
            Backup::abandon_copy(dir)?;
        }
        return Ok(None);
    };
    let (bar, mut bytes) = (ui.progress(None, "fetching"), 0);
    let fetched = Backup::fetch_copy(&segments, *log_id, dir, &mut |done, total| {
        bytes = total;
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    fetched?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Some(json!({ "event": "fetched", "server": address, "bytes": bytes, "seconds": seconds })))
}

/// The words of the event.
pub(super) fn words(event: &Value) -> String {
    let bytes = event["bytes"].as_u64().unwrap_or(0);
    let time = Duration::from_secs_f64(event["seconds"].as_f64().unwrap_or(0.0));
    format!(
        "fetched {} of sealed segments from {} in {}",
        format::bytes(bytes),
        event["server"].as_str().unwrap_or_default(),
        format::duration(time)
    )
}

fn refused(address: &str, why: &str) -> Failure {
    let what = format!(
        "{address} serves no segments: {why}. Leave --segments out, or begin with --object-store if the log has one"
    );
    Failure::new(ErrorKind::Unsupported, what)
}
