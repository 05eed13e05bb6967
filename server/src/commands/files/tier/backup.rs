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
use chiplog::backup::Backup;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, LogId};
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
    let cut = |upto| {
        let log = servers.log.clone();
        asker.ask_leader(servers, PATIENCE, |mut admin| {
            let request = CutObjectsRequest { log: log.clone(), upto };
            async move { admin.cut_objects(request).await.map(|response| response.into_inner().upto) }
        })
    };
    let upto = cut(0)?;
    let (leader, status) = asker.leader(servers)?;
    let log = log_of(&status)?;
    if status.first > upto {
        let what = format!("{leader}: the log has no records: there is nothing to back up");
        return Err(Failure::new(ErrorKind::NotFound, what));
    }
    let (begun, mut asked, mut reported) = (Instant::now(), Instant::now(), false);
    let mut status = status;
    while status.stored_index < upto {
        if begun.elapsed() > timeout {
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
    if !Backup::logs_in(vault)?.contains(&log) {
        let id = to_hex(log.get());
        let what = format!(
            "log {id} of {leader} has no objects there: give the location that the servers have as object_store"
        );
        return Err(Failure::new(ErrorKind::NotFound, what));
    }
    pins::pin(vault, name, Some(log), Some(upto), ui)
}

fn log_of(status: &StatusResponse) -> Result<LogId> {
    from_hex(&status.log_id).map(LogId).map_err(|e| Failure::new(ErrorKind::Corrupt, e.to_string()))
}
