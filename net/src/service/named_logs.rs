//! Named logs: the calls that create, delete, seal and list them. They block on the log, so each runs on a blocking thread,
//! a limited number at a time.

use crate::served::caller::Caller;
use crate::served::log_slot::{DEFAULT_LOG, FIND_TIMEOUT, LogSlot, status_of};
use crate::wire::ids;
use crate::wire::proto::v1::{
    CreateLogRequest, DeleteLogRequest, ListLogsRequest, ListLogsResponse, LogInfo, SealLogRequest,
};
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind, Log, LogId, Logs};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::Status;

/// The limit of calls that run at a time; more are rejected as `Busy`.
const CALLS_MAX: usize = 64;
/// The logs in one answer, if the caller sets no limit.
const LIMIT: u32 = 1000;
/// The most logs in one answer.
const LIMIT_MAX: u32 = 10_000;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// The calls about named logs of one server.
#[derive(Debug)]
pub(super) struct NamedLogs {
    host: Arc<LogSlot>,
    calls: Arc<Semaphore>,
}

impl NamedLogs {
    pub(super) fn new(host: Arc<LogSlot>) -> Self {
        Self { host, calls: Arc::new(Semaphore::new(CALLS_MAX)) }
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
        self.run(system, move |logs| {
            let id = match &*beside {
                "" => logs.register(&name)?,
                other => logs.register_beside(&name, other)?,
            };
            logs.find(&name, Some(id), FIND_TIMEOUT).map_err(|e| after_creation(&name, e))?;
            logs.info(&name)
        })
        .await
        .map(info)
    }

    /// Returns once the log is gone from its group, as far as is known here: then no append to it can be acknowledged. So
    /// does a repeated call with the log's id.
    pub(super) async fn delete(&self, caller: &Caller, request: DeleteLogRequest) -> Result<(), Status> {
        let DeleteLogRequest { name, log_id } = request;
        caller.claim(&name)?;
        let id = parsed(&log_id)?;
        self.run(system, move |logs| {
            let deleted = match logs.unregister(&name, id) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let Some(id) = id.filter(|id| logs.is_being_dropped(*id).unwrap_or(false)) else {
                        return Err(error);
                    };
                    id
                }
                unregistered => unregistered?,
            };
            logs.await_dropped(deleted, FIND_TIMEOUT)
        })
        .await
    }

    pub(super) async fn seal(&self, caller: &Caller, request: SealLogRequest) -> Result<(), Status> {
        let SealLogRequest { name, log_id } = request;
        let id = parsed(&log_id)?;
        let meant = (!log_id.is_empty()).then_some(log_id.as_bytes());
        let log = self.host.find(caller, &name, meant).await?;
        self.run(move |_| log, move |logs| logs.seal_log(&name, id)).await
    }

    pub(super) async fn list(
        &self,
        caller: &Caller,
        request: ListLogsRequest,
    ) -> Result<ListLogsResponse, Status> {
        let ListLogsRequest { prefix, after, limit } = request;
        let prefixes = caller.claim_names(&prefix)?;
        let limit = if limit == 0 { LIMIT } else { limit.min(LIMIT_MAX) } as usize;
        let list = move |logs: &Logs| {
            let mut page = Vec::new();
            for prefix in prefixes {
                page.extend(logs.list_after(&prefix, &after, limit + 1 - page.len())?);
            }
            Ok(page)
        };
        let mut logs = self.run(system, list).await?;
        let more = logs.len() > limit;
        logs.truncate(limit);
        Ok(ListLogsResponse { logs: logs.into_iter().map(info).collect(), more })
    }

    /// Runs a call. `of`: the log whose leader has to do it.
    async fn run<T: Send + 'static>(
        &self,
        of: impl FnOnce(&Logs) -> Log,
        call: impl FnOnce(&Logs) -> chiplog::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        self.host.default_log()?; // it is running
        let logs = self.host.named().cloned().ok_or_else(|| {
            let what = "this server keeps no named logs: if it has just started or joined, try again; restart it with `groups` if it is the only server of its cluster; a cluster of several servers cannot get them";
            to_status(&Error::new(ErrorKind::Unsupported, what), None)
        })?;
        let busy = |_| {
            let what = format!("{CALLS_MAX} calls about named logs run already; try again later");
            to_status(&Error::new(ErrorKind::Busy, what), None)
        };
        let permit = self.calls.clone().try_acquire_owned().map_err(busy)?;
        let running = logs.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            call(&running)
        });
        let done = done.await.map_err(|_| Status::internal("the call panicked"))?;
        done.map_err(|e| status_of(&of(&logs), &e))
    }
}

/// The error of a log that has its name already, and is not open yet. `NotLeader` is about its group: the caller would take
/// it for an answer that nothing was done.
fn after_creation(name: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotLeader => {
            let what =
                format!("log {name:?} was created, and its group has no leader yet that opens it: {error}");
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

fn info(log: chiplog::LogInfo) -> LogInfo {
    LogInfo {
        name: log.name,
        number: log.number.get(),
        log_id: ids::to_hex(log.log_id.get()),
        group: log.group,
        first: log.first_index.get(),
        last: log.last_index.get(),
        bytes_appended: log.bytes_appended,
        timestamp_nanos: log.last_timestamp.get().saturating_mul(NANOS_PER_MILLI),
        sealed: log.sealed,
    }
}
