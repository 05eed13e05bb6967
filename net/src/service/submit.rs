//! Submit: passes batches of clients to the log, and waits where the log's limits ask for that.

use chiplog::{Batch, Error, Log, Logs, Ticket};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Submits a batch once the log's queue has room and the log's rate allows it. The caller limits the time. A rate that
/// asks for more than `patience` is refused at once.
///
/// # Errors
/// As [`Log::submit_when_room`].
pub(super) async fn submit_when_allowed(
    log: &Log,
    batch: &Batch,
    patience: Duration,
) -> Result<Ticket, Error> {
    let begun = Instant::now();
    loop {
        match log.submit_when_room(batch).await {
            Err(error) => sleep(until_allowed(error, begun, patience)?).await,
            submitted => return submitted,
        }
    }
}

/// The same of batches that are appended together, once the rates of all their logs allow it.
///
/// # Errors
/// As [`Logs::submit_together_when_room`].
pub(super) async fn submit_together_when_allowed(
    logs: &Logs,
    appends: &[(&Log, &Batch)],
    patience: Duration,
) -> Result<Vec<Ticket>, Error> {
    let begun = Instant::now();
    loop {
        match logs.submit_together_when_room(appends).await {
            Err(error) => sleep(until_allowed(error, begun, patience)?).await,
            submitted => return submitted,
        }
    }
}

/// How long to wait after a refusal, if it is by a rate that allows the batch in time.
fn until_allowed(error: Error, begun: Instant, patience: Duration) -> Result<Duration, Error> {
    match error.retry_after() {
        Some(wait) if begun.elapsed() + wait < patience => Ok(wait),
        _ => Err(error),
    }
}
