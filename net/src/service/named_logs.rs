//! Named logs: the calls that create, delete, seal and list them. They block on the log, so each runs on a blocking thread,
//! a limited number at a time.

use crate::served::call_places::CallPlaces;
use crate::served::caller::Caller;
use crate::served::log_slot::{DEFAULT_LOG, FIND_TIMEOUT, LogSlot, status_of};
use crate::wire::ids;
use crate::wire::log_info::to_wire;
use crate::wire::proto::v1::{
    CreateLogRequest, DeleteLogRequest, ListLogsRequest, ListLogsResponse, LogInfo, SealLogRequest,
};
use crate::wire::status::to_status;
use chiplog::cluster::Role;
use chiplog::{Error, ErrorKind, Log, LogId, LogNumber, Logs};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

/// The limit of calls that run at a time; more are rejected as `Busy`. One token has a share of them.
const CALLS_MAX: usize = 64;
/// The logs in one answer, if the caller sets no limit.
const LIMIT: u32 = 1000;
/// The most logs in one answer.
const LIMIT_MAX: u32 = 10_000;
/// How often the leader of a group on other servers is asked whether a new log is open, or a deleted one gone.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The calls about named logs of one server.
#[derive(Debug)]
pub(super) struct NamedLogs {
    host: Arc<LogSlot>,
    calls: Arc<CallPlaces>,
}

impl NamedLogs {
    pub(super) fn new(host: Arc<LogSlot>) -> Self {
        Self { host, calls: CallPlaces::new(CALLS_MAX) }
    }

    pub(super) async fn create(&self, caller: &Caller, request: CreateLogRequest) -> Result<LogInfo, Status> {
        let CreateLogRequest { name, beside } = request;
        caller.claim(&name)?;
        if !beside.is_empty() {
            caller.claim(&beside)?; // the answer tells whether it exists
        }
        if name == DEFAULT_LOG {
            let what = format!("log {DEFAULT_LOG:?} exists on every server");
            return Err(to_status(&Error::new(ErrorKind::AlreadyExists, what), None));
        }
        let host = self.host.clone();
        self.run(caller, system, move |logs| {
            let await_before = || {
                while let Some(before) = logs.predecessor(&name)? {
                    await_dropped(&host, logs, before).map_err(|error| still_there(&name, error))?;
                }
                Ok(())
            };
            if logs.system().role() == Role::Leader {
                await_before()?;
            }
            let registered = match &*beside {
                "" => logs.register(&name),
                other => logs.register_beside(&name, other),
            };
            let id = match registered {
                // The caller may use the log now.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    await_before()?;
                    return Err(error);
                }
                registered => registered?,
            };
            // Another call can have created and deleted a log of this name meanwhile.
            while let Some(before) = logs.predecessor(&name)? {
                await_dropped(&host, logs, before).map_err(|error| after_creation(&name, error))?;
            }
            match logs.find(&name, Some(id), FIND_TIMEOUT) {
                Err(error) if error.kind() == ErrorKind::NotLeader && created(logs, &name, id)?.elsewhere => {
                    await_open_elsewhere(&host, logs, &name, id)
                }
                found => found.map_err(|e| after_creation(&name, e)).and_then(|_| created(logs, &name, id)),
            }
        })
        .await
        .map(to_wire)
    }

    /// Returns once the log is gone from its group: then no append to it can be acknowledged. If the group runs on other
    /// servers, its leader says so. So does a repeated call with the log's id.
    pub(super) async fn delete(&self, caller: &Caller, request: DeleteLogRequest) -> Result<(), Status> {
        let DeleteLogRequest { name, log_id } = request;
        caller.claim(&name)?;
        let (id, host) = (parsed(&log_id)?, self.host.clone());
        self.run(caller, system, move |logs| {
            let deleted = match logs.unregister(&name, id) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let is_dropped = |id: &LogId| logs.being_dropped(*id).is_ok_and(|place| place.is_some());
                    id.filter(is_dropped).ok_or(error)?
                }
                unregistered => unregistered?,
            };
            await_dropped(&host, logs, deleted)
        })
        .await
    }

    pub(super) async fn seal(&self, caller: &Caller, request: SealLogRequest) -> Result<(), Status> {
        let SealLogRequest { name, log_id } = request;
        let id = parsed(&log_id)?;
        let meant = (!log_id.is_empty()).then_some(log_id.as_bytes());
        let log = self.host.find(caller, &name, meant).await?;
        self.run(caller, move |_| log, move |logs| logs.seal_log(&name, id)).await
    }

    pub(super) async fn list(
        &self,
        caller: &Caller,
        request: ListLogsRequest,
    ) -> Result<ListLogsResponse, Status> {
        let ListLogsRequest { prefix, after, limit } = request;
        let prefixes = caller.claim_names(&prefix)?;
        let limit = if limit == 0 { LIMIT } else { limit.min(LIMIT_MAX) } as usize;
        let host = self.host.clone();
        let list = move |logs: &Logs| {
            let mut page = Vec::new();
            for prefix in prefixes {
                page.extend(logs.list_after(&prefix, &after, limit + 1 - page.len())?);
            }
            describe_elsewhere(&host, &mut page);
            Ok(page)
        };
        let mut logs = self.run(caller, system, list).await?;
        let more = logs.len() > limit;
        logs.truncate(limit);
        Ok(ListLogsResponse { logs: logs.into_iter().map(to_wire).collect(), more })
    }

    /// Runs a call. `of`: the log whose leader has to do it.
    async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        of: impl FnOnce(&Logs) -> Log,
        call: impl FnOnce(&Logs) -> chiplog::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        self.host.default_log()?; // it is running
        let logs = self.host.named().cloned().ok_or_else(|| {
            if self.host.waits_for_named() {
                let what = "this server has not got the catalogue of named logs yet; try again later";
                return to_status(&Error::new(ErrorKind::Unavailable, what), None);
            }
            let what = "this server keeps no named logs: if it has just started or joined, try again; otherwise restart all servers of the cluster with `groups`";
            to_status(&Error::new(ErrorKind::Unsupported, what), None)
        })?;
        let place = self.calls.take(caller, self.host.share_percent(), "wait for named logs");
        let place = place.map_err(|error| to_status(&error, None))?;
        let running = logs.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            call(&running)
        });
        let done = done.await.map_err(|_| Status::internal("the call panicked"))?;
        done.map_err(|e| {
            if is_of_catalogue(&e) {
                self.host.refused(logs.system(), &e);
            }
            status_of(&of(&logs), &e)
        })
    }
}

/// Whether the catalogue has no room for a record. A group that may have no more logs is `Full` as well.
fn is_of_catalogue(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    error.kind() == ErrorKind::Full && source.is_some_and(|source| source.kind() == ErrorKind::Full)
}

/// Waits until a deleted log is gone from its group, wherever that runs. A replica here that has failed learns no more of its group.
///
/// # Errors
/// `Timeout`: it is not, as far as is known here.
fn await_dropped(host: &LogSlot, logs: &Logs, id: LogId) -> chiplog::Result<()> {
    let deadline = Instant::now() + FIND_TIMEOUT;
    match logs.await_dropped(id, FIND_TIMEOUT / 2) {
        Err(error) if matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Timeout) => {
            await_dropped_elsewhere(host, logs, id, deadline)
        }
        dropped => dropped,
    }
}

/// Waits until the leader of a group on another server finds a deleted log gone.
///
/// # Errors
/// `Timeout`: it did not, or no leader answered.
fn await_dropped_elsewhere(host: &LogSlot, logs: &Logs, id: LogId, deadline: Instant) -> chiplog::Result<()> {
    while let Some((group, log)) = logs.being_dropped(id)? {
        let view = host.view_elsewhere(group, &[log]);
        if view.as_ref().is_ok_and(|view| view.gone.contains(&log)) {
            return logs.forget_dropped(group, log);
        }
        if Instant::now() > deadline {
            let why = view.err().map_or_else(String::new, |error| format!(": {error}"));
            let what = format!(
                "log {log} is deleted, but the leader of group {group} did not drop it within {FIND_TIMEOUT:?}{why}"
            );
            return Err(Error::new(ErrorKind::Timeout, what));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Waits until the leader of a group that does not run here has opened a new log.
///
/// # Errors
/// `Unavailable`: it did not in time. `NotFound`: the log was deleted meanwhile.
fn await_open_elsewhere(
    host: &LogSlot,
    logs: &Logs,
    name: &str,
    id: LogId,
) -> chiplog::Result<chiplog::LogInfo> {
    let deadline = Instant::now() + FIND_TIMEOUT;
    loop {
        let mut one = [created(logs, name, id)?];
        describe_elsewhere(host, &mut one);
        let [info] = one;
        if !info.elsewhere {
            return Ok(info);
        }
        if Instant::now() > deadline {
            let what =
                format!("log {name:?} was created, and group {} has no leader yet that opens it", info.group);
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Asks the leaders of other groups for the state of logs that do not run here. Those of a group without an answer stay
/// unknown.
fn describe_elsewhere(host: &LogSlot, logs: &mut [chiplog::LogInfo]) {
    let mut groups: BTreeMap<u32, Vec<LogNumber>> = BTreeMap::new();
    for log in logs.iter().filter(|log| log.elsewhere) {
        groups.entry(log.group).or_default().push(log.number);
    }
    let views = host.views_elsewhere(groups).unwrap_or_default().into_values().flatten();
    let told: HashMap<LogId, chiplog::LogInfo> =
        views.flat_map(|view| view.logs).map(|log| (log.log_id, log)).collect();
    for log in logs {
        if let Some(told) = told.get(&log.log_id) {
            let name = std::mem::replace(log, told.clone()).name;
            log.name = name;
        }
    }
}

/// The state of a log that this call has created.
///
/// # Errors
/// `NotFound`: it was deleted meanwhile, and the name can be that of another log now.
fn created(logs: &Logs, name: &str, id: LogId) -> chiplog::Result<chiplog::LogInfo> {
    let info = logs.info(name)?;
    if info.log_id == id {
        return Ok(info);
    }
    let what = format!("log {name:?} was created, then deleted by another call, which created another one");
    Err(Error::new(ErrorKind::NotFound, what))
}

/// The error of a creation while a deleted log of the name is still in its group.
fn still_there(name: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::NotLeader | ErrorKind::Unavailable => {
            let what = format!(
                "a deleted log was called {name:?}, or by a name that is not known here, and can still accept appends: {error}"
            );
            Error::new(ErrorKind::Busy, what)
        }
        _ => error,
    }
}

/// The error of a log that has its name already, and is not open yet. `NotLeader`, `Full` and `Busy` are about its group: the
/// caller would take them for an answer that nothing was done.
fn after_creation(name: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotLeader | ErrorKind::Full | ErrorKind::Busy | ErrorKind::Timeout => {
            let what = format!("log {name:?} was created, and cannot be used yet: {error}");
            Error::new(ErrorKind::Unavailable, what)
        }
        _ => error,
    }
}

/// The id in a request. None: it has none.
fn parsed(log_id: &str) -> Result<Option<LogId>, Status> {
    match log_id {
        "" => Ok(None),
        id => ids::from_hex(id).map(|id| Some(LogId(id))).map_err(|e| to_status(&e, None)),
    }
}

fn system(logs: &Logs) -> Log {
    logs.system().clone()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// The caller got the id of the other log, and wrote to that.
    #[test]
    fn creation_of_a_log_tells_of_no_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(dir.path(), chiplog::LogsOptions::default()).unwrap();
        let first = logs.register("orders").unwrap();
        assert_eq!(created(&logs, "orders", first).unwrap().log_id, first);
        logs.delete("orders").unwrap();
        assert_ne!(logs.register("orders").unwrap(), first);
        assert_eq!(created(&logs, "orders", first).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
