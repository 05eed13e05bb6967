//! AppendTogether: batches of several named logs of one group in one call, all of them or none.
//!
//! ```text
//! request ──> claim and find each log ──> decode; unpack large batches ──> Logs::submit_together_when_room ──> tickets ──> answer
//! ```
//!
//! Invariants:
//! - The caller may reach every log of the request, or learns nothing about any of them.
//! - A status is marked as `chiplog-not-appended` only if nothing was submitted, or the log says that no batch is in it.
//! - Until the batches are in the log's queue, the request holds its share of the budget; afterwards its connection does.
//! - However many batches a request has, other tasks of the thread get to run.

use super::NativeOptions;
use super::append::{STEP_BYTES, measured};
use crate::listener::auth::tokens::Payer;
use crate::listener::memory_budget::{Ledger, UNPACKED_AT_ONCE_MAX};
use crate::served::caller::Caller;
use crate::served::gauges::Open;
use crate::served::log_slot::{DEFAULT_LOG, LogSlot, status_of};
use crate::service::submit::submit_together_when_allowed;
use crate::wire::durability;
use crate::wire::proto::v1::{
    AppendTogetherRequest, AppendTogetherResponse, Appended, BATCHES_MAX, LogBatch,
};
use crate::wire::status::{from_status, leaves_unknown, not_appended, to_status, with_message};
use chiplog::{Batch, Error, ErrorKind, Log, Ticket};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop;
use tokio::time::timeout;
use tonic::{Request, Status};

/// The most bytes that are unpacked in one place: it is taken for about as long as for one large batch. A larger one has a place of its own.
const PLACE_BYTES: usize = 32 << 20;
/// The digits of a log's id.
const ID_BYTES: usize = 32;
/// The most bytes of a log's name, with a partition's number and to spare. A message repeats the name.
const NAME_BYTES_MAX: usize = 300;

/// Answers one call.
///
/// # Errors
/// The status of the call.
pub(super) async fn append(
    host: &Arc<LogSlot>,
    options: &NativeOptions,
    request: Request<AppendTogetherRequest>,
) -> Result<AppendTogetherResponse, Status> {
    let (_, extensions, AppendTogetherRequest { appends }) = request.into_parts();
    let held = extensions.get::<Ledger>().map(Ledger::claim).unwrap_or_default();
    let _open = host.gauges().open(Open::Appends);
    let call = Call {
        host,
        caller: Caller::of(&extensions),
        payer: options.budget.payer_of(&extensions),
        patience: options.room_timeout,
    };
    let (logs, tickets) = tokio::select! {
        biased;
        submitted = call.submit(appends) => submitted.map_err(not_appended)?,
        () = host.drained() => return Err(not_appended(call.unavailable("this server is shutting down"))),
    };
    let _held = held.queued();
    let mut appended = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        match ticket.await {
            Ok(at) => {
                let durability = durability::to_wire(at.durability).into();
                appended.push(Appended { first: at.first.get(), count: at.count, durability });
            }
            Err(error) if leaves_unknown(error.kind()) => return Err(call.status_of(&logs, &error)),
            Err(error) => return Err(not_appended(call.status_of(&logs, &error))),
        }
    }
    Ok(AppendTogetherResponse { appended })
}

/// The logs of a request, with their names.
type Named = Vec<(String, Log)>;

struct Call<'a> {
    host: &'a LogSlot,
    caller: Caller,
    payer: Arc<Payer>,
    /// How long the logs are looked for, and how long the batches wait to be unpacked, and for room.
    patience: Duration,
}

impl Call<'_> {
    /// Submits the batches. After an error, nothing was submitted; the same if the future is dropped before it is ready.
    async fn submit(&self, appends: Vec<LogBatch>) -> Result<(Named, Vec<Ticket>), Status> {
        check(&appends).map_err(|error| to_status(&error, None))?;
        // Each of up to 256 look-ups can wait for a majority.
        let found = timeout(self.patience, self.find(&appends)).await.unwrap_or_else(|_| {
            let what = format!("not all of the logs were found within {:?}; try again later", self.patience);
            Err(to_status(&Error::new(ErrorKind::Busy, what), None))
        })?;
        let logs: Named = appends.iter().map(|append| append.log.clone()).zip(found).collect();
        let submitting = async {
            let batches = self.decode(&logs, appends).await?;
            let appends: Vec<(&Log, &Batch)> = logs.iter().map(|(_, log)| log).zip(&batches).collect();
            let unnamed = || Error::new(ErrorKind::Unavailable, "this server keeps no named logs");
            let named = self.host.named().ok_or_else(unnamed)?;
            submit_together_when_allowed(named, &appends, self.patience).await
        };
        let submitted = timeout(self.patience, submitting).await.unwrap_or_else(|_| {
            let what = format!(
                "no room for the batches within {:?}, in the queue of the logs' group or to decompress them; try again later",
                self.patience
            );
            Err(Error::new(ErrorKind::Busy, what))
        });
        match submitted {
            Ok(tickets) => Ok((logs, tickets)),
            Err(error) => Err(self.status_of(&logs, &error)),
        }
    }

    /// The logs that the request names.
    async fn find(&self, appends: &[LogBatch]) -> Result<Vec<Log>, Status> {
        for LogBatch { log, .. } in appends {
            self.caller.claim(log)?;
        }
        let mut found: Vec<Log> = Vec::with_capacity(appends.len());
        for LogBatch { log, log_id, .. } in appends {
            coop::consume_budget().await;
            let meant = (!log_id.is_empty()).then_some(log_id.as_bytes());
            match self.host.find(&self.caller, log, meant).await {
                Ok(copy) if self.host.is_default(log) && copy.status().follows => {
                    let what = format!("this server has a copy of log {log:?}, which takes no appends");
                    return Err(status_of(&copy, &Error::new(ErrorKind::NotLeader, what)));
                }
                Ok(_) if self.host.is_default(log) => {
                    let what = format!(
                        "{:?} is no named log: only named logs of one group are appended to together",
                        if log.is_empty() { DEFAULT_LOG } else { log }
                    );
                    return Err(to_status(&Error::new(ErrorKind::InvalidArgument, what), None));
                }
                // Both are in the same files.
                Ok(log) if found.first().is_none_or(|first| first.path() == log.path()) => found.push(log),
                Ok(_) => return Err(of_two_groups(&appends[0].log, log)),
                // The server does not run the group: whichever server is asked, one of two groups can be elsewhere.
                Err(status) if from_status(&status).kind() == ErrorKind::NotLeader => {
                    return Err(self.group_conflict(appends).unwrap_or(status));
                }
                Err(status) => return Err(status),
            }
        }
        Ok(found)
    }

    /// The answer if two of the logs are in different groups, as far as the catalogue is known.
    fn group_conflict(&self, appends: &[LogBatch]) -> Option<Status> {
        let named = self.host.named()?;
        let group = |name: &str| named.group_of(name).ok().flatten();
        let mut known = appends.iter().filter_map(|append| Some((&append.log, group(&append.log)?)));
        let (first, its_group) = known.next()?;
        let (other, _) = known.find(|(_, group)| *group != its_group)?;
        Some(of_two_groups(first, other))
    }

    /// Decodes the batches, and unpacks them once, if they are large: so that the log need not do so on a runtime thread.
    async fn decode(&self, logs: &Named, appends: Vec<LogBatch>) -> chiplog::Result<Vec<Batch>> {
        let mut batches = Vec::with_capacity(appends.len());
        let mut unpacked = Vec::with_capacity(appends.len());
        for (LogBatch { log: name, batch, .. }, (_, log)) in appends.into_iter().zip(logs) {
            let steps = batch.len() / STEP_BYTES + 1;
            let torn = |error| with_message(&error, format!("the batch for log {name:?}: {error}"));
            let batch = Batch::decode(batch).map_err(torn)?;
            let bytes = batch.unmeasured_bytes(log.record_bytes_max());
            let is_refused_for_it = bytes > log.options().batch_bytes_max as usize;
            unpacked.push(if is_refused_for_it { 0 } else { bytes });
            batches.push(batch);
            for _ in 0..steps {
                coop::consume_budget().await;
            }
        }
        if unpacked.iter().sum::<usize>() > UNPACKED_AT_ONCE_MAX {
            // Those that are refused for their size are not unpacked.
            let large: Vec<_> = unpacked.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0).collect();
            let mut rest = &large[..];
            while !rest.is_empty() {
                let mut bytes = 0;
                let fits = |(_, more): &&(usize, usize)| {
                    bytes += more;
                    bytes <= PLACE_BYTES
                };
                let (some, behind) = rest.split_at(rest.iter().take_while(fits).count().max(1));
                let those = some.iter().filter_map(|(n, _)| batches.get(*n).cloned()).collect();
                for ((n, _), measured) in some.iter().zip(measured(&self.payer, those).await?) {
                    batches[*n] = measured;
                }
                rest = behind;
            }
        }
        Ok(batches)
    }

    fn unavailable(&self, what: &str) -> Status {
        self.host.status_of(&Error::new(ErrorKind::Unavailable, what))
    }

    /// The status of an error of the logs' group. A log that takes no appends is named.
    fn status_of(&self, logs: &Named, error: &Error) -> Status {
        let Some((_, first)) = logs.first() else { return self.host.status_of(error) };
        let refuses = |log: &Log| log.check_room(0).is_err_and(|refusal| refusal.kind() == error.kind());
        let one = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Sealed | ErrorKind::Full)
            .then(|| logs.iter().find(|(_, log)| refuses(log)))
            .flatten();
        self.host.refused(one.map_or(first, |(_, log)| log), error);
        match one {
            Some((name, log)) => {
                let what = format!("log {name:?}: {error}; nothing was appended to any of the logs");
                status_of(log, &with_message(error, what))
            }
            None if error.kind() == ErrorKind::Full => {
                status_of(first, &with_message(error, self.host.words(first, error)))
            }
            None => status_of(first, error),
        }
    }
}

/// Checks the number of batches, and that names and ids are short.
fn check(appends: &[LogBatch]) -> chiplog::Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
    if appends.is_empty() {
        return invalid("the request has no batches: it takes at least one".to_owned());
    }
    if appends.len() > BATCHES_MAX {
        let what = format!("the request has more than {BATCHES_MAX} batches: append less together");
        return Err(Error::new(ErrorKind::TooLarge, what));
    }
    for LogBatch { log, log_id, .. } in appends {
        if log.len() > NAME_BYTES_MAX {
            return invalid(format!("the name of a log has {} bytes: none is that long", log.len()));
        }
        if !log_id.is_empty() && log_id.len() != ID_BYTES {
            let bytes = log_id.len();
            return invalid(format!(
                "the id of log {log:?} has {bytes} characters: an id has {ID_BYTES} hexadecimal digits"
            ));
        }
    }
    Ok(())
}

fn of_two_groups(one: &str, other: &str) -> Status {
    let what = format!(
        "logs {one:?} and {other:?} are in different groups, and only logs of one group are appended to together: create one \
         beside the other, with `chiplog logs create NAME --beside {one}`"
    );
    to_status(&Error::new(ErrorKind::InvalidArgument, what), None)
}
