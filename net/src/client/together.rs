//! Together: batches of several named logs of one group, appended in one call, all of them or none.
//!
//! Invariant: a call is repeated only if it is certain that the attempt before it appended nothing. There is no session in
//! which a server could recognize a repeated call.

use super::{Call, Client, Failed, Shown};
use crate::wire::durability;
use crate::wire::proto::v1::log_client::LogClient;
use crate::wire::proto::v1::{AppendTogetherRequest, AppendTogetherResponse, LogBatch};
use crate::wire::status::{KIND, has_appended_nothing, leaves_unknown, was_ended};
use chiplog::{Appended, Batch, Error, ErrorKind, Index, Result};

impl Client {
    /// Appends a batch to each of several named logs of one group, all of them or none, and returns once that is durable.
    /// They are in one block: no crash and no copy of the group separates them. Readers of two of the logs can see one batch a
    /// moment before the other. Returns the indexes of each batch. Each log is given as a client of it ([`Client::of_log`]), all of them of the same servers; a log can be given several times. The
    /// time limits are those of the first client. Up to 256 batches.
    ///
    /// The leader of the group is searched for, and asked again, as long as it is certain that nothing was appended. An
    /// attempt whose outcome is unknown is not repeated, because there are no sessions over several logs: batches are
    /// appended **at most once**. After such an error wait some seconds, because a server can still have the request, and read
    /// the ends of the logs: either all batches are there, or none. Their records must have something by which you know them.
    ///
    /// ```no_run
    /// # async fn transfer(client: chiplog_net::client::Client) -> chiplog::Result<()> {
    /// use chiplog::BatchBuilder;
    /// use chiplog_net::client::Client;
    /// client.create_log("account-1").await?;
    /// client.create_log_beside("account-2", "account-1").await?;
    /// let (from, to) = (client.of_log("account-1").await?, client.of_log("account-2").await?);
    /// let withdraw = BatchBuilder::new().push(b"-5")?.build()?;
    /// let deposit = BatchBuilder::new().push(b"+5")?.build()?;
    /// let appended = Client::append_together(&[(&from, &withdraw), (&to, &deposit)]).await?;
    /// assert_eq!(appended.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: it is **unknown** whether the batches were appended. After every other error none was:
    /// `InvalidArgument`: the logs are of different groups, see [`Client::create_log_beside`], one is no named log, or a batch
    /// belongs to a session. `TooLarge`: there are too many, one is larger than its log allows, or they do not fit into one
    /// block. `NotFound`, `Sealed`: one of the logs takes no appends; the message names it. `NotLeader`: no leader of the
    /// group answered within the time limit. `Busy`, `Full`: so did the queue, the quota of one of the logs or the capacity
    /// of the group. `Unsupported`: the leader runs an earlier version. `Unauthenticated`, `PermissionDenied`: the token does not
    /// reach all of the logs; one that is revoked during the call leaves the outcome unknown.
    pub async fn append_together(appends: &[(&Self, &Batch)]) -> Result<Vec<Appended>> {
        let Some((first, _)) = appends.first() else { return Ok(Vec::new()) };
        let of_log = |(client, batch): &(&Self, &Batch)| LogBatch {
            log: client.log_name(),
            log_id: client.servers().log_id(),
            batch: batch.as_bytes().clone(),
        };
        let request = AppendTogetherRequest { appends: appends.iter().map(of_log).collect() };
        let attempt = first.options().attempt_timeout;
        let call = |channel: Shown, request: AppendTogetherRequest| -> Call<AppendTogetherResponse> {
            Box::pin(async move { LogClient::new(channel).append_together(request).await })
        };
        let answer = first.call_leader_while(attempt, request, call, judge).await?;
        let is_complete = answer.appended.len() == appends.len()
            && answer
                .appended
                .iter()
                .zip(appends)
                .all(|(at, (_, batch))| at.count == batch.count() && at.first > 0);
        if !is_complete {
            let what = "the server's answer is invalid";
            return Err(unknown(&Error::new(ErrorKind::Unavailable, what)));
        }
        let placed = answer.appended.iter().map(|at| {
            let durability = durability::from_wire(at.durability);
            Appended { durability, ..Appended::new(Index(at.first), at.count) }
        });
        Ok(placed.collect())
    }
}

/// Returns the error of an attempt that appended nothing, and as `Err` that of one whose outcome is unknown.
fn judge(error: Error, failed: Failed<'_>) -> Result<Error> {
    let nothing = match failed {
        Failed::Unsent => true,
        Failed::Unanswered => false,
        Failed::Answered(status) => {
            let is_of_a_server = status.metadata().get(KIND).is_some();
            let is_certain = is_of_a_server && !was_ended(status) && !leaves_unknown(error.kind());
            has_appended_nothing(status) || is_certain
        }
    };
    match nothing {
        false => Err(unknown(&error)),
        true if leaves_unknown(error.kind()) => {
            let what = format!("no leader took the batches, and nothing was appended: {error}");
            Ok(Error::with_source(ErrorKind::NotLeader, what, &error))
        }
        true => Ok(error),
    }
}

/// The error of an attempt whose outcome is unknown.
fn unknown(error: &Error) -> Error {
    let kind = if error.kind() == ErrorKind::Timeout { ErrorKind::Timeout } else { ErrorKind::Unavailable };
    let what = format!(
        "it is unknown whether the batches were appended, all of them or none: {error}; read the ends of the logs before you \
         append them again"
    );
    Error::with_source(kind, what, error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::wire::status::{ENDED, NOT_APPENDED, from_status, to_status};
    use tonic::Status;
    use tonic::metadata::MetadataValue;

    fn judged(status: &Status) -> Result<ErrorKind, ErrorKind> {
        judge(from_status(status), Failed::Answered(status)).map(|e| e.kind()).map_err(|e| e.kind())
    }

    /// A call that is repeated although its batches are in the logs appends them twice.
    #[test]
    fn only_certain_failures_may_be_repeated() {
        use ErrorKind::{Busy, Closed, Io, NotLeader, Poisoned, Sealed, Timeout, Unavailable, Unsupported};
        for kind in [NotLeader, Busy, Sealed] {
            assert_eq!(judged(&to_status(&Error::new(kind, "x"), None)), Ok(kind));
        }
        for kind in [Timeout, Unavailable, Poisoned, Closed, Io] {
            let mut status = to_status(&Error::new(kind, "x"), None);
            assert_eq!(judged(&status), Err(if kind == Timeout { Timeout } else { Unavailable }));
            status.metadata_mut().insert(NOT_APPENDED, MetadataValue::from_static("1"));
            assert_eq!(judged(&status), Ok(NotLeader), "known, so not a kind that means unknown");
        }
        for foreign in [Status::unavailable("x"), Status::resource_exhausted("x"), Status::unknown("x")] {
            assert_eq!(judged(&foreign), Err(Unavailable), "a proxy can have passed the call on");
        }
        let mut revoked = to_status(&Error::new(ErrorKind::PermissionDenied, "x"), None);
        assert_eq!(judged(&revoked), Ok(ErrorKind::PermissionDenied));
        revoked.metadata_mut().insert(ENDED, MetadataValue::from_static("1"));
        assert_eq!(judged(&revoked), Err(Unavailable), "the call was under way");
        assert_eq!(judged(&Status::deadline_exceeded("x")), Err(Timeout));
        assert_eq!(judged(&Status::unimplemented("")), Ok(Unsupported));
        let silent = Error::new(Unavailable, "x");
        assert_eq!(judge(silent.clone(), Failed::Unanswered).unwrap_err().kind(), Unavailable);
        assert_eq!(judge(silent, Failed::Unsent).unwrap().kind(), NotLeader);
    }
}
