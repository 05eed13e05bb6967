//! Submit: passes batches of clients to the log, and waits where the log's limits ask for that.

use chiplog::{Batch, Error, Log, Ticket};
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
            Err(error) => match error.retry_after() {
                Some(wait) if begun.elapsed() + wait < patience => sleep(wait).await,
                _ => return Err(error),
            },
            submitted => return submitted,
        }
    }
}
