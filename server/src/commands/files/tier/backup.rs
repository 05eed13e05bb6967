//! `chiplog tier backup`: all records that servers have confirmed, in the object store under a pin.
//!
//! ```text
//!  leader ── all up to here into objects ──> stored? ── not yet: wait ──> pin
//! ```
//!
//! The request is repeated while the records are not stored: a new leader does not know of it.

use super::pins;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::target::Servers;
use chiplog::backup::{Backup, ClusterLogs};
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Index, LogId};
use chiplog_net::wire::ids::{from_hex, to_hex};
use chiplog_net::wire::proto::v1::{CutObjectsRequest, StatusResponse};
use std::time::{Duration, Instant};

/// How often to look whether all is stored, and how often to repeat the request.
const LOOK: Duration = Duration::from_millis(200);
const REPEAT: Duration = Duration::from_secs(5);
/// How long a request to the leader may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// A wait that is longer than this is reported.
const REPORT_AFTER: Duration = Duration::from_secs(2);

pub(super) fn run(
    servers: &Servers,
    vault: &dyn Vault,
    name: &str,
    timeout: Duration,
    connect: &Connect,
    ui: &Ui,
) -> Result<Exit> {
    let asker = Asker::new(connect, ui)?;
    let deadline = Instant::now() + timeout;
    let (_, status) = asker.leader(servers)?;
    let log = log_of(&status)?;
    let list = match servers.log.is_empty() {
        true => named_logs(&asker, servers, vault, log, &status)?,
        false => None,
    };
    // The catalogue then knows at least the logs that are in the groups.
    let groups = list.iter().flat_map(|list| list.groups.keys().map(|group| format!("_group-{group}")));
    let named: Vec<String> = groups.chain(list.iter().map(|_| "_system".to_owned())).collect();
    let mut with_records = Vec::new();
    for part in &named {
        let stored = store_all(&asker, &servers.with_log(part), timeout, deadline, ui)?;
        with_records.extend(stored.map(|(log, upto)| (log, Index(upto))));
    }
    let stored = store_all(&asker, servers, timeout, deadline, ui)?;
    let upto = stored.map(|(stored, upto)| {
        if stored == log {
            return Ok(upto);
        }
        Err(Failure::new(ErrorKind::Diverged, "the servers have another log than at the beginning"))
    });
    let upto = upto.transpose()?;
    if upto.is_none() && named.is_empty() {
        let what =
            format!("{}: the log has no records: there is nothing to back up", servers.addresses.join(","));
        return Err(Failure::new(ErrorKind::NotFound, what));
    }
    if !Backup::logs_in(vault)?.contains(&log) {
        let id = to_hex(log.get());
        let what = format!(
            "log {id} of {} has no objects there: give the location that the servers have as object_store",
            servers.addresses.join(",")
        );
        return Err(Failure::new(ErrorKind::NotFound, what));
    }
    if list.is_none() {
        return pins::pin(vault, name, Some(log), upto, ui);
    }
    // Groups can be new since.
    let (_, status) = asker.leader(servers)?;
    match named_logs(&asker, servers, vault, log, &status)? {
        Some(now) if Some(&now) == list.as_ref() => {
            pins::pin_all(vault, &now, name, upto.map(Index), &with_records, ui)
        }
        _ => {
            let what = "the cluster has got another group of named logs meanwhile: try again";
            Err(Failure::new(ErrorKind::Unavailable, what))
        }
    }
}

/// The logs of the servers' cluster. None: they have no named logs.
///
/// # Errors
/// `Unavailable`: the object store does not have the list of all of them. `Diverged`: it has that of other logs.
fn named_logs(
    asker: &Asker,
    servers: &Servers,
    vault: &dyn Vault,
    log: LogId,
    status: &StatusResponse,
) -> Result<Option<ClusterLogs>> {
    let catalogue = match asker.leader(&servers.with_log("_system")) {
        Ok((_, status)) => log_of(&status)?,
        // They keep none. If the store has a list, they have had some.
        Err(failure) => match pins::list_of(vault, log)? {
            None if failure.kind() == ErrorKind::Unsupported => return Ok(None),
            _ => return Err(failure),
        },
    };
    let list = pins::list_of(vault, log)?;
    let missing =
        status.groups.iter().map(|group| group.number).find(|number| {
            *number > 0 && !list.as_ref().is_some_and(|list| list.groups.contains_key(number))
        });
    match (list, missing) {
        (Some(list), _) if list.catalogue != catalogue => {
            let what = format!(
                "{}/named in the object store is the list of another cluster's logs: {} is its catalogue, and that of the servers is \
                 {}. Servers with a restored log need a log id, or a location, of their own",
                to_hex(log.get()),
                to_hex(list.catalogue.get()),
                to_hex(catalogue.get())
            );
            Err(Failure::new(ErrorKind::Diverged, what))
        }
        (Some(list), None) => Ok(Some(list)),
        _ => {
            let what = format!(
                "the servers have named logs, and the object store does not have the list of all of their logs ({}/named), so this \
                 would be no backup of them. The leader stores it within seconds if it has an object_store: its log says why it \
                 cannot. Give the location that the servers have",
                to_hex(log.get())
            );
            Err(Failure::new(ErrorKind::Unavailable, what))
        }
    }
}

/// Waits until all records that a log has now are in objects. Returns the log, and the last of them; None: it has none.
fn store_all(
    asker: &Asker,
    servers: &Servers,
    timeout: Duration,
    deadline: Instant,
    ui: &Ui,
) -> Result<Option<(LogId, u64)>> {
    let cut = |upto| {
        let log = servers.log.clone();
        asker.ask_leader(servers, PATIENCE, |mut admin| {
            let request = CutObjectsRequest { log: log.clone(), upto };
            async move { admin.cut_objects(request).await.map(|response| response.into_inner().upto) }
        })
    };
    let upto = cut(0)?;
    let (leader, mut status) = asker.leader(servers)?;
    let log = log_of(&status)?;
    if status.first > upto {
        return Ok(None);
    }
    let (begun, mut asked, mut reported) = (Instant::now(), Instant::now(), false);
    while status.stored_index < upto {
        if Instant::now() > deadline {
            let what = format!(
                "record {} of {upto} is the last one in the object store after {}; {leader} says that {} attempts to use the store \
                 failed. See its log, or wait longer with --timeout",
                status.stored_index,
                format::duration(timeout),
                status.object_failures
            );
            return Err(Failure::new(ErrorKind::Timeout, what));
        }
        if begun.elapsed() > REPORT_AFTER && !std::mem::replace(&mut reported, true) {
            let left = format::bytes(status.unstored_bytes);
            ui.say(&format!("waiting until all up to record {upto} is in the object store: {left} are not"));
        }
        if asked.elapsed() > REPEAT {
            cut(upto)?;
            asked = Instant::now();
        }
        std::thread::sleep(LOOK);
        status = asker.leader(servers)?.1;
    }
    if log_of(&status)? != log {
        return Err(Failure::new(ErrorKind::Diverged, "the servers have another log than at the beginning"));
    }
    Ok(Some((log, upto)))
}

fn log_of(status: &StatusResponse) -> Result<LogId> {
    from_hex(&status.log_id).map(LogId).map_err(|e| Failure::new(ErrorKind::Corrupt, e.to_string()))
}
